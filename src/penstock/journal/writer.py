"""The one process's side of the journal that appends to it."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from penstock.errors import ErrorKind, PenstockError
from penstock.journal.files import create_exclusively, sync
from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.manifest import Manifest, SegmentRef, now
from penstock.publication_drift.sent_partitions import SentPartition
from penstock.schema import Lsn, TableId, TableSchema

RESUME_SHARE = 0.8
"""Receiving pauses at `journal.max_bytes` and goes on below this share of it."""


class JournalWriter(Journal):
    """The one process that appends. Hold it only under the receiver's lock.

    `refresh` it once at start. After the first `append` it knows only the
    journal's end; read through a `Journal` of your own.
    """

    def claim(self, owner: JournalOwner) -> None:
        """Make a new journal for `owner`. Written before the slot is created, so
        that a slot without a manifest is known to be ours after a crash."""
        self.manifests_directory.mkdir(parents=True, exist_ok=True)
        self.segments_directory.mkdir(exist_ok=True)
        create_exclusively(self.root / "journal.json", json.dumps({"format": 1, **owner.to_json()}))

    def settle(self) -> None:
        """Make durable what is here. Who wrote it may have died between naming a file and waiting
        for the disk: acknowledged like that, it would be gone after a power failure."""
        for directory in (self.manifests_directory, self.segments_directory):
            sync(directory)

    def segment_path(self, table_id: TableId, name: str) -> Path:
        directory = self.segments_directory / str(table_id.oid)
        if not directory.exists():
            directory.mkdir(parents=True)
            sync(self.segments_directory)
        return directory / name

    def append(
        self,
        end: Lsn,
        *,
        start: Lsn | None = None,
        last_commit_at: datetime | None = None,
        schemas: tuple[TableSchema, ...] = (),
        segments: tuple[SegmentRef, ...] = (),
        partitions: tuple[SentPartition, ...] = (),
    ) -> Manifest:
        """Make a flush exist. `start` is given for the first one only.

        The segments must be durable already. If the number is taken, another
        receiver is alive, and this one must stop.
        """
        with self._lock:
            manifest = Manifest(
                self._next_number(),
                self.end if start is None else start,
                end,
                now(),
                last_commit_at,
                schemas,
                segments,
                partitions,
            )
            try:
                create_exclusively(self._manifest_path(manifest.number), manifest.dumps())
            except FileExistsError:
                raise PenstockError(
                    ErrorKind.JOURNAL,
                    f"manifest {manifest.number} of {self.root} was written by somebody else",
                    hint="another receiver fills this journal; stop one of the two",
                ) from None
            # The index is for readers; a writer that lives for months keeps only the end.
            self._manifests = [manifest]
            return manifest

    def remove_litter(self) -> int:
        """Remove what no manifest names: drafts and segments of flushes that never existed."""
        with self._lock:
            named = {segment.path for manifest in self._manifests for segment in manifest.segments}
            dropped = self._checkpoint.first_number
        removed = 0
        for path in self.segments_directory.glob("*/*"):
            if str(path.relative_to(self.root)) not in named:
                path.unlink(missing_ok=True)
                removed += 1
        for path in self.manifests_directory.iterdir():
            stale = path.suffix == ".json" and int(path.stem) < dropped
            if stale or path.name.startswith("."):
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def disk_usage(self) -> int:
        """What the segment files take now, also those that others retire meanwhile."""
        total = 0
        with os.scandir(self.segments_directory) as tables:
            for table in tables:
                with os.scandir(table.path) as segments:
                    for segment in segments:
                        try:
                            total += segment.stat().st_size
                        except FileNotFoundError:
                            continue
        return total
