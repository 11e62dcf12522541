"""A publication, and a destination in memory that follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import Pipeline
from penstock.destinations import MemoryDestination
from penstock.schema import TableId
from penstock.testing.postgres import wait_for

if TYPE_CHECKING:
    from tests.pipeline.conftest import Source

Rows = list[tuple[Any, ...]]

PARTS = (
    "CREATE TABLE {0} (id int, area text, v int, PRIMARY KEY (id, area)) PARTITION BY LIST (area)",
    "CREATE TABLE {0}_n PARTITION OF {0} FOR VALUES IN ('n')",
    "CREATE TABLE {0}_deep PARTITION OF {0} FOR VALUES IN ('s', 't') PARTITION BY RANGE (id)",
    "CREATE TABLE {0}_deep_1 PARTITION OF {0}_deep FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE {0}_deep_2 PARTITION OF {0}_deep FOR VALUES FROM (100) TO (200)",
    "INSERT INTO {0} VALUES (1, 'n', 1), (2, 's', 2), (150, 't', 3)",
)
LOOSE = (  # with its columns in another order
    "CREATE TABLE {0} (v int, gone int, area text, id int, PRIMARY KEY (id, area))",
    "ALTER TABLE {0} DROP gone",
    "INSERT INTO {0} VALUES (5, '{1}', 50), (6, '{1}', 51)",
)


class Replica:
    """A publication, the pipelines that replicate it, and what should be where."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.destination = MemoryDestination()
        self.execute = source.execute

    def pipeline(self, **settings: Any) -> Pipeline:
        return self.source.pipeline(destination=self.destination, **settings)

    def published(self, *queries: str) -> dict[str, Rows]:
        """What queries say that tables of the destination have: `table: query`, or a table
        whose rows are its own."""
        found = {}
        for each in queries:
            table, _, query = each.partition(": ")
            query = query or f"SELECT * FROM ONLY {table}"
            rows = self.source.connection.execute(query.encode()).fetchall()
            found[table] = sorted(rows, key=repr)
        return found

    def mirrored(self, *queries: str) -> dict[str, Rows]:
        tables = [each.partition(": ")[0] for each in queries]
        return {
            table: sorted(
                (tuple(r.values()) for r in self.destination.rows(_full(table))), key=repr
            )
            for table in tables
        }

    def expect(self, pipeline: Pipeline, *queries: str) -> None:
        """Wait until the tables are there, and hold what they should; report what differs."""
        caught_up: dict[str, Rows] = {}

        def equal() -> bool:
            nonlocal caught_up
            self.source.catch_up(pipeline)
            caught_up = self.mirrored(*queries)
            return caught_up == self.published(*queries)

        try:
            wait_for(equal)
        except TimeoutError:
            assert caught_up == self.published(*queries)

    def tables(self, pipeline: Pipeline) -> list[str]:
        return [table.name.removeprefix("public.") for table in pipeline.status().tables]


def _full(table: str) -> str:
    return table if "." in table else f"public.{table}"


def copies(source: Source, table: str) -> int:
    """How often a table was copied."""
    row = source.connection.execute("SELECT %s::regclass::oid", [table]).fetchone()
    assert row is not None
    return sum(state.name == "finished_copy" for state in source.store.history(TableId(row[0])))
