"""What a schema change says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.destinations.base import Destination
from penstock.destinations.schema_change import SchemaChange
from penstock.schema import (
    ColumnSchema,
    DdlNote,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)

LONG, INTEGER = ValueType(ValueKind.LONG), ValueType(ValueKind.INTEGER)


def table(*columns: ColumnSchema, name: str = "t") -> TableSchema:
    return TableSchema(TableId(1), TableName("public", name), columns)


ID = ColumnSchema("id", 1, LONG, 20, key_position=0)
A, B = (ColumnSchema(name, n, INTEGER, 23) for name, n in (("a", 2), ("b", 3)))


@pytest.mark.parametrize(
    ("old", "new", "told", "additive"),
    [
        (table(ID, A), table(ID, A, B), "added b", True),
        (table(ID, A, B), table(ID, A), "dropped b", False),
        (
            table(ID, A),
            table(ID, ColumnSchema("b", 2, INTEGER, 23)),
            "renamed a to b",
            False,
        ),
        (
            table(ID, A),
            table(ID, ColumnSchema("a", 2, LONG, 20)),
            "a has another type",
            False,
        ),
        (
            table(ID, A),
            table(ID, ColumnSchema("a", 4, INTEGER, 23)),
            "dropped a, added a",
            False,
        ),
        (table(ID, A), table(ID, A, name="u"), "renamed to public.u", False),
        (
            table(ID, A),
            table(ID, ColumnSchema("b", -2, INTEGER, 23)),  # whose number is not known
            "dropped a, added b",
            False,
        ),
        (
            table(ID, A),
            replace(table(ID, A), note=DdlNote(1, rewritten=True)),
            "its rows were rewritten",
            True,
        ),
        (
            table(ID, A),
            table(ColumnSchema("id", 1, LONG, 20), A),
            "key, replica identity or order of columns",
            True,
        ),
        (table(ID, A), table(ID, replace(A, nullable=False)), "a is not NULL", True),
        (
            table(ID, replace(A, nullable=False)),
            table(replace(ID, key_position=None, nullable=False), A, B),
            "added b, id is not NULL, a may be NULL",
            True,
        ),
        (
            table(replace(ID, key_position=None), A),
            table(replace(ID, nullable=False), A),
            "key, replica identity or order of columns, id is not NULL",
            True,
        ),
    ],
)
def test_a_change_says_what_it_is(
    old: TableSchema, new: TableSchema, told: str, additive: bool
) -> None:
    change = SchemaChange(old, new)
    assert str(change) == told
    assert change.additive is additive
    assert change.only_nullability is (told == "a is not NULL")


@pytest.mark.parametrize(
    ("new", "rewrites"),
    [
        (table(ID, A, B), False),
        (table(ID, replace(A, type=LONG, type_oid=20)), False),
        (table(ID, replace(A, type=LONG, type_oid=20), B), True),  # with whatever is in b
        (table(ID, replace(A, type=INTEGER, type_oid=25)), True),
    ],
)
def test_rows_that_were_cast_may_have_anything_in_new_columns(
    new: TableSchema, rewrites: bool
) -> None:
    note = DdlNote(1, recast=new.columns[1] != A)
    assert SchemaChange(table(ID, A), replace(new, note=note)).rewrites is rewrites


def test_a_key_that_the_stream_does_not_tell_may_be_too_young() -> None:
    def full(*columns: ColumnSchema) -> TableSchema:
        return replace(table(*columns), identity=ReplicaIdentity.FULL)

    bare, keyed = full(replace(ID, key_position=None), A), full(ID, A)
    other = full(replace(ID, key_position=None), replace(A, key_position=0))
    assert SchemaChange(bare, keyed).rewrites
    assert SchemaChange(keyed, other).rewrites
    assert not SchemaChange(keyed, bare).rewrites, "whole rows are told apart by themselves"
    assert not SchemaChange(keyed, replace(keyed, note=None)).rewrites
    assert not SchemaChange(bare, replace(keyed, note=DdlNote(7))).rewrites, "which is told in time"
    assert not SchemaChange(table(A), table(ID, A)).rewrites, "the stream tells of these keys"


@pytest.mark.parametrize(
    ("old", "new", "note", "action"),
    [
        (table(ID, A), table(ID, A, B), DdlNote(1), "continue"),
        (table(ID, A), table(ID, A, B), None, "resync"),
        (table(ID, A), table(ID, A, B), DdlNote(1, fills=((3, "7"),)), "resync"),
        (table(ID, A), table(ID, A, B), DdlNote(1, rewritten=True), "resync"),
        (table(ID, A), table(ID, A, replace(B, key_position=1)), DdlNote(1), "resync"),
        (table(ID, A), table(ID, replace(A, nullable=False)), DdlNote(1), "continue"),
        (table(ID, A, B), table(ID, A), DdlNote(1), "resync"),
        (table(ID, A), table(ID, replace(A, name="b")), DdlNote(1), "resync"),
    ],
)
def test_by_default_a_change_is_followed_where_the_rows_stay_right(
    old: TableSchema, new: TableSchema, note: DdlNote | None, action: str
) -> None:
    change = SchemaChange(old, replace(new, note=note))
    # The default of the contract: it uses nothing of the destination.
    assert Destination.change_schema(None, change).value == action  # type: ignore[arg-type]
