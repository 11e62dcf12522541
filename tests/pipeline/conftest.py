"""Pipelines over a real Postgres, a real receiver and a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import pytest

from penstock import PgConnection, Pipeline, PipelineConfig
from penstock.destinations import DeltaDestination
from penstock.destinations.base import Destination
from penstock.schema import Lsn, TableId, TableName
from penstock.stores import SqlStore
from penstock.stores.base import PipelineStore, Worker
from tests.conftest import Database
from tests.pipeline.doubles import RememberingStore, ScriptedDestination
from tests.pipeline.published import Replica

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT = 120.0


class Source:
    """A database with a publication, and pipelines that replicate it."""

    def __init__(self, database: Database, spark: SparkSession, root: Path) -> None:
        self.database = database
        self.connection: psycopg.Connection[Any] = database.connect()
        self.store = RememberingStore()
        self.destination = ScriptedDestination()
        self.started: list[Pipeline] = []
        self._spark = spark
        self._root = root

    def config(self, **settings: Any) -> PipelineConfig:
        journal = {"location": str(self._root / "journal"), **settings.pop("journal", {})}
        defaults = {"table_error_retry_delay_ms": 50, "table_error_retry_max_delay_ms": 200}
        return PipelineConfig(
            id=self.database.name,
            publication_name="pub",
            pg_connection=PgConnection(uri=self.database.dsn),
            journal=journal,
            **defaults | settings,
        )

    def pipeline(
        self,
        *,
        store: PipelineStore | None = None,
        destination: Destination | None = None,
        **settings: Any,
    ) -> Pipeline:
        """A pipeline that is shut down after the test, if the test has not done it."""
        pipeline = Pipeline(
            self.config(**settings),
            store=store or self.store,
            destination=destination or self.destination,
            spark=self._spark,
        )
        self.started.append(pipeline)
        return pipeline

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def position(self) -> str:
        row = self.connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])

    def store_progress(self, table_id: TableId) -> Lsn | None:
        """A table's cursor as a pipeline that starts now would find it."""
        self.store.open(self.database.name)
        try:
            return self.store.get_replication_progress(Worker.apply(table_id))
        finally:
            self.store.close()

    def catch_up(self, pipeline: Pipeline) -> None:
        """Wait until everything committed so far is applied."""
        pipeline.wait_until(lsn=self.position(), timeout=TIMEOUT)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What the source has, by key, as the destination shows it."""
        cursor = self.connection.execute(f"SELECT * FROM {table} ORDER BY 1".encode())
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def mirrored(self, table: str) -> list[dict[str, Any]]:
        """What the scripted destination has."""
        rows = self.destination.tables[f"public.{table}"]
        return [rows[key] for key in sorted(rows)]


class Lake:
    """A Delta destination, a store on disk, and what the tables hold."""

    def __init__(self, source: Source, spark: SparkSession, root: Path) -> None:
        self.root = root
        self.mode: Literal["mirror", "history"] = "mirror"
        self._source = source
        self._spark = spark

    def pipeline(self, **settings: Any) -> Pipeline:
        return self._source.pipeline(
            store=SqlStore(f"sqlite:///{self.root}/store.db"),
            destination=self.destination,
            **settings,
        )

    @property
    def destination(self) -> DeltaDestination:
        return DeltaDestination(self.root / "lake", mode=self.mode)

    def frame(self, table: str) -> DataFrame:
        path = self.destination.path(TableName("public", table))
        return self._spark.newSession().read.format("delta").load(path)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.frame(table).orderBy("id").collect()]


@pytest.fixture
def empty_source(database: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Source]:
    source = Source(database, spark, tmp_path)
    yield source
    for pipeline in source.started:
        pipeline.shutdown()
    source.connection.close()


@pytest.fixture
def source(empty_source: Source) -> Source:
    empty_source.execute(
        "CREATE TABLE a (id bigint PRIMARY KEY, v text)",
        "CREATE TABLE b (id bigint PRIMARY KEY, v text)",
        "INSERT INTO a SELECT g, 'a' || g FROM generate_series(1, 100) g",
        "CREATE PUBLICATION pub FOR TABLE a, b",
    )
    return empty_source


@pytest.fixture
def lake(source: Source, spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(source, spark, tmp_path)


@pytest.fixture
def replica(empty_source: Source) -> Replica:
    return Replica(empty_source)
