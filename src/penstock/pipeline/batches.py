"""The next batch of a table: a run of whole flushes of one schema version.

A version that the source announced is a run even while no row is in it.

A cursor stands at the end of a flush. The one exception: a flush in which a
table changed its shape holds segments of several versions, which are applied one
after the other, so it is cut into *parts*. A part ends just behind the position
at which the next version begins. (That position alone would not do: it is where
a commit record begins, which may be the very byte where the flush before ended,
and then a cursor could not tell the two apart.)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.config import MIB
from penstock.journal.journal import Journal, TableFlush
from penstock.journal.manifest import SegmentRef
from penstock.schema import Lsn, TableId, TableSchema

GROWTH_LIMIT = 16
"""How many times `batch.max_bytes` a batch may have while its table is behind."""

_MAX_SEGMENTS = 2000
_FAR_BEHIND = 16 * MIB
_LONGEST_WAIT = 5.0


@dataclass(frozen=True, slots=True)
class Part:
    """What one flush holds of one table under one schema version."""

    version: Lsn
    end: Lsn
    segments: tuple[SegmentRef, ...]

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Run:
    """What can be applied in one go: everything of a table in `(start, end]`.

    It may have no segments, where its version is all that there is to apply.
    """

    schema: TableSchema
    start: Lsn
    end: Lsn
    segments: tuple[SegmentRef, ...]
    cut: bool
    """Whether more of the same version follows that did not fit."""

    @property
    def begins_version(self) -> bool:
        """Whether its version begins in it; else an earlier run had that."""
        # What comes before a version in the same flush ends just behind its position.
        return self.start.value <= self.schema.version.value + 1


class BatchSize:
    """How many bytes the next batch may have: more while the table is behind.

    A merge costs nearly the same for a thousand rows as for one, so a table that
    is behind catches up by larger batches; after a failure it starts small.
    """

    def __init__(self, max_bytes: int) -> None:
        self._smallest = self.bytes = max_bytes

    def after(self, run: Run) -> None:
        if run.cut:
            self.bytes = min(2 * self.bytes, GROWTH_LIMIT * self._smallest)
        else:
            self.bytes = max(self.bytes // 2, self._smallest)


class Gathering:
    """Lets a table wait for a larger batch while the journal is far behind the source.

    A batch costs a second or more whatever its size, and takes processors that the
    receiver could use to catch up. So the changes gather until the journal has what the
    source had when the waiting began, until they fill a batch, or for a few seconds.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._until: Lsn | None = None

    def goes_on(
        self, pending: Sequence[TableFlush], end: Lsn, source: Lsn | None, max_bytes: int
    ) -> bool:
        """Whether to wait on with `pending`; `end` is the journal's, `source` the WAL's."""
        if not pending:
            self._since = self._until = None
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if self._until is None and source is not None and source.value - end.value > _FAR_BEHIND:
            self._until = source
        if (
            self._until is not None
            and end < self._until
            and now - self._since < _LONGEST_WAIT
            and sum(flush.bytes for flush in pending) < max_bytes
        ):
            return True
        self._until = None
        return False

    def ended(self) -> None:
        """A batch begins; what comes from now on gathers for the next one."""
        self._since, self._until = time.monotonic(), None


def next_run(journal: Journal, table_id: TableId, cursor: Lsn, max_bytes: int) -> Run | None:
    """The run that begins at `cursor`; None when nothing is behind it.

    It has at least one part, whatever its size: a transaction is never cut.
    """
    parts = _parts(journal.pending(table_id, cursor), cursor)
    first = next(parts, None)
    if first is None:
        return None
    segments, end = list(first.segments), first.end
    size, cut = first.bytes, False
    for part in parts:
        if part.version != first.version:
            break
        if size + part.bytes > max_bytes or len(segments) >= _MAX_SEGMENTS:
            cut = True
            break
        segments += part.segments
        size += part.bytes
        end = part.end
    schema = journal.schema(table_id, first.version)
    return Run(schema, cursor, end, tuple(segments), cut)


def _parts(flushes: list[TableFlush], cursor: Lsn) -> Iterator[Part]:
    for flush in flushes:
        versions = sorted({*flush.announced, *(s.schema_version for s in flush.segments)})
        ends = [Lsn(version.value + 1) for version in versions[1:]] + [flush.end]
        for version, end in zip(versions, ends, strict=True):
            if end > cursor:
                segments = tuple(s for s in flush.segments if s.schema_version == version)
                yield Part(version, end, segments)
