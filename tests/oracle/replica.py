"""A pipeline that runs through all examples of a test, over tables that come and go.

Starting one takes seconds; a new table that is published is copied and streamed in a
fraction of one. Whatever an example leaves behind is dropped, so that the next one has
nothing of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import note

from penstock import PgConnection, Pipeline, PipelineConfig
from penstock.config import BatchConfig, JournalConfig
from penstock.errors import ErrorKind
from penstock.pipeline import source_watch
from penstock.pipeline.source_watch import Membership, SourceWatch
from penstock.postgres.preflight import Severity, preflight
from penstock.schema import Lsn, TableName
from penstock.states import Errored
from penstock.stores import MemoryStore
from penstock.testing.postgres import wait_for
from tests.conftest import Database
from tests.oracle.mirrors import DeltaMirror, InPlaceDestination
from tests.oracle.sessions import Schedule, Step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLICATION = "oracle_pub"
ROLE = "penstock_plain"
_PATIENCE_S = 120.0
_LOOKS = 8
_numbers = itertools.count(1)


class Replica:
    """A database, its publication, and a pipeline that replicates it.

    `announced` is whether the source has the event triggers. A pipeline whose role may
    make them does; so without them it connects as one that may not.
    """

    def __init__(
        self,
        database: Database,
        spark: SparkSession,
        directory: Path,
        *,
        announced: bool = True,
        destination: InPlaceDestination | DeltaMirror | None = None,
    ) -> None:
        self.database = database
        self.destination: InPlaceDestination | DeltaMirror = destination or InPlaceDestination()
        self.looks = 0
        self._spark = spark
        self._store = MemoryStore()
        if not announced:
            with database.connect() as connection:
                connection.execute(_PLAIN_ROLE)
        self.config = PipelineConfig(
            id=f"oracle_{next(_numbers)}",
            publication_name=PUBLICATION,
            pg_connection=PgConnection(uri=database.dsn, **({} if announced else {"user": ROLE})),
            batch=BatchConfig(max_fill_ms=20),
            journal=JournalConfig(location=str(directory / "journal")),
            replication_lag_refresh_interval_ms=50,
            table_error_retry_delay_ms=50,
            table_error_retry_max_delay_ms=200,
        )
        self.pipeline = self._new()

    def _new(self) -> Pipeline:
        return Pipeline(
            self.config, store=self._store, destination=self.destination, spark=self._spark
        )

    def start(self) -> None:
        self.pipeline.start()
        self.pipeline.wait_until_ready(_PATIENCE_S)

    def restart(self) -> None:
        """Another pipeline after this one, over the same journal and store; not while one
        would refuse to start (a table has lost its key, say)."""
        errors = [each for each in preflight(self.config) if each.severity is Severity.ERROR]
        if any(each.kind is not ErrorKind.SOURCE_SLOT for each in errors):  # it is in use by us
            return
        self.pipeline.shutdown()
        self.pipeline = self._new()
        self.pipeline.start()

    def close(self) -> None:
        self.pipeline.shutdown()

    def position(self) -> Lsn:
        with self.database.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def play(
        self,
        trial: Schedule,
        schedule: Iterable[Step],
        afterwards: Iterable[Step],
        expect_equal: Callable[[], None],
    ) -> None:
        """Run a schedule while the pipeline is at work.

        `afterwards` are steps that bring out what was understood wrongly and has not shown yet.
        """
        try:
            for step in schedule:
                match step.verb:
                    case "receive":
                        self.receive()
                    case "restart":
                        trial.commit_all()  # a table that is locked is a reason not to start
                        self.restart()
                    case "settle":
                        trial.commit_all()
                        expect_equal()
                trial.run(step)
            trial.commit_all()
            expect_equal()
            for step in afterwards:
                trial.run(step)
            expect_equal()
        finally:
            note("\n".join(trial.log))
            for session in trial.sessions:
                session.end("ROLLBACK")

    def receive(self) -> None:
        """Wait until the journal has all that is committed, whatever tables make of it."""
        wanted = self.position()
        self._wait(lambda: self.pipeline._journal.end >= wanted, "the journal")

    def expect(self, difference: Callable[[], str | None], *names: TableName) -> None:
        """Wait until there is no difference. Fails with what stopped a table, or with the
        difference that is left when there is nothing more to be done about it."""
        wanted, since = self.position(), self.looks

        def equal() -> bool:
            nonlocal since
            idle = self._idle(wanted, names)
            found = difference()
            if not idle:
                since = self.looks
            assert found is None or self.looks - since < _LOOKS, f"{found}\n{self._states()}"
            return idle and found is None

        self._wait(equal, "equality")

    def _idle(self, wanted: Lsn, names: Collection[TableName]) -> bool:
        """Whether everything up to `wanted` is applied, and nothing is being done.

        What a look has seen is acted upon when the journal has all that was before it.
        """
        runtime = self.pipeline._runtime
        assert runtime is not None
        seen = runtime.scheduler.seen
        assert seen is not None
        idle = self.pipeline._journal.end >= max(wanted, seen.source_at)
        for table in runtime.scheduler.tables():
            if table.published.schema.name not in names:
                continue
            state = table.state
            if isinstance(state, Errored) and state.retry_policy.kind != "timed":
                raise AssertionError(f"{table.name} is errored: {state.reason}")
            idle &= table.job is None and state.name == "ready" and table.position >= wanted
        return idle

    def _states(self) -> dict[str, Any]:
        return {table.name: table.state for table in self.pipeline.status().tables}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def done() -> bool:
            if condition():
                return True
            failure = self.pipeline.status().error
            if failure:
                raise AssertionError(f"the pipeline failed: {failure}")
            return False

        try:
            wait_for(done, what, _PATIENCE_S)
        except TimeoutError:
            raise TimeoutError(f"{what}: {self._states()}") from None


_PLAIN_ROLE = f"""
DO $$ BEGIN
    IF to_regrole('{ROLE}') IS NULL THEN
        CREATE ROLE {ROLE} LOGIN REPLICATION IN ROLE pg_read_all_data;
    END IF;
END $$
"""


@contextmanager
def replica(
    database: Database, spark: SparkSession, directory: Path, **settings: Any
) -> Iterator[Replica]:
    """One whose watch looks many times a second: an example has one or two."""
    look = SourceWatch.membership

    def counted(watch: SourceWatch) -> Membership | None:
        found = look(watch)
        running.looks += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_watch, "_MEMBERSHIP_SECONDS", 0.1)
        patch.setattr(source_watch, "_MEMBERSHIP_SHARE", 0.5)
        patch.setattr(SourceWatch, "membership", counted)
        running = Replica(database, spark, directory, **settings)
        try:
            running.start()
            yield running
        finally:
            running.close()
