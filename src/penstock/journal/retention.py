"""What may leave the journal: segments that their tables have passed, and old manifests.

A manifest goes when no table needs anything of it, or of one before it. So a table that
is errored keeps every later manifest here, with whatever else is in it: to plan, every
other second, has to cost what goes, not what is there.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Self

from penstock.journal.manifest import Manifest, SegmentRef, now
from penstock.publication_drift.sent_partitions import SentPartition
from penstock.schema import ZERO_LSN, Lsn, TableId, TableSchema

if TYPE_CHECKING:
    from penstock.journal.journal import TableFlush


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The journal's memory of what it has retired.

    `dropped` says, for each table, up to which position its segments are gone:
    a cursor before it cannot be served. `began` is where the first manifest of all
    started, which no cursor in this journal can be before. `truncated_by` are, for each
    table, the transactions that truncated it last.
    """

    first_number: int = 1
    start: Lsn = ZERO_LSN
    schemas: tuple[TableSchema, ...] = ()
    dropped: Mapping[TableId, Lsn] = field(default_factory=dict)
    began: Lsn = ZERO_LSN
    truncated_by: Mapping[TableId, tuple[int, ...]] = field(default_factory=dict)
    partitions: tuple[SentPartition, ...] = ()

    def dumps(self) -> str:
        return json.dumps(
            {
                "first_number": self.first_number,
                "start": str(self.start),
                "schemas": [schema.to_json() for schema in self.schemas],
                "dropped": {str(table.oid): str(lsn) for table, lsn in self.dropped.items()},
                "began": str(self.began),
                "truncated_by": {str(t.oid): list(xids) for t, xids in self.truncated_by.items()},
                "partitions": [partition.to_json() for partition in self.partitions],
            }
        )

    @classmethod
    def loads(cls, text: str) -> Self:
        data = json.loads(text)
        return cls(
            data["first_number"],
            Lsn.parse(data["start"]),
            tuple(TableSchema.from_json(schema) for schema in data["schemas"]),
            {TableId(int(oid)): Lsn.parse(lsn) for oid, lsn in data["dropped"].items()},
            Lsn.parse(data.get("began", "0/0")),
            {TableId(int(t)): tuple(xids) for t, xids in data.get("truncated_by", {}).items()},
            tuple(SentPartition.from_json(sent) for sent in data.get("partitions", ())),
        )


@dataclass(frozen=True, slots=True)
class Retirement:
    """What goes: `segments`, and the oldest `manifests`. `dropped` says up to where each
    table has then given up everything."""

    segments: tuple[SegmentRef, ...]
    manifests: tuple[Manifest, ...]
    dropped: Mapping[TableId, Lsn]


def count_up_to(ordered: Sequence[Manifest] | Sequence[TableFlush], position: Lsn) -> int:
    """How many of them end at `position` or before."""
    return bisect_right(ordered, position, key=lambda each: each.end)


def plan_retirement(
    manifests: Sequence[Manifest],
    flushes: Mapping[TableId, Sequence[TableFlush]],
    dropped: Mapping[TableId, Lsn],
    passed: Mapping[TableId, Lsn],
    retention: timedelta,
) -> Retirement:
    """What goes up to each table's position in `passed`, if it is older than `retention`.

    `flushes` are those of `manifests` that come behind what each table has `dropped`.
    """
    old = _count_older_than(manifests, retention)
    end = manifests[old - 1].end if old else ZERO_LSN
    segments: list[SegmentRef] = []
    dropped = dict(dropped)
    for table_id, position in passed.items():
        here = flushes.get(table_id, ())
        over = here[: count_up_to(here, min(position, end))]
        if over:
            segments += (segment for flush in over for segment in flush.segments)
            dropped[table_id] = over[-1].end
    removable = tuple(_removable(manifests, old, dropped))
    return Retirement(tuple(segments), removable, dropped)


def _count_older_than(manifests: Sequence[Manifest], retention: timedelta) -> int:
    """How many manifests, from the oldest on, need not be kept for their age.

    A clock that was set back has dated some later than those that follow. They are older.
    """
    if not retention:
        return len(manifests)
    limit = now() - retention
    young = sum(1 for _ in takewhile(lambda m: m.created_at > limit, reversed(manifests)))
    return len(manifests) - young


def _removable(
    manifests: Sequence[Manifest], old: int, dropped: Mapping[TableId, Lsn]
) -> Iterator[Manifest]:
    """The oldest manifests that no table needs any more; never the last one of all."""
    for manifest in islice(manifests, min(old, len(manifests) - 1)):
        if any(dropped.get(table_id, ZERO_LSN) < manifest.end for table_id in manifest.tables):
            return
        yield manifest
