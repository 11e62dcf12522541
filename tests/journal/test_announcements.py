"""What the journal knows of tables that change, where event triggers announce it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.journal.journal import Journal
from penstock.postgres.ddl_triggers import install, uninstall
from penstock.schema import ZERO_LSN, TableSchema
from tests.conftest import Database
from tests.journal.conftest import Running, StartReceiver


@dataclass
class Table:
    """Table `t` of a running receiver's database, which has the triggers."""

    running: Running

    def alter(self, *statements: str) -> list[TableSchema]:
        """The versions that these statements begin."""
        before = len(self.versions(self.running.catch_up()))
        for statement in statements:
            self.running.execute(statement)
        return self.versions(self.running.catch_up())[before:]

    def versions(self, journal: Journal) -> list[TableSchema]:
        found = [s for t in journal.tables() for s in self._of(journal, t) if s.name.name == "t"]
        return sorted(found, key=lambda schema: schema.version)

    def _of(self, journal: Journal, table_id: object) -> list[TableSchema]:
        return [s for m in journal._manifests for s in m.schemas if s.id == table_id]


@pytest.fixture
def table(database: Database, receiver: StartReceiver) -> Table:
    with database.connect() as connection:
        install(connection)
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, v integer DEFAULT 5, w text)")
    return Table(receiver())


def columns(schema: TableSchema) -> list[tuple[int, str]]:
    return [(column.number, column.name) for column in schema.columns]


def test_each_statement_begins_a_version_with_or_without_rows(table: Table) -> None:
    renamed, added, dropped = table.alter(
        "ALTER TABLE t RENAME v TO n",
        "ALTER TABLE t ADD d date DEFAULT '2024-02-29', ADD e text, ADD f text DEFAULT 'a,\"b'",
        "ALTER TABLE t DROP w",
    )
    assert columns(renamed) == [(1, "id"), (2, "n"), (3, "w")]
    assert [column.name for column in renamed.key] == ["id"]
    assert columns(added)[3:] == [(4, "d"), (5, "e"), (6, "f")]
    assert added.note is not None
    assert added.note.fills == ((4, "2024-02-29"), (6, 'a,"b'))
    assert columns(dropped) == [(1, "id"), (2, "n"), (4, "d"), (5, "e"), (6, "f")]
    for schema in (renamed, added, dropped):
        assert schema.note is not None
        assert not schema.note.rewritten
    # Rows that follow are in the version that was announced.
    assert table.alter("INSERT INTO t (id) VALUES (1)") == []
    (row,) = table.running.changes("t")
    assert row["after"]["n"] == 5


@pytest.mark.parametrize(
    ("statement", "rewritten"),
    [
        ("ALTER TABLE t ALTER v TYPE bigint", False),
        ("ALTER TABLE t ALTER w TYPE varchar(10)", False),
        ("ALTER TABLE t ALTER v TYPE bigint USING v * 2", True),
        ("ALTER TABLE t ALTER v TYPE integer USING v + 1", True),
        ("ALTER TABLE t ADD at timestamptz DEFAULT clock_timestamp()", True),
        ("ALTER TABLE t ADD g integer GENERATED ALWAYS AS (v + 1) STORED", True),
        ("DO $$ BEGIN ALTER TABLE t ALTER v TYPE bigint; END $$", True),
        ("ALTER TABLE t ADD b box DEFAULT '(1,1),(0,0)'", True),
        ("ALTER TABLE t ADD b int[] DEFAULT '{1,2}'", False),
    ],
)
def test_a_version_says_whether_rows_may_hold_other_values(
    table: Table, statement: str, rewritten: bool
) -> None:
    (version,) = table.alter(statement)
    assert version.note is not None
    assert version.note.rewritten is rewritten
    assert version.note.recast is (statement.startswith("ALTER TABLE t ALTER") and not rewritten)


