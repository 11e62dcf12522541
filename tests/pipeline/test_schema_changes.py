"""A table that changes while it is replicated: followed, or errored with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.destinations import MemoryDestination
from penstock.pipeline import copier
from penstock.pipeline.requests import Action, Request, Requests
from penstock.postgres.ddl_triggers import uninstall
from penstock.schema import TableId, TableSchema
from penstock.testing.postgres import wait_for
from tests.pipeline.conftest import TIMEOUT, Lake, Source


def by_id(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["id"]))


# Each makes values that no change in the stream tells of.
CHANGES = (
    "ALTER TABLE {t} ADD n integer NOT NULL DEFAULT 7",
    "ALTER TABLE {t} ADD at timestamptz DEFAULT clock_timestamp()",
    "ALTER TABLE {t} DROP v",
    "ALTER TABLE {t} RENAME v TO w",
    "ALTER TABLE {t} ALTER v TYPE integer USING length(v)",
    "ALTER TABLE {t} DROP v, ADD v text DEFAULT 'new'",
    "ALTER TABLE {t} ADD w text DEFAULT 'x'; ALTER TABLE {t} DROP v; ALTER TABLE {t} RENAME w TO v",
)


def test_changed_tables_are_followed_whether_or_not_they_are_written_to(source: Source) -> None:
    quiet = [f"quiet_{n}" for n in range(2)]
    busy = [f"busy_{n}" for n, _ in enumerate(CHANGES)]
    for table in quiet + busy:
        source.execute(
            f"CREATE TABLE {table} AS SELECT * FROM a",
            f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
            f"ALTER PUBLICATION pub ADD TABLE {table}",
        )
    destination = MemoryDestination()

    def differing() -> list[str]:
        source.catch_up(pipeline)
        return [
            table
            for table in quiet + busy
            if by_id(destination.rows(f"public.{table}")) != by_id(source.rows(table))
        ]

    with source.pipeline(destination=destination) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        for table in quiet + busy:
            change = CHANGES[int(table[-1])].format(t=table)
            source.execute(f"INSERT INTO {table} VALUES (1000, 'before')", change)
        for table in busy:
            source.execute(
                f"UPDATE {table} SET id = -id WHERE id % 7 = 0", f"DELETE FROM {table} WHERE id = 1"
            )
        wait_for(lambda: not differing(), "all tables to be as the source has them", TIMEOUT)
        for table in quiet + busy:
            source.execute(f"INSERT INTO {table} (id) VALUES (2000)")
        assert differing() == []


def test_changes_and_rows_between_them_in_one_transaction(source: Source) -> None:
    destination = MemoryDestination()
    with source.pipeline(destination=destination) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        with source.connection.transaction():
            source.execute(
                "INSERT INTO a VALUES (1001, 'old')",
                "ALTER TABLE a ADD n integer DEFAULT 1",
                "INSERT INTO a VALUES (1002, 'new', 2)",
                "SAVEPOINT s",
                "ALTER TABLE a DROP v",
                "INSERT INTO a VALUES (1003, 3)",
                "ROLLBACK TO s",
                "UPDATE a SET n = 5 WHERE id < 10",
                "ALTER TABLE a ALTER n TYPE bigint",
                "INSERT INTO a VALUES (1004, 'last', 1::bigint << 40)",
            )

        def equal() -> bool:
            source.catch_up(pipeline)
            return by_id(destination.rows("public.a")) == by_id(source.rows("a"))

        wait_for(equal, "the table to be as the source has it", TIMEOUT)


IN_PLACE = (
    "ALTER TABLE a RENAME v TO w",
    "UPDATE a SET w = 'renamed' WHERE id = 1",
    "ALTER TABLE a ADD n smallint, ADD d numeric(6,2) DEFAULT 1.25",
    "UPDATE a SET n = id WHERE id < 5",
    "ALTER TABLE a ALTER n TYPE bigint, DROP w",
    "INSERT INTO a VALUES (1000, 1::bigint << 40, 2), (1001, NULL, NULL)",
    "ALTER TABLE a RENAME id TO key",
    "UPDATE a SET key = -key WHERE key = 10",
    "ALTER TABLE a RENAME key TO id",  # after which nobody writes
)


def test_a_delta_table_follows_in_place(source: Source, lake: Lake) -> None:
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        copied = pipeline.status().table("public.a").state
        source.execute(*IN_PLACE)
        source.catch_up(pipeline)
        assert lake.rows("a") == source.rows("a")
        assert pipeline.status().table("public.a").state == copied  # the copy's id is in it
        # Values that Postgres computes come with another copy, and readers never miss it.
        source.execute("ALTER TABLE a ALTER n TYPE bigint USING n + 1")
        seen = []

        def equal() -> bool:
            seen.append(lake.frame("a").count())
            source.catch_up(pipeline)
            return lake.rows("a") == source.rows("a")

        wait_for(equal, "the table to be as the source has it", TIMEOUT)
        assert set(seen) == {len(source.rows("a"))}
        assert pipeline.status().table("public.a").state != copied


def test_copies_that_changes_overtake_are_made_again(
    source: Source, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        "a": ["DROP v"],  # the copy fails
        # The copy succeeds, with each column's values under the other's name.
        "b": ["RENAME v TO x", "RENAME w TO v", "RENAME x TO w"],
    }
    source.execute("ALTER TABLE b ADD w text", "INSERT INTO b VALUES (1, 'v', 'w')")
    extract = copier.extract

    def overtaken(session: Any, connection: Any, table: TableSchema, *rest: Any, **by: Any) -> Any:
        for change in changes.pop(table.name.name, ()):
            with source.database.connect() as altering:
                altering.execute(f"ALTER TABLE {table.name} {change}".encode())
        return extract(session, connection, table, *rest, **by)

    monkeypatch.setattr(copier, "extract", overtaken)
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.catch_up(pipeline)
        for table in ("a", "b"):
            assert lake.rows(table) == source.rows(table)


def test_a_history_keeps_what_it_has_and_takes_new_columns(source: Source, lake: Lake) -> None:
    lake.mode = "history"
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute(
            "UPDATE a SET v = 'x' WHERE id = 1",
            "ALTER TABLE a ADD n integer DEFAULT 7",
            "INSERT INTO a VALUES (1000, 'y', 8)",
            "ALTER TABLE a DROP v",
            "DELETE FROM a WHERE id = 1000",
            "INSERT INTO a VALUES (1001, 9)",
        )
        source.catch_up(pipeline)
        row = source.connection.execute("SELECT 'a'::regclass::oid").fetchone()
        assert row is not None
        Requests(pipeline.config.journal_path).add(Request(TableId(row[0]), Action.RESYNC))
        wait_for(lambda: lake.frame("a").where("op = 'r'").count() > 100)
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO a VALUES (1002, 10)")
        source.catch_up(pipeline)
    changes = lake.frame("a").where("op != 'r'").orderBy("commit_lsn", "tx_ordinal").collect()
    assert lake.frame("a").where("op = 'r'").count() == 100 + 101
    assert [
        (c.op, c.after and (c.after.id, c.after.v, c.after.n), c.before and c.before.id)
        for c in changes
    ] == [
        ("u", (1, "x", None), None),
        ("i", (1000, "y", 8), None),
        ("d", None, 1000),
        ("i", (1001, None, 9), None),
        ("i", (1002, None, 10), None),
    ]


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        ("freeze", "ALTER TABLE a ADD n integer"),
        ("additive", "ALTER TABLE a RENAME v TO w"),
    ],
)
def test_what_the_policy_does_not_allow_sets_the_table_aside(
    source: Source, policy: str, change: str
) -> None:
    destination = MemoryDestination()
    settings = {"destination": destination, "schema_change_policy": policy}
    with source.pipeline(**settings) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        before = destination.rows("public.a")
        source.execute(change)
        wait_for(
            lambda: pipeline.status().table("public.a").error, "the table to be errored", TIMEOUT
        )
        error = pipeline.status().table("public.a").error
        assert error is not None
        assert error.retry == "manual"
        assert f"schema_change_policy: {policy}" in error.reason
        assert "penstock resync" in error.solution
        assert destination.rows("public.a") == before
        assert pipeline.status().table("public.b").error is None


def test_a_table_that_is_not_to_be_copied_is_never_emptied_by_a_copy(source: Source) -> None:
    destination = MemoryDestination()
    with source.pipeline(destination=destination, table_sync_copy={"mode": "none"}) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO a VALUES (1000, 'x')")
        source.catch_up(pipeline)
        source.execute("ALTER TABLE a DROP v")
        wait_for(
            lambda: pipeline.status().table("public.a").error, "the table to be errored", TIMEOUT
        )
        error = pipeline.status().table("public.a").error
        assert error is not None
        assert "table_sync_copy" in error.reason
        assert destination.rows("public.a") == [{"id": 1000, "v": "x"}]


def test_an_addition_is_followed_where_only_additions_are(source: Source) -> None:
    destination = MemoryDestination()
    with source.pipeline(destination=destination, schema_change_policy="additive") as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("ALTER TABLE a ADD n integer DEFAULT 3")
        wait_for(
            lambda: by_id(destination.rows("public.a")) == by_id(source.rows("a")),
            "the new column",
            TIMEOUT,
        )


@pytest.mark.parametrize("announced", [True, False])
def test_a_key_that_is_younger_than_a_change_tells_no_rows_apart(
    source: Source, announced: bool
) -> None:
    """Under FULL the stream does not say what the key is, and the catalog has the one of now."""
    source.execute(
        "CREATE TABLE k (id int, v text)",
        "ALTER TABLE k REPLICA IDENTITY FULL",
        "INSERT INTO k VALUES (1, 'keep'), (1, 'twice'), (2, 'y')",
        "ALTER PUBLICATION pub ADD TABLE k",
    )
    destination = MemoryDestination()
    with source.pipeline(destination=destination) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        if not announced:
            uninstall(source.connection)
        with source.connection.transaction():
            source.execute("DELETE FROM k WHERE v = 'twice'", "ALTER TABLE k ADD PRIMARY KEY (id)")

        def equal() -> bool:
            source.catch_up(pipeline)
            return by_id(destination.rows("public.k")) == source.rows("k")

        wait_for(equal, "the table to be as the source has it", TIMEOUT)
        source.execute("UPDATE k SET v = 'z' WHERE id = 2", "DELETE FROM k WHERE id = 1")
        wait_for(equal, "the table to be as the source has it", TIMEOUT)


def test_another_key_needs_no_copy(source: Source) -> None:
    destination = MemoryDestination()
    with source.pipeline(destination=destination) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        copied = pipeline.status().table("public.a").state
        source.execute(
            "ALTER TABLE a DROP CONSTRAINT a_pkey",
            "ALTER TABLE a ADD PRIMARY KEY (v)",
            "UPDATE a SET id = 5000 WHERE v = 'a7'",
            "UPDATE a SET v = 'moved' WHERE v = 'a8'",
            "DELETE FROM a WHERE v = 'a9'",
        )
        source.catch_up(pipeline)
        assert by_id(destination.rows("public.a")) == by_id(source.rows("a"))
        assert pipeline.status().table("public.a").state == copied  # the copy's id is in it


def test_a_table_is_copied_again_on_request_running_or_not(source: Source) -> None:
    """Here because rows got lost at the destination, which no change would tell."""
    destination = MemoryDestination()
    requests = Requests(source.config().journal_path)
    with source.pipeline(destination=destination) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        table = pipeline.status().table("public.a")
        destination._tables[table.id].by_key.clear()
        requests.add(Request(table.id, Action.RESYNC))
        requests.add(Request(TableId(1), Action.RESYNC))  # nobody's: no harm
        wait_for(lambda: destination.rows("public.a"), "the copy", TIMEOUT)
        wait_for(lambda: not requests.pending(), "both to be answered", TIMEOUT)
        pipeline.wait_until_ready(TIMEOUT)
        assert by_id(destination.rows("public.a")) == by_id(source.rows("a"))
    destination._tables[table.id].by_key.clear()
    requests.add(Request(table.id, Action.RESYNC))
    with source.pipeline(destination=destination):
        wait_for(lambda: destination.rows("public.a"), "the copy", TIMEOUT)
        assert by_id(destination.rows("public.a")) == by_id(source.rows("a"))


def test_unrepresentable_values_are_counted_and_an_impossible_column_type_stops_one_table(
    source: Source,
) -> None:
    source.execute(
        "ALTER TABLE b ADD n numeric, ADD d date",
        "INSERT INTO b VALUES (1, 'x', 1.5, 'infinity'), (2, 'y', 2, '2024-01-01')",
    )
    destination = MemoryDestination()
    with source.pipeline(
        destination=destination,
        on_unrepresentable="null",
        column_types={"public.b": {"n": "double"}},
    ) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO b VALUES (3, 'z', 3, '-infinity')")
        source.catch_up(pipeline)
        assert pipeline.status().table("public.b").work.values_nulled == 2
        rows = by_id(destination.rows("public.b"))
        assert [(row["n"], row["d"] is None) for row in rows] == [
            (1.5, True),
            (2.0, False),
            (3.0, True),
        ]

        source.execute(
            "ALTER TABLE b ALTER n TYPE text",
            "INSERT INTO b VALUES (4, 'z', 'many', NULL)",
            "INSERT INTO a VALUES (1000, 'after')",
        )
        wait_for(lambda: pipeline.status().table("public.b").error, "the table's error", TIMEOUT)
        error = pipeline.status().table("public.b").error
        assert error is not None
        assert "column n: column_types: 'double'" in error.reason
        assert error.retry == "manual"
        assert len(destination.rows("public.b")) == 3
        wait_for(lambda: len(destination.rows("public.a")) == 101, "the other table", TIMEOUT)
