"""What a column's values are after its type changed, with Postgres as the judge."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.destinations.schema_change import SchemaChange
from penstock.postgres.catalog import table_schema
from penstock.postgres.connection import Session
from penstock.postgres.ddl import Announcement
from penstock.schema import TableSchema
from tests.conftest import Database


@dataclass(frozen=True)
class Case:
    old: str
    new: str
    values: tuple[str, ...]


# Values whose text, or value, another type may change.
CASES = [
    Case("smallint", "integer", ("-32768", "7")),
    Case("smallint", "double precision", ("-32768", "7")),
    Case("integer", "bigint", ("-2147483648",)),
    Case("integer", "oid", ("-1",)),
    Case("integer", "numeric", ("5",)),
    Case("real", "double precision", ("0.1", "NaN")),
    Case("date", "timestamp", ("2024-02-29",)),
    Case("timestamp", "timestamp(0)", ("2024-02-29 12:00:00.5",)),
    Case("timestamp", "timestamptz", ("2024-02-29 12:00:00",)),
    Case("varchar(10)", "varchar(20)", ("a ",)),
    Case("varchar(10)", "text", ("a ",)),
    Case("text", "varchar(1)", ("a ",)),
    Case("text", "char(5)", ("a",)),
    Case("char(5)", "char(10)", ("a",)),
    Case("json", "jsonb", ('{"b": 1,  "a": 2}',)),
    Case("cidr", "inet", ("10.0.0.1/32",)),
    Case("numeric", "numeric(50,2)", ("1",)),
    Case("numeric(6,2)", "numeric(8,2)", ("1.25",)),
    Case("numeric(6,2)", "numeric(8,4)", ("1.25",)),
    Case("time", "interval", ("12:00",)),
    Case("oid", "regclass", ("1259",)),
]


TYPED = {
    ("smallint", "integer"),
    ("smallint", "double precision"),
    ("integer", "bigint"),
    ("real", "double precision"),
    ("date", "timestamp"),
    ("numeric(6,2)", "numeric(8,2)"),
    ("numeric(6,2)", "numeric(8,4)"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.old} to {case.new}")
def test_a_column_that_is_said_to_keep_its_values_does(database: Database, case: Case) -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE t (v {case.old})".encode())
        for value in case.values:
            connection.execute("INSERT INTO t VALUES (%s)", [value])
        before, values = _now(connection)
        filenode = "SELECT pg_relation_filenode('t')"
        file = connection.execute(filenode).fetchone()
        connection.execute(f"ALTER TABLE t ALTER v TYPE {case.new}".encode())
        recast = connection.execute(filenode).fetchone() != file
        after, changed = _now(connection)
    told = Announcement(before.id.oid, before.name, "d", (), (), plain=True)
    note = told.note(1, 4 if recast else 0)
    change = SchemaChange(before, TableSchema(after.id, after.name, after.columns, note=note))
    if before.same_columns(after):
        # Nothing but our word tells that there is something to follow.
        assert change.rewrites or values == changed
    elif not change.rewrites:
        # Whoever keeps them may cast them: as numbers and moments they are the same.
        assert (case.old, case.new) in TYPED


def _now(connection: Session) -> tuple[TableSchema, list[str]]:
    row = connection.execute("SELECT 't'::regclass::oid").fetchone()
    assert row is not None
    schema = table_schema(connection, row[0])
    assert schema is not None
    return schema, [text for (text,) in connection.execute("SELECT v::text FROM t")]