def test_a_table_that_somebody_has_locked_holds_up_no_announcement(
    table: Table, database: Database
) -> None:
    table.running.stop()
    table.running.execute("CREATE TABLE other (id int PRIMARY KEY)")
    table.running.execute("ALTER TABLE t ADD x int")
    with database.connect() as altering, altering.transaction():
        altering.execute("LOCK TABLE t, other")
        table.running.start()
        (added,) = table.versions(table.running.catch_up())
    assert columns(added)[-1] == (4, "x")


def test_a_table_that_was_unlogged_may_hold_other_values(table: Table) -> None:
    versions = table.alter(
        "ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (1)", "ALTER TABLE t SET LOGGED"
    )
    assert [version.note and version.note.rewritten for version in versions] == [True]


def test_what_changes_no_column_begins_no_version(table: Table) -> None:
    table.alter("ALTER TABLE t RENAME v TO n")
    assert (
        table.alter(
            "ALTER TABLE t ALTER w SET STATISTICS 10",
            "ALTER TABLE t ADD CHECK (id > 0)",
            "ALTER TABLE t SET (fillfactor = 80)",
            "VACUUM FULL t",
            "CREATE TABLE u (id int)",
            "ALTER TABLE u ADD v int",
        )
        == []
    )


def required(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns if not column.nullable]


def test_not_null_that_comes_and_goes_begins_versions_of_the_same_shape(table: Table) -> None:
    first, second, keyless = table.alter(
        "ALTER TABLE t ALTER v SET NOT NULL",
        "ALTER TABLE t ALTER v SET NOT NULL",
        "ALTER TABLE t ALTER v DROP NOT NULL, ALTER w SET NOT NULL",
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
    )
    assert required(first) == ["id", "v"]
    assert required(second) == required(keyless) == ["id", "w"]
    assert second.same_shape(first)
    assert second.note is not None
    assert not second.note.rewritten
    assert not second.note.reshaped
    assert keyless.note is not None
    assert keyless.note.reshaped


def test_not_null_is_announced_also_where_the_catalog_was_ahead(table: Table) -> None:
    """Nothing announced the version of the first row, and the catalog has what came later."""
    ahead, announced = table.alter(
        "BEGIN",
        "INSERT INTO t VALUES (1, 1, 'w')",
        "ALTER TABLE t ALTER v SET NOT NULL",
        "INSERT INTO t VALUES (2, 2, 'w')",
        "COMMIT",
    )
    assert required(ahead) == required(announced) == ["id", "v"]
    assert ahead.note is None
    assert announced.note is not None
    pending = table.running.journal.pending(ahead.id, ZERO_LSN)
    versions = [segment.schema_version for flush in pending for segment in flush.segments]
    assert versions == [ahead.version, announced.version]


@pytest.mark.since(18)
def test_not_null_counts_when_all_rows_keep_to_it(table: Table) -> None:
    table.alter("ALTER TABLE t ALTER w SET NOT NULL", "INSERT INTO t VALUES (1, NULL, 'w')")
    assert table.alter("ALTER TABLE t ADD CONSTRAINT n NOT NULL v NOT VALID") == []
    (valid,) = table.alter("UPDATE t SET v = 1", "ALTER TABLE t VALIDATE CONSTRAINT n")
    assert required(valid) == ["id", "v", "w"]


def test_not_null_of_a_root_counts_for_what_is_sent_under_its_name(
    database: Database, receiver: StartReceiver
) -> None:
    with database.connect() as connection:
        install(connection)
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE leaf PARTITION OF t DEFAULT")
        connection.execute(
            "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)"
        )
    table = Table(receiver())
    table.alter("INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ALTER id SET STATISTICS 10")
    (tighter,) = table.alter(
        "ALTER TABLE leaf ALTER v SET NOT NULL",  # which is nobody's matter but its own
        "ALTER TABLE t ALTER v SET NOT NULL",
        "INSERT INTO t VALUES (2, 2)",
    )
    assert required(tighter) == ["id", "v"]
    *_, last = table.running.journal.pending(tighter.id, ZERO_LSN)
    assert [segment.schema_version for segment in last.segments] == [tighter.version]


