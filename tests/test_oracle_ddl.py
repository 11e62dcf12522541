"""Tables that several sessions alter and write to, while a pipeline copies and streams them.

At the end, and whenever a schedule says so, the destination has the columns that Postgres
shows, with their types, and row by row what is in them: with the event triggers, and where
only the stream and the catalog tell what has happened.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st

from penstock.schema import TableName
from tests.conftest import Database
from tests.oracle.altered import (
    PAUSES,
    VERBS,
    Alterations,
    AlteredTable,
    altered_tables,
)
from tests.oracle.mirrors import DeltaMirror
from tests.oracle.published import published
from tests.oracle.replica import PUBLICATION, Replica, replica
from tests.oracle.sessions import Step, opened, steps
from tests.oracle.variants import Variant, try_out, variants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "altered"
SESSIONS = 3
LONGEST = 40
_numbers = itertools.count(1)


def examples(*, restarts: bool) -> st.SearchStrategy[Any]:
    """A table, and what is done to it."""
    verbs = VERBS | PAUSES | {"restart": int(restarts)}
    return st.tuples(altered_tables(), steps(verbs, SESSIONS, LONGEST))


class Trial:
    """One example: a table, what is done to it, and whether the destination has that."""

    def __init__(self, replica: Replica, table: AlteredTable) -> None:
        self._replica = replica
        self._table = replace(table, name=TableName(SCHEMA, f"t{next(_numbers)}"))
        self.log: list[str] = []

    def run(self, schedule: list[Step]) -> None:
        with opened(self._replica.database.dsn, SESSIONS) as sessions:
            trial = Alterations(sessions, self._table, self.log)
            self._execute(self._table.create())
            verbs = ("insert", "update", "move", "delete", "insert")
            afterwards = [Step(0, verb, number) for number, verb in enumerate(verbs)]
            self._replica.play(trial, schedule, afterwards, self._expect_equal)
        self._execute(f"DROP TABLE {self._table.name.quoted}")

    def _execute(self, statements: str) -> None:
        with self._replica.database.connect() as connection:
            connection.execute(statements.encode())
        self.log.append(statements)

    def _expect_equal(self) -> None:
        replica, name = self._replica, self._table.name
        with replica.database.connect() as connection:

            def difference() -> str | None:
                table = next(t for t in published(connection, PUBLICATION) if t.name == name)
                return table.difference(connection, replica.destination)

            replica.expect(difference, name)


def prepare(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        connection.execute(f"CREATE TABLE {SCHEMA}.first (id int PRIMARY KEY)")
        connection.execute(
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLES IN SCHEMA {SCHEMA}"
            " WITH (publish_via_partition_root = true)"
        )


def run_all(running: Replica, count: int, strategy: st.SearchStrategy[Any]) -> None:
    def run(example: tuple[AlteredTable, list[Step]]) -> None:
        table, schedule = example
        Trial(running, table).run(schedule)

    try_out(count, strategy, run)


@variants(newest=5, older=3, long=40)
def test_altered_tables_equal_the_source(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, variant: Variant
) -> None:
    database: Database = request.getfixturevalue(variant.database)
    prepare(database)
    with replica(database, spark, tmp_path, announced=variant.announced) as running:
        run_all(running, variant.count, examples(restarts=variant.restarts))


@pytest.mark.campaign
def test_altered_delta_tables_equal_the_source(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    prepare(database)
    lake = DeltaMirror(tmp_path / "lake")
    with replica(database, spark, tmp_path, destination=lake) as running:
        run_all(running, 15, examples(restarts=False))
