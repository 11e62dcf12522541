"""Tables whose rows or keys are not whole: each is its own trouble, and stops no other."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.postgres.ddl_triggers import install
from tests.conftest import Database
from tests.journal.conftest import StartReceiver

UNDER_ROOT = "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root)"


def make(database: Database, *statements: str) -> None:
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_rows_of_no_columns(database: Database, receiver: StartReceiver) -> None:
    make(database, "CREATE TABLE t ()")
    running = receiver()
    running.execute("INSERT INTO t DEFAULT VALUES")
    assert [change["op"] for change in running.changes("t")] == ["i"]


def test_old_rows_of_a_partition_whose_root_has_no_key(
    database: Database, receiver: StartReceiver
) -> None:
    make(
        database,
        "CREATE TABLE t (id int, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF t (PRIMARY KEY (id)) DEFAULT",
        UNDER_ROOT,
    )
    running = receiver()
    running.execute("INSERT INTO t VALUES (1, 1)")
    running.execute("DELETE FROM t")
    assert [change["op"] for change in running.changes("t")] == ["i", "d"]
    journal = running.journal
    flushes = journal.pending(running.schema(journal, "t").id, journal.start)
    defects = [d for flush in flushes for segment in flush.segments for d in segment.defects]
    assert any(defect.unsent for defect in defects), "so that the table is errored"


@pytest.mark.since(15)
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_part_of_a_key_is_none(
    database: Database, receiver: StartReceiver, identity: str
) -> None:
    make(
        database,
        "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (a, b))",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "CREATE TABLE marker (id bigserial PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR TABLE t (a, c), marker WITH (publish = 'insert')",
    )
    running = receiver()
    running.execute("INSERT INTO t VALUES (1, 1, 1), (1, 2, 2)")
    rows: list[Any] = [change["after"] for change in running.changes("t")]
    assert rows == [{"a": 1, "c": 1}, {"a": 1, "c": 2}]
    assert running.schema(running.journal, "t").key == ()


def test_a_key_that_is_called_something_else_since_is_whole(
    database: Database, receiver: StartReceiver
) -> None:
    make(database, "CREATE TABLE t (a int, b int, PRIMARY KEY (a, b))")
    running = receiver()
    running.execute("BEGIN")
    running.execute("INSERT INTO t VALUES (1, 1)")
    running.execute("ALTER TABLE t RENAME b TO c")
    running.execute("COMMIT")
    running.catch_up()
    schemas = [s for m in running.journal._manifests for s in m.schemas if s.name.name == "t"]
    assert [column.name for column in schemas[0].key] == ["a", "b"]


@pytest.mark.parametrize(
    ("leaf", "root", "goes_on"),
    [
        ("DEFAULT", "FULL", True),
        ("FULL", "USING INDEX other", True),
        ("DEFAULT", "USING INDEX other", False),
    ],
)
def test_rows_go_on_under_a_root_whose_identity_alone_has_changed(
    database: Database, receiver: StartReceiver, leaf: str, root: str, goes_on: bool
) -> None:
    """Postgres does not tell of it. Where old rows lack the new key, they stay with the old one."""
    make(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF t DEFAULT",
        f"ALTER TABLE leaf REPLICA IDENTITY {leaf}",
        "CREATE UNIQUE INDEX other ON t (v, id)",
        UNDER_ROOT,
    )
    with database.connect() as connection:
        install(connection)
    running = receiver()
    running.execute("INSERT INTO t VALUES (1, 1)")
    before = running.schema(running.catch_up(), "t")
    running.execute(f"ALTER TABLE t REPLICA IDENTITY {root}")
    running.execute("DELETE FROM t")
    announced = running.schema(running.catch_up(), "t")
    assert announced.version > before.version
    inserted, deleted = running.changes("t")
    *_, last = running.journal.pending(announced.id, before.version)
    rows_in = announced if goes_on else before
    assert [segment.schema_version for segment in last.segments] == [rows_in.version]
    assert {c.name: deleted["before"][c.name] for c in rows_in.key} == {
        c.name: inserted["after"][c.name] for c in rows_in.key
    }
