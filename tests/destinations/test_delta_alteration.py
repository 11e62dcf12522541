"""Schema changes that a Delta table follows in place, and those that it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.destinations import DeltaDestination
from penstock.destinations.delta.alteration import plan
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.schema import (
    STRING,
    ColumnSchema,
    DdlNote,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)
from penstock.testing.stage import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT, INTEGER, LONG = (ValueType(k) for k in (ValueKind.SHORT, ValueKind.INTEGER, ValueKind.LONG))
FLOAT, DOUBLE, DATE = (ValueType(k) for k in (ValueKind.FLOAT, ValueKind.DOUBLE, ValueKind.DATE))
LOCAL = ValueType(ValueKind.TIMESTAMP_NTZ)


def decimal(precision: int, scale: int) -> ValueType:
    return ValueType(ValueKind.DECIMAL, precision, scale)


OIDS = {
    ValueKind.SHORT: 21,
    ValueKind.INTEGER: 23,
    ValueKind.LONG: 20,
    ValueKind.FLOAT: 700,
    ValueKind.DOUBLE: 701,
    ValueKind.DATE: 1082,
    ValueKind.TIMESTAMP_NTZ: 1114,
    ValueKind.DECIMAL: 1700,
    ValueKind.STRING: 25,
}


def column(name: str, number: int, type: ValueType = INTEGER) -> ColumnSchema:  # noqa: A002
    digits = (type.precision or 0) << 16 | (type.scale or 0)
    return ColumnSchema(name, number, type, OIDS[type.kind], digits)


ID = ColumnSchema("id", 1, LONG, 20, nullable=False, key_position=0)
OLD = TableSchema(
    TableId(1),
    TableName("public", "t"),
    (ID, column("a", 2), column("b", 3, STRING), column("c", 4, decimal(6, 2))),
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "a": 10, "b": "one", "c": Decimal("1.50")},
    {"id": 2, "a": None, "b": None, "c": None},
]


A, B, C = OLD.columns[1:]


def changed(
    *columns: ColumnSchema, old: TableSchema = OLD, rewritten: bool = False, **fills: str
) -> SchemaChange:
    """To these columns, with values of new ones in older rows."""
    numbers = {c.name: c.number for c in columns}
    texts = tuple((numbers[name], text) for name, text in fills.items())
    types = {c.number: c.type for c in old.columns}
    recast = any(types.get(c.number, c.type) != c.type for c in columns)
    note = DdlNote(7, rewritten, recast=recast, fills=texts)
    return SchemaChange(old, replace(old, columns=(ID, *columns), note=note))


def chain(*steps: tuple[Sequence[ColumnSchema], Mapping[str, str]]) -> list[SchemaChange]:
    """One change after the other."""
    changes: list[SchemaChange] = []
    for columns, fills in steps:
        old = changes[-1].new if changes else OLD
        changes.append(changed(*columns, old=old, **fills))
    return changes


B_RENAMED, A_WIDE = column("b b", 3, STRING), column("a", 2, LONG)
C_WIDE, D, E = column("c", 4, decimal(10, 4)), column("d", 5, DATE), column("e", 6)
F, G = column("f", 7, STRING), column("g", 8, SHORT)
RENAMED, ADDED, WIDENED, FILLED, SEVERAL = chain(
    ((A, B_RENAMED, C), {}),
    ((A, B_RENAMED, C, E), {}),
    ((A_WIDE, B_RENAMED, C_WIDE, E), {}),
    ((A_WIDE, B_RENAMED, C_WIDE, E, F, D), {"d": "2024-02-29", "f": "it's, {new}"}),
    ((A_WIDE, C_WIDE, F, D, G), {"g": "3"}),
)
ONE, LEAP = Decimal("1.5000"), date(2024, 2, 29)


@pytest.fixture
def stage(tmp_path: Path, spark: SparkSession) -> Stage:
    stage = Stage(lambda: DeltaDestination(tmp_path / "lake"), lambda *_: [], OLD, tmp_path, spark)
    stage.copy(ROWS)
    return stage


def test_changes_are_followed_and_may_come_twice(stage: Stage, spark: SparkSession) -> None:
    for change, first in [
        (RENAMED, (10, "one", Decimal("1.50"))),
        (ADDED, (10, "one", Decimal("1.50"), None)),
        (WIDENED, (10, "one", ONE, None)),
        (FILLED, (10, "one", ONE, None, "it's, {new}", LEAP)),
        (SEVERAL, (10, ONE, "it's, {new}", LEAP, 3)),
    ]:
        if change is SEVERAL:  # as a crash between its steps would leave it
            half = changed(A_WIDE, C_WIDE, F, D, old=change.old)
            assert stage.destination.change_schema(half) is SchemaChangeAction.CONTINUE
        for _ in range(2):
            assert stage.destination.change_schema(change) is SchemaChangeAction.CONTINUE
            stage.restart()
        assert isinstance(stage.destination, DeltaDestination)
        path = stage.destination.path(OLD.name)
        frame = spark.newSession().read.format("delta").load(path)
        assert frame.columns == [c.name for c in change.new.columns]
        rows = sorted(tuple(row) for row in frame.collect())
        assert [row[0] for row in rows] == [1, 2]
        assert rows[0][1:] == first


NOT_IN_PLACE: list[SchemaChange] = [
    replace(changed(A, B), new=replace(OLD, columns=(ID, A, B))),  # nobody said what was done
    changed(A, B, C, rewritten=True),
    changed(column("a", 2, SHORT), B, C),
    changed(column("a", 2, STRING), B, C),
    changed(A, B, column("c", 4, decimal(6, 4))),
    changed(column("a", 9), B, C),
    changed(column("B", 2), C),
    changed(A, B, C, column("d", 5, DATE), d="infinity"),
    replace(changed(A), new=replace(OLD, name=TableName("public", "u"), note=DdlNote(7))),
]


@pytest.mark.parametrize("change", NOT_IN_PLACE, ids=str)
def test_what_cannot_be_followed_in_place(change: SchemaChange) -> None:
    assert plan(change) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [(SHORT, INTEGER), (SHORT, LONG), (INTEGER, DOUBLE), (FLOAT, DOUBLE), (DATE, LOCAL)],
    ids=str,
)
def test_types_that_widen(old: ValueType, new: ValueType) -> None:
    before = replace(OLD, columns=(ID, column("a", 2, old)))
    after = replace(OLD, columns=(ID, column("a", 2, new)), note=DdlNote(7))
    assert plan(SchemaChange(before, after)) is not None
    assert plan(SchemaChange(after, replace(before, note=DdlNote(8)))) is None
