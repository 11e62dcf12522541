"""Random tables of all types, changed by several writers, copied in the middle of it.

The slot exists before the first row does, so the same rows can be had in three
ways that share little: from Postgres, from the destination (copy and changes, through
Spark), and from the journal alone, replayed from empty in plain Python.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from penstock.config import BatchConfig, JournalConfig, PgConnection, PipelineConfig
from penstock.destinations import DeltaDestination, Destination, MemoryDestination
from penstock.journal.journal import Journal
from penstock.journal.receiver import Receiver
from penstock.pipeline import Pipeline
from penstock.schema import TableName
from penstock.stores import MemoryStore
from penstock.testing.comparison import SourceTable, compare, compare_rows
from penstock.testing.postgres import wait_for
from tests.campaigns.replay import replayed_rows
from tests.conftest import Database
from tests.oracle.columns import DEFINITIONS
from tests.oracle.tables import RandomTable, Writer, tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "oracle"
PUBLICATION = "oracle_pub"
WRITERS = 3
LIMIT_S = 300.0
_numbers = itertools.count(1)

# Few examples, each with every type: a table of another shape costs Delta seconds for
# every kind of statement. There is no shrinking, since what writers do at the same time
# comes out differently each time.
rich = settings(
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Trial:
    """One example: its tables, its writers and its pipeline."""

    def __init__(
        self,
        database: Database,
        directory: Path,
        tables: Sequence[RandomTable],
        seed: int,
    ) -> None:
        self.database = database
        self.tables = tables
        self.seed = seed
        number = next(_numbers)
        self.directory = directory / str(number)
        self.config = PipelineConfig(
            id=f"oracle_{number}",
            publication_name=PUBLICATION,
            pg_connection=PgConnection(uri=database.dsn),
            batch=BatchConfig(max_fill_ms=200, max_bytes=256 * 1024),
            journal=JournalConfig(location=str(self.directory / "journal"), retention_hours=1),
        )

    def run(self, spark: SparkSession, destination: Destination) -> None:
        """Write, copy while writing, write on, and let the destination catch up."""
        self._create_tables()
        self._create_slot()
        self._write("before", 40)
        pipeline = Pipeline(self.config, store=MemoryStore(), destination=destination, spark=spark)
        with self._writing("meanwhile"):
            pipeline.start()
            try:
                pipeline.wait_until_ready(LIMIT_S)
            except BaseException:
                pipeline.shutdown()
                raise
        with pipeline:
            self._write("after", 40)
            pipeline.wait_until(lsn=self._position(), timeout=LIMIT_S)

    def close(self) -> None:
        with self.database.connect() as connection:
            slot = self.config.slot_name
            wait_for(lambda: not _active(connection, slot), "the slot to be free")
            connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])

    def compare(self, rows: Callable[[SourceTable, TableName], Iterable[Any]]) -> None:
        """Compare each table with the rows that are made of it."""
        with self.database.connect() as connection:
            for table in self.tables:
                source = SourceTable(connection, table.name)
                found = compare_rows(table.name, source.rows(), rows(source, table.name))
                assert found.source_rows == found.mirror_rows
                assert found.equal, f"{found}\n{table.definition()}"

    def replayed(self, source: SourceTable, name: TableName) -> Iterable[Any]:
        journal = Journal(self.config.journal_path)
        journal.refresh()
        schema = next(s for s in journal.latest_schemas().values() if s.name == name)
        rows = replayed_rows(journal, schema)
        return source.keyed(tuple(row[column] for column in source.columns) for row in rows)

    def _create_tables(self) -> None:
        with self.database.connect() as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
            connection.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
            connection.execute(f"CREATE TABLE {SCHEMA}.marker (id serial PRIMARY KEY)")
            for table in self.tables:
                note(table.definition())
                connection.execute(table.definition().encode())
            connection.execute(
                f"CREATE PUBLICATION {PUBLICATION} FOR TABLES IN SCHEMA {SCHEMA}"
                " WITH (publish_via_partition_root = true)"
            )

    def _create_slot(self) -> None:
        """As a receiver does that then dies: the pipeline's own goes on with its journal."""
        stop = threading.Event()
        thread = threading.Thread(target=Receiver(self.config).run, args=(stop,))
        journal = Journal(self.config.journal_path)

        def begun() -> bool:
            journal.refresh()
            return not journal.empty

        thread.start()
        try:
            wait_for(begun, "the journal's first manifest")
        finally:
            stop.set()
            thread.join()

    def _writers(self, phase: str) -> list[Writer]:
        seeds = [f"{self.seed}/{phase}/{n}" for n in range(WRITERS)]
        return [Writer(self.database.dsn, self.tables, seed) for seed in seeds]

    def _write(self, phase: str, transactions: int) -> None:
        writers = self._writers(phase)
        for writer in writers:
            writer.transactions = transactions
            writer.start()
        for writer in writers:
            writer.join()
            writer.finish()

    @contextmanager
    def _writing(self, phase: str) -> Iterator[None]:
        writers = self._writers(phase)
        for writer in writers:
            writer.start()
        try:
            yield
        finally:
            for writer in writers:
                writer.finish()

    def _position(self) -> str:
        """Where the source is; the marker's change brings the journal past it."""
        with self.database.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute(f"INSERT INTO {SCHEMA}.marker DEFAULT VALUES")
        assert row is not None
        return str(row[0])


def _active(connection: Any, slot: str) -> bool:
    query = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
    return connection.execute(query, [slot]).fetchone() is not None


@pytest.fixture
def types(database: Database) -> Database:
    """A database that has the types of `columns`."""
    with database.connect() as connection:
        connection.execute(DEFINITIONS)
    return database


@settings(rich, max_examples=1)
@given(tables=tables(SCHEMA, 2), seed=st.integers(0, 2**32))
def test_delta_tables_and_the_replayed_journal_equal_the_source(
    types: Database,
    tmp_path: Path,
    spark: SparkSession,
    tables: list[RandomTable],
    seed: int,
) -> None:
    trial = Trial(types, tmp_path, tables, seed)
    lake = DeltaDestination(trial.directory / "lake")
    trial.run(spark, lake)
    trial.compare(trial.replayed)
    with types.connect() as connection:
        for table in tables:
            mirror = spark.read.format("delta").load(lake.path(table.name))
            found = compare(connection, table.name, mirror)
            assert found.equal, f"{found}\n{table.definition()}"
    trial.close()


@pytest.mark.campaign
@settings(rich, max_examples=1)
@given(tables=tables(SCHEMA, 3), seed=st.integers(0, 2**32))
def test_rows_in_memory_and_the_replayed_journal_equal_the_source(
    types: Database,
    tmp_path: Path,
    spark: SparkSession,
    tables: list[RandomTable],
    seed: int,
) -> None:
    trial = Trial(types, tmp_path, tables, seed)
    memory = MemoryDestination()
    trial.run(spark, memory)

    def remembered(source: SourceTable, name: TableName) -> Iterable[Any]:
        return source.keyed(tuple(row[c] for c in source.columns) for row in memory.rows(name))

    trial.compare(trial.replayed)
    trial.compare(remembered)
    trial.close()
