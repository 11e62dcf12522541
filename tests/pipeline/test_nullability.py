"""Columns that become NOT NULL, or are so no longer, while their table is replicated."""

from __future__ import annotations

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.destinations import MemoryDestination
from penstock.destinations.base import WriteStatus
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.events import Insert
from penstock.postgres.ddl_triggers import uninstall
from penstock.schema import TableName, TableSchema
from penstock.testing.postgres import wait_for
from tests.pipeline.conftest import TIMEOUT, Lake, Source
from tests.pipeline.published import copies


def by_id(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["id"]))


def required(table: TableSchema) -> set[str]:
    return {column.name for column in table.columns if not column.nullable}


class StrictDestination(MemoryDestination):
    """Has columns NOT NULL where it was told so, and takes no NULL there."""

    def __init__(self) -> None:
        super().__init__()
        self.required: dict[TableName, set[str]] = {}
        self.changes: list[str] = []

    def write_table_rows(self, table: TableSchema, rows: TableRows) -> WriteStatus:
        self.required[table.name] = required(table)
        return super().write_table_rows(table, rows)

    def change_schema(self, change: SchemaChange) -> SchemaChangeAction:
        self.changes.append(str(change))
        self.required[change.new.name] = required(change.new)
        return super().change_schema(change)

    def write_events(self, batch: ChangeBatch) -> WriteStatus:
        columns = self.required[batch.table.name]
        assert columns == required(batch.table)
        inserts = [event.new for event in batch.events() if isinstance(event, Insert)]
        assert all(row[name] is not None for row in inserts for name in columns)
        return super().write_events(batch)


def test_not_null_that_comes_and_goes_is_told_and_needs_no_copy(source: Source) -> None:
    source.execute("ALTER TABLE a ALTER v SET NOT NULL")
    destination = StrictDestination()
    with source.pipeline(destination=destination, schema_change_policy="freeze") as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        with source.connection.transaction():
            source.execute(
                "INSERT INTO a VALUES (1000, 'x')",
                "ALTER TABLE a ALTER v DROP NOT NULL",
                "INSERT INTO a VALUES (1001, NULL)",
            )
        source.execute("DELETE FROM a WHERE v IS NULL", "ALTER TABLE a ALTER v SET NOT NULL")
        source.catch_up(pipeline)
        assert destination.changes == ["v may be NULL", "v is not NULL"]
        assert by_id(destination.rows("public.a")) == by_id(source.rows("a"))
        assert copies(source, "a") == 1


def test_not_null_that_nobody_announces_comes_with_the_next_change(source: Source) -> None:
    destination = StrictDestination()
    with source.pipeline(destination=destination) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        uninstall(source.connection)
        source.execute(
            "INSERT INTO a VALUES (1000, NULL)",
            "DELETE FROM a WHERE v IS NULL",
            "ALTER TABLE a ALTER v SET NOT NULL",
            "INSERT INTO a VALUES (1001, 'x')",
            "CREATE TABLE c (id int PRIMARY KEY)",
            "ALTER PUBLICATION pub ADD TABLE c",
        )
        wait_for(lambda: TableName("public", "c") in destination.tables, "another look", TIMEOUT)
        source.catch_up(pipeline)
        assert destination.changes == []
        assert copies(source, "a") == 1
        source.execute("ALTER TABLE a ADD n integer", "INSERT INTO a VALUES (1002, 'y', 1)")
        wait_for(
            lambda: by_id(destination.rows("public.a")) == by_id(source.rows("a")),
            "the new column",
            TIMEOUT,
        )
        assert destination.required[TableName("public", "a")] == {"id", "v"}


def test_a_delta_table_is_not_touched_for_not_null(source: Source, lake: Lake) -> None:
    with lake.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        log = lake.root / "lake" / "public" / "a" / "_delta_log"
        before = sorted(log.glob("*.json"))
        source.execute("ALTER TABLE a ALTER v SET NOT NULL")
        source.catch_up(pipeline)
        assert sorted(log.glob("*.json")) == before
        source.execute("ALTER TABLE a ALTER v DROP NOT NULL", "INSERT INTO a VALUES (1000, NULL)")
        source.catch_up(pipeline)
        assert len(list(log.glob("*.json"))) == len(before) + 1
        assert lake.rows("a") == source.rows("a")
