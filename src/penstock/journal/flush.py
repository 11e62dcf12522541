"""What has been decoded and is not in the journal yet.

Changes of closed transactions wait in one group, those of the transaction still
open in another. A flush writes the closed group and names it in a manifest. An
open transaction that grows too large for memory is written to segments as it
comes; no manifest names those before its commit, so nobody sees them, and
a crash makes them litter.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from datetime import datetime

from penstock.failpoints import failpoint
from penstock.journal.decoder import Decoded
from penstock.journal.files import sync
from penstock.journal.manifest import SegmentRef
from penstock.journal.segment import Chunk, write_segment
from penstock.journal.versions import SchemaVersions
from penstock.journal.writer import JournalWriter
from penstock.schema import Lsn


class _Group:
    """Chunks in memory and segments written already, in stream order."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.segments: list[SegmentRef] = []
        self.bytes = 0
        """What the chunks in memory take."""
        self.gathered = 0
        """That, and what the chunks took that have been written."""

    def add(self, chunk: Chunk) -> None:
        size = chunk.bytes
        self.chunks.append(chunk)
        self.bytes += size
        self.gathered += size

    def absorb(self, other: _Group) -> None:
        self.chunks += other.chunks
        self.segments += other.segments
        self.bytes += other.bytes
        self.gathered += other.gathered

    def write(self, journal: JournalWriter) -> None:
        """Turn the chunks into durable segments."""
        by_version: dict[tuple[int, Lsn], list[Chunk]] = {}
        for chunk in self.chunks:
            by_version.setdefault((chunk.schema.id.oid, chunk.schema.version), []).append(chunk)
        directories = set()
        for chunks in by_version.values():
            path = journal.segment_path(chunks[0].schema.id, f"{uuid.uuid4().hex}.parquet")
            self.segments.append(write_segment(path, journal.root, chunks))
            directories.add(path.parent)
        for directory in directories:
            sync(directory)
        self.chunks, self.bytes = [], 0

    @property
    def written_bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


class FlushBuilder:
    """Gathers decoded changes and makes flushes of them."""

    def __init__(self, journal: JournalWriter, max_bytes: int) -> None:
        self._journal = journal
        self._max_bytes = max_bytes
        self._closed = _Group()
        self._open = _Group()
        self._since: float | None = None
        self._committed_at: datetime | None = None
        self.end = journal.end

    @property
    def empty(self) -> bool:
        """Whether no closed change waits."""
        return not self._closed.chunks and not self._closed.segments

    @property
    def bytes(self) -> int:
        """What has gathered for the next flush, in memory or on disk."""
        return self._closed.gathered

    @property
    def memory(self) -> int:
        """What waits in memory, closed and open."""
        return self._closed.bytes + self._open.bytes

    @property
    def spilled_bytes(self) -> int:
        """What the open transaction has on disk already."""
        return self._open.written_bytes

    @property
    def age(self) -> float:
        """For how many seconds the oldest closed change has been waiting."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def add(self, decoded: Decoded) -> None:
        if decoded.end is not None:
            self._closed.absorb(self._open)
            self._open = _Group()
            self._gather(self._closed, decoded.closed)
            self.end = decoded.end
            self._committed_at = decoded.committed_at
            if self._since is None and not self.empty:
                self._since = time.monotonic()
        self._gather(self._open, decoded.open)
        if self._open.bytes >= self._max_bytes:
            self._open.write(self._journal)

    def _gather(self, group: _Group, chunks: Iterable[Chunk]) -> None:
        """Add chunks, and write what waits where one buffer makes too much of it."""
        for chunk in chunks:
            # Each group may come with less than a flush of its own.
            if self.memory >= 2 * self._max_bytes:
                self._closed.write(self._journal)
                self._open.write(self._journal)
            group.add(chunk)

    def move_to(self, position: Lsn) -> None:
        """The stream is idle and Postgres is at `position`, outside any transaction."""
        self.end = max(self.end, position)

    def flush(self, versions: SchemaVersions) -> Lsn:
        """Make everything closed exist in the journal; the position that is now durable."""
        self._closed.write(self._journal)
        failpoint("segment_written")
        self._journal.append(
            self.end,
            last_commit_at=self._committed_at,
            schemas=versions.take_closed(self.end),
            segments=tuple(self._closed.segments),
            partitions=versions.take_partitions(self.end),
        )
        failpoint("manifest_created")
        self._closed = _Group()
        self._since = None
        self._committed_at = None
        return self.end