@pytest.mark.since(18)
def test_a_generated_column_that_is_virtual_is_not_announced(
    database: Database, receiver: StartReceiver
) -> None:
    with database.connect() as connection:
        install(connection)
        connection.execute("""
            CREATE TABLE t (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 3) STORED,
                            v int GENERATED ALWAYS AS (id * 2) VIRTUAL)
        """)
        connection.execute(
            "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_generated_columns = stored)"
        )
    table = Table(receiver())
    (added,) = table.alter("ALTER TABLE t ADD w int", "INSERT INTO t (id) VALUES (1)")
    assert columns(added) == [(1, "id"), (2, "s"), (4, "w")]


def test_tables_of_a_type_hear_of_what_the_type_goes_through(
    database: Database, receiver: StartReceiver
) -> None:
    with database.connect() as connection:
        install(connection)
        connection.execute("CREATE TYPE kind AS (id int, at timestamp)")
        connection.execute("CREATE TYPE label AS ENUM ('a')")
        connection.execute("CREATE TABLE t OF kind (PRIMARY KEY (id)) PARTITION BY LIST (id)")
        connection.execute("CREATE TABLE leaf PARTITION OF t DEFAULT")
        connection.execute(
            "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)"
        )
    table = Table(receiver())
    rewritten, renamed = table.alter(
        "ALTER TYPE kind ALTER ATTRIBUTE at TYPE timestamp(0) CASCADE",
        "ALTER TYPE kind RENAME ATTRIBUTE at TO since CASCADE",
        "ALTER TYPE label ADD VALUE 'b'",
        "ALTER TYPE kind RENAME TO sort",
    )
    assert rewritten.note is not None
    assert rewritten.note.rewritten
    assert columns(renamed) == [(1, "id"), (2, "since")]
    assert renamed.note is not None
    assert not renamed.note.rewritten


def test_names_survive_quickly_changing_places(table: Table) -> None:
    """The catalog shows the last of these alone when the first is received."""
    table.running.execute("BEGIN")
    table.running.execute("ALTER TABLE t RENAME v TO x")
    table.running.execute("INSERT INTO t (id, x, w) VALUES (1, 1, 'one')")
    table.running.execute("SAVEPOINT s")
    table.running.execute("ALTER TABLE t DROP w")
    table.running.execute("ROLLBACK TO s")
    table.running.execute("ALTER TABLE t RENAME w TO v")
    table.running.execute("INSERT INTO t (id, x, v) VALUES (2, 2, 'two')")
    table.running.execute("COMMIT")
    first, second = table.versions(table.running.catch_up())
    assert columns(first) == [(1, "id"), (2, "x"), (3, "w")]
    assert columns(second) == [(1, "id"), (2, "x"), (3, "v")]
    assert [change["after"]["id"] for change in table.running.changes("t")] == [1, 2]


def test_partitions_hear_of_what_their_parent_goes_through(
    database: Database, receiver: StartReceiver
) -> None:
    with database.connect() as connection:
        install(connection)
        connection.execute("CREATE TABLE p (id int, v int) PARTITION BY LIST (id)")
        connection.execute("CREATE TABLE t PARTITION OF p FOR VALUES IN (1)")
        connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    table = Table(receiver())
    (renamed,) = table.alter("ALTER TABLE p RENAME v TO w")
    assert columns(renamed) == [(1, "id"), (2, "w")]
    (retyped,) = table.alter("ALTER TABLE p ALTER w TYPE text USING 'x' || w")
    assert retyped.note is not None
    assert retyped.note.rewritten


def test_a_root_tells_what_rows_of_its_partitions_show_in_a_new_column(
    database: Database, receiver: StartReceiver
) -> None:
    with database.connect() as connection:
        install(connection)
        connection.execute("CREATE TABLE t (id int, v int) PARTITION BY LIST (id)")
        connection.execute("CREATE TABLE inner_t PARTITION OF t DEFAULT PARTITION BY LIST (v)")
        connection.execute("CREATE TABLE leaf (gone int, v int, id int)")
        connection.execute("ALTER TABLE leaf DROP gone")
        connection.execute("ALTER TABLE inner_t ATTACH PARTITION leaf FOR VALUES IN (1)")
        connection.execute(
            "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)"
        )
    table = Table(receiver())
    (added,) = table.alter("ALTER TABLE t ADD d numeric(6,2) DEFAULT 12.5, ADD e int")
    assert added.note is not None
    assert added.note.fills == ((3, "12.50"),)
    assert not added.note.rewritten


