"""A schema change followed in place: what it takes, and doing it.

Renaming and dropping columns, and widening their types, are commits without data:
Delta maps columns by name and reads older files as they are. A new column is one too,
where older rows have NULL in it; where they show a default, the table is rewritten with
it in one commit, from its own rows. All of it needs the source's word (`DdlNote`) that
rows hold no other values besides; what cannot be done here is copied again.

A change may come twice, when we died after the first time. So every step looks at the
table first, and does only what is not done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.destinations.delta import statements
from penstock.destinations.delta.statements import quoted
from penstock.destinations.schema_change import SchemaChange
from penstock.postgres.types import spark_type
from penstock.schema import ColumnSchema, TableSchema, ValueKind, ValueType
from penstock.spark.frames import data_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField

_FILLS = "penstock_fills"

# What Delta can read as the other without a rewrite, and Postgres casts to the same.
_WIDER = {
    ValueKind.SHORT: {ValueKind.INTEGER, ValueKind.LONG, ValueKind.DOUBLE},
    ValueKind.INTEGER: {ValueKind.LONG, ValueKind.DOUBLE},
    ValueKind.FLOAT: {ValueKind.DOUBLE},
    ValueKind.DATE: {ValueKind.TIMESTAMP_NTZ},
}


def plan(change: SchemaChange) -> Alteration | None:
    """How to follow a change in place; None where the table has to be copied again."""
    note = change.note
    if note is None or change.rewrites or change.old.name != change.new.name:
        return None
    if not all(widens(old.type, new.type) for old, new in change.retyped):
        return None
    if not change.new.columns or not _tellable(change):
        return None
    texts = dict(note.fills)
    fills = {
        column.name: value
        for column in change.added
        if (value := _fill(column, texts.get(column.number))) is not None
    }
    if any(value.null_count for value in fills.values()):
        return None  # a value that the type cannot hold: the copy says which, and what to do
    return Alteration(change, fills)


def widens(old: ValueType, new: ValueType) -> bool:
    """Whether Delta can change a column's type without touching its files."""
    if old.kind is ValueKind.DECIMAL and new.kind is ValueKind.DECIMAL:
        (p, s), (q, t) = (_digits(old), _digits(new))
        return t >= s and q - t >= p - s
    return new.kind in _WIDER.get(old.kind, ())


def _digits(decimal: ValueType) -> tuple[int, int]:
    assert decimal.precision is not None
    assert decimal.scale is not None
    return decimal.precision, decimal.scale


def _tellable(change: SchemaChange) -> bool:
    """Whether the table's columns tell by their names alone which steps are done already."""
    gone = [*(column.name for column in change.dropped), *(old for old, _ in change.renamed)]
    come = [*(column.name for column in change.added), *(new for _, new in change.renamed)]
    return not _lower(gone) & _lower(come)


def _lower(names: Iterable[str]) -> set[str]:
    return {name.lower() for name in names}


def _fill(column: ColumnSchema, text: str | None) -> pa.Array | None:
    import numpy as np

    from penstock.postgres.values import TextColumn, decode  # with its kernels: slow to load

    if text is None:
        return None
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    start, length = np.zeros(1, np.int64), np.array([len(data)], np.int32)
    return decode(TextColumn(data, start, length), column.type).array


@dataclass(frozen=True)
class Alteration:
    """A change, and the values of new columns in rows that are there (arrays of one)."""

    change: SchemaChange
    fills: dict[str, pa.Array]

    @property
    def table(self) -> TableSchema:
        return self.change.new

    @property
    def maps_columns(self) -> bool:
        return bool(self.change.dropped or self.change.renamed)

    @property
    def widens_types(self) -> bool:
        return bool(self.change.retyped)

    def apply(self, session: SparkSession, path: str) -> None:
        at = statements.table_at(path)
        there = {field.name.lower(): field for field in _schema(session, path)}
        for old, new in self.change.renamed:
            if old.lower() in there:
                session.sql(f"ALTER TABLE {at} RENAME COLUMN {quoted(old)} TO {quoted(new)}")
        dropped = [quoted(c.name) for c in self.change.dropped if c.name.lower() in there]
        if dropped:
            session.sql(f"ALTER TABLE {at} DROP COLUMNS ({', '.join(dropped)})")
        for _, column in self.change.retyped:
            kind = spark_type(column.type)
            found = there.get(column.name.lower())
            if found is None or found.dataType.simpleString() != kind:
                session.sql(f"ALTER TABLE {at} ALTER COLUMN {quoted(column.name)} TYPE {kind}")
        added = [column for column in self.change.added if column.name.lower() not in there]
        if any(column.name in self.fills for column in added):
            self._fill_in(session, path)
        elif added:
            columns = ", ".join(f"{quoted(c.name)} {spark_type(c.type)}" for c in added)
            session.sql(f"ALTER TABLE {at} ADD COLUMNS ({columns})")

    def _fill_in(self, session: SparkSession, path: str) -> None:
        """Rewrite the table from its own rows, with its new columns, in one commit."""
        from pyspark.sql import functions as F  # noqa: N812

        names = {name: f"f{n}" for n, name in enumerate(self.fills)}
        fills = session.createDataFrame(pa.table({names[n]: v for n, v in self.fills.items()}))
        new = {column.name for column in self.change.added}
        columns = []
        for column in self.table.columns:
            value = F.col(f"own.{quoted(column.name)}")
            if column.name in new:
                name = names.get(column.name)
                value = F.col(f"{_FILLS}.{name}") if name else F.lit(None)
            columns.append(value.cast(data_type(column.type)).alias(column.name))
        own = session.read.format("delta").load(path).select(F.struct("*").alias("own"))
        rows = own.crossJoin(F.broadcast(fills.alias(_FILLS))).select(*columns)
        writer = rows.write.format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").save(path)


def _schema(session: SparkSession, path: str) -> Iterable[StructField]:
    return session.read.format("delta").load(path).schema.fields
