"""One flush of the journal: what it holds and where it ends.

A manifest is what makes a flush exist. It is a small JSON file, numbered without
gaps, created exclusively under its number and never changed. It names the
flush's segments with the statistics that let a reader choose the cheap way
without opening them, the schema versions that begin in it, and the position it
ends at; it starts where the manifest before it ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from penstock.publication_drift.sent_partitions import SentPartition
from penstock.schema import Lsn, TableId, TableSchema


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many changes of each kind."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            self.truncates + other.truncates,
        )

    @property
    def total(self) -> int:
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True, slots=True)
class Defect:
    """A value that its column's type cannot hold. The segment has NULL in its place.

    `row` shows the key of the first such row as text, `value` its value, cut
    short; `count` says how many rows of the segment have one in this column. Or it is
    `unsent`: old rows of the partition that `row` names lack what the table's key is made of.
    """

    column: str
    row: str
    value: str
    count: int
    unsent: bool = False


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One segment: changes of one table under one schema version, in order.

    `path` is relative to the journal's root. `key_min` and `key_max` bound the
    first key column over every old and new key in the segment, where that is an
    integer. `key_changes` counts updates that came with an old key or old row.
    `truncated_by` are the transactions of its TRUNCATEs.
    """

    path: str
    table_id: TableId
    schema_version: Lsn
    rows: int
    bytes: int
    counts: ChangeCounts
    has_unchanged: bool = False
    key_changes: int = 0
    key_min: int | None = None
    key_max: int | None = None
    defects: tuple[Defect, ...] = ()
    truncated_by: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "table": self.table_id.oid,
            "schema_version": str(self.schema_version),
            "rows": self.rows,
            "bytes": self.bytes,
            "counts": {name: getattr(self.counts, name) for name in ChangeCounts.__slots__},
            "has_unchanged": self.has_unchanged,
            "key_changes": self.key_changes,
            "key_min": self.key_min,
            "key_max": self.key_max,
            "defects": [[d.column, d.row, d.value, d.count, d.unsent] for d in self.defects],
            "truncated_by": list(self.truncated_by),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            data["path"],
            TableId(data["table"]),
            Lsn.parse(data["schema_version"]),
            data["rows"],
            data["bytes"],
            ChangeCounts(**data["counts"]),
            data["has_unchanged"],
            data["key_changes"],
            data["key_min"],
            data["key_max"],
            tuple(Defect(*defect) for defect in data["defects"]),
            tuple(data.get("truncated_by", ())),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A flush. `last_commit_at` is the source's time of its last commit, if it has one."""

    number: int
    start: Lsn
    end: Lsn
    created_at: datetime
    last_commit_at: datetime | None = None
    schemas: tuple[TableSchema, ...] = ()
    segments: tuple[SegmentRef, ...] = ()
    partitions: tuple[SentPartition, ...] = ()

    @property
    def announced(self) -> tuple[TableSchema, ...]:
        """The versions that count even where no row is in them."""
        return tuple(schema for schema in self.schemas if schema.note is not None)

    @property
    def tables(self) -> set[TableId]:
        """The tables that it has something for."""
        return {s.table_id for s in self.segments} | {s.id for s in self.announced}

    def dumps(self) -> str:
        return json.dumps(
            {
                "number": self.number,
                "start": str(self.start),
                "end": str(self.end),
                "created_at": self.created_at.isoformat(),
                "last_commit_at": self.last_commit_at and self.last_commit_at.isoformat(),
                "schemas": [schema.to_json() for schema in self.schemas],
                "segments": [segment.to_json() for segment in self.segments],
                "partitions": [partition.to_json() for partition in self.partitions],
            }
        )

    @classmethod
    def loads(cls, text: str) -> Self:
        data = json.loads(text)
        last = data["last_commit_at"]
        return cls(
            data["number"],
            Lsn.parse(data["start"]),
            Lsn.parse(data["end"]),
            datetime.fromisoformat(data["created_at"]),
            datetime.fromisoformat(last) if last else None,
            tuple(TableSchema.from_json(schema) for schema in data["schemas"]),
            tuple(SegmentRef.from_json(segment) for segment in data["segments"]),
            tuple(SentPartition.from_json(sent) for sent in data.get("partitions", ())),
        )


def now() -> datetime:
    return datetime.now(UTC)
