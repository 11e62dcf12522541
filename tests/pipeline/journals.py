"""Journals made by hand, without a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.manifest import ChangeCounts, Defect, SegmentRef
from penstock.journal.writer import JournalWriter
from penstock.schema import (
    ColumnSchema,
    Lsn,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)

LONG = ValueType(ValueKind.LONG)
TEXT = ValueType(ValueKind.STRING)
DATE = ValueType(ValueKind.DATE)


def table(
    oid: int = 1, name: str = "t", *, version: int = 0, columns: Sequence[str] = ("id", "v")
) -> TableSchema:
    """A table whose first column is its key; the column `day` is a date, others are text."""
    return TableSchema(
        TableId(oid),
        TableName("public", name),
        tuple(
            ColumnSchema(
                column,
                number,
                LONG if number == 1 else DATE if column == "day" else TEXT,
                20,
                key_position=0 if number == 1 else None,
            )
            for number, column in enumerate(columns, 1)
        ),
        version=Lsn(version),
    )


class HandMadeJournal:
    """Writes flushes as a receiver would; `reader` follows them."""

    def __init__(self, root: Path, start: int = 100) -> None:
        self.writer = JournalWriter(root)
        self.writer.claim(JournalOwner("slot", "1", "db"))
        self.writer.append(Lsn(start), start=Lsn(start))
        self.reader = Journal(root)
        self.reader.refresh()
        self._number = 0

    def flush(
        self,
        end: int,
        *changes: SegmentRef,
        schemas: tuple[TableSchema, ...] = (),
    ) -> None:
        self.writer.append(Lsn(end), schemas=schemas, segments=changes)
        self.reader.refresh()

    def segment(
        self,
        schema: TableSchema,
        xids: Sequence[int] = (1000,),
        *,
        values: Sequence[str | None] | None = None,
        size: int | None = None,
        defects: tuple[Defect, ...] = (),
    ) -> SegmentRef:
        """A segment of inserts, one for each xid; `values` are those of the second column."""
        self._number += 1
        path = self.writer.segment_path(schema.id, f"{self._number}.parquet")
        second = schema.columns[1].name
        given = values if values is not None else ["x"] * len(xids)
        after = [
            {"id": place, second: value}
            for place, value in zip(range(len(xids)), given, strict=True)
        ]
        rows = pa.table({"op": ["i"] * len(xids), "xid": list(xids), "after": after})
        pq.write_table(rows, path)
        return SegmentRef(
            str(path.relative_to(self.writer.root)),
            schema.id,
            schema.version,
            len(xids),
            size if size is not None else path.stat().st_size,
            ChangeCounts(inserts=len(xids)),
            defects=defects,
        )