def test_a_restarted_receiver_names_no_version_twice(table: Table) -> None:
    table.alter("ALTER TABLE t RENAME v TO n", "INSERT INTO t (id) VALUES (1)")
    table.running.stop()
    table.running.execute("ALTER TABLE t RENAME n TO m")
    table.running.start()
    versions = table.versions(table.running.catch_up())
    assert [columns(version)[1][1] for version in versions] == ["n", "m"]


def test_an_announcement_that_nobody_understands_is_passed_over(table: Table) -> None:
    table.running.execute("SELECT pg_logical_emit_message(true, 'penstock.ddl', 'what?')")
    table.running.execute("SELECT pg_logical_emit_message(false, 'penstock.ddl', 'what?')")
    table.running.execute("SELECT pg_logical_emit_message(true, 'penstock', 'what?')")
    table.running.execute("INSERT INTO t (id) VALUES (1)")
    assert len(table.running.changes("t")) == 1


@pytest.mark.parametrize(
    "wrong", [{"identity": "?"}, {"oid": -1}, {"columns": [{"number": 1}]}, {"name": "\ud800"}]
)
def test_a_message_that_anybody_wrote_stops_nothing(table: Table, wrong: dict[str, Any]) -> None:
    connection = table.running.connection
    (oid,) = connection.execute("SELECT 't'::regclass::oid::bigint").fetchone() or (0,)
    message = {"oid": oid, "schema": "public", "name": "t", "identity": "d", "plain": True}
    connection.execute(
        "SELECT pg_logical_emit_message(true, 'penstock.ddl', %s::text)",
        [json.dumps(message | {"key": [], "columns": []} | wrong)],
    )
    table.running.execute("INSERT INTO t (id) VALUES (1)")
    assert len(table.running.changes("t")) == 1


def test_rows_tell_of_changes_where_no_trigger_does(table: Table) -> None:
    uninstall(table.running.connection)
    assert table.alter("ALTER TABLE t RENAME v TO n") == []
    (version,) = table.alter("INSERT INTO t (id) VALUES (1)")
    assert columns(version) == [(1, "id"), (2, "n"), (3, "w")]
    assert version.note is None


def test_an_announced_version_stays_until_its_table_has_passed_it(table: Table) -> None:
    (version,) = table.alter("ALTER TABLE t RENAME v TO n")
    journal = table.running.journal
    (flush,) = journal.pending(version.id, ZERO_LSN)
    assert flush.announced == (version.version,)
    others = {t: journal.end for t in journal.tables() if t != version.id}
    journal.retire(others)
    assert table.running.journal.pending(version.id, ZERO_LSN) == [flush]
    journal.retire({version.id: journal.end})
    assert table.running.journal.pending(version.id, ZERO_LSN) == []
    assert table.running.journal.latest_schemas()[version.id] == version


def test_a_root_that_is_renamed_goes_on_under_its_new_name(
    database: Database, receiver: StartReceiver
) -> None:
    """Postgres tells of a partition's root once, and not again when only that is renamed."""
    with database.connect() as connection:
        install(connection)
        connection.execute("CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        connection.execute("CREATE TABLE leaf PARTITION OF r DEFAULT")
        connection.execute(
            "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)"
        )
    running = receiver()
    running.execute("INSERT INTO r VALUES (1)")
    running.catch_up()
    running.execute("ALTER TABLE r RENAME TO s")
    running.execute("INSERT INTO s VALUES (2)")
    journal = running.catch_up()
    root = running.schema(journal, "s")
    *_, last = journal.pending(root.id, ZERO_LSN)
    assert [segment.schema_version for segment in last.segments] == [root.version]
    assert [change["after"]["id"] for change in running.changes("s")] == [1, 2]
