"""What removed manifests said that is still needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from penstock.publication_drift.sent_partitions import SentPartition
from penstock.schema import ZERO_LSN, Lsn, TableId, TableSchema


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
