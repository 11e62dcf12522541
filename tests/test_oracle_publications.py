"""Publications that change, and tables that move, while they are written to and replicated.

At the end, and whenever a schedule says so, the pipeline has the tables that the publication
has, and each holds what a SELECT with the publication's filter and columns gives. Tables that
have left are no longer the pipeline's, and still at the destination.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

from penstock.schema import TableId, TableName
from tests.conftest import Database
from tests.oracle.published import published
from tests.oracle.replica import PUBLICATION, Replica, replica
from tests.oracle.sessions import Step, opened, steps
from tests.oracle.shuffled import ANCHOR, PAUSES, VERBS, Shuffling, World
from tests.oracle.variants import Variant, try_out, variants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSIONS = 3
LONGEST = 40
_numbers = itertools.count(1)


def examples(*, restarts: bool) -> st.SearchStrategy[list[Step]]:
    return steps(VERBS | PAUSES | {"restart": int(restarts)}, SESSIONS, LONGEST)


class Trial:
    """One example, in two schemas of its own."""

    def __init__(self, replica: Replica) -> None:
        number = next(_numbers)
        self._replica = replica
        self._world = World(f"near_{number}", f"far_{number}", PUBLICATION)
        self._arrived: dict[TableId, TableName] = {}
        self.log: list[str] = []

    def run(self, schedule: list[Step]) -> None:
        with opened(self._replica.database.dsn, SESSIONS) as sessions:
            trial = Shuffling(sessions, self._world, self.log)
            self._execute(self._world.create())
            verbs = ("insert", "update", "move")
            afterwards = [Step(0, verb, number) for number in range(8) for verb in verbs]
            try:
                self._replica.play(trial, schedule, afterwards, self._expect_equal)
            finally:
                self._execute(self._world.drop())

    def _execute(self, statements: list[str]) -> None:
        with self._replica.database.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())
                self.log.append(statement)

    def _expect_equal(self) -> None:
        replica = self._replica
        with replica.database.connect() as connection:
            tables = published(connection, PUBLICATION)
            names = {table.name for table in tables}

            def difference() -> str | None:
                known = {TableName(*t.name.split(".")) for t in replica.pipeline.status().tables}
                if known != names:
                    return f"the pipeline has {known - names}, and lacks {names - known}"
                holds = replica.destination.holds
                if lost := [
                    name for place, name in self._arrived.items() if not holds(place, name)
                ]:
                    return f"{lost} left the destination"
                for table in tables:
                    found = table.difference(connection, replica.destination)
                    if found is not None:
                        return found
                return None

            replica.expect(difference, *names)
            self._arrived |= {table.id: table.name for table in tables}


def prepare(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE {ANCHOR} (id int PRIMARY KEY)")
        connection.execute(
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {ANCHOR}"
            " WITH (publish_via_partition_root = true)"
        )


@variants(newest=2, older=2, long=25)
def test_published_tables_equal_the_source(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, variant: Variant
) -> None:
    database: Database = request.getfixturevalue(variant.database)
    prepare(database)
    with replica(database, spark, tmp_path, announced=variant.announced) as running:
        try_out(
            variant.count,
            examples(restarts=variant.restarts),
            lambda each: Trial(running).run(each),
        )
