"""Slot to Delta table, catching up from the slot's start, against `pg_recvlogical`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.measure import Measure, Ratio, clock_from, ratio
from benchmarks.source import COLUMNS, ROWS, Source, fresh_source
from penstock import Pipeline
from penstock.destinations import DeltaDestination
from penstock.pipeline.receiver_process import ReceiverState
from penstock.stores import SqlStore
from penstock.testing import EmbeddedPostgres
from penstock.testing.postgres import wait_for

# 3 % of the rows have a value too large for the row, which updates leave as it is.
TOASTED_COLUMNS = COLUMNS.replace("s text", "s text, doc text STORAGE EXTERNAL")
TOASTED_ROWS = ROWS.replace(
    "'x'),", "'x'), CASE WHEN g %% 33 = 0 THEN repeat(md5(g::text), 90) END,"
)


def lake(source: Source) -> Path:
    return source.directory / "lake"


def table_path(source: Source, table: str = "t") -> str:
    return str(lake(source) / "public" / table)


def make_pipeline(source: Source, spark: SparkSession) -> Pipeline:
    return Pipeline(
        source.config(),
        store=SqlStore(f"sqlite:///{source.directory}/store.db"),
        destination=DeltaDestination(str(lake(source))),
        spark=spark,
    )


def _against_recvlogical(
    server: EmbeddedPostgres,
    directory: Path,
    spark: SparkSession,
    work: Callable[[Source], int],
    times: int,
    *,
    warm_up: bool = True,
    **shape: Any,
) -> Ratio:
    """`shape` says which tables there are, and of which columns."""
    numbers = itertools.count()

    def run() -> tuple[float, float]:
        with fresh_source(server, directory, f"deliver_{next(numbers)}", **shape) as source:
            with make_pipeline(source, spark) as running:
                running.wait_until_ready(timeout=120)
            source.reference_slot()
            changes = work(source)
            reference = source.drain_reference()
            ours = _catch_up(make_pipeline(source, spark), changes)
            _check(source, spark)
            return reference, ours

    return ratio(run, times, warm_up=warm_up)


def _catch_up(running: Pipeline, changes: int) -> float:
    """Seconds from the receiver's first byte until all changes are in the destination.

    The clock starts when the receiver streams: `pg_recvlogical` has no start-up to
    speak of, and a pipeline starts once and streams for months.
    """
    elapsed = clock_from(lambda: running.status().receiver.state is ReceiverState.STREAMING)
    with running:
        wait_for(lambda: _applied(running) >= changes, limit=600)
        return elapsed()


def _applied(running: Pipeline) -> int:
    tables = running.status().tables
    for table in tables:
        assert table.error is None, table.error
    return sum(table.work.changes_applied for table in tables)


def _check(source: Source, spark: SparkSession) -> None:
    """A fast pipeline that is wrong has no speed."""
    with source.connect() as connection:
        for table in source.tables:
            lake_table = spark.read.format("delta").load(table_path(source, table))
            texts = [name for name in ("s", "doc") if name in lake_table.columns]
            sums = ["count(*)", "sum(id)", "sum(a)", *(f"sum(length({name}))" for name in texts)]
            wanted = connection.execute(
                f"SELECT {', '.join(sums)} FROM {table}".encode()
            ).fetchone()
            found = lake_table.selectExpr(*sums).first()
            assert found is not None
            assert wanted is not None
            assert [str(value) for value in found] == [str(value) for value in wanted], table


def inserts(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    found = _against_recvlogical(server, directory, spark, lambda s: s.insert(1_000_000), times)
    return Measure("delta_inserts", found.best, 0.40, 0.65, details=found.details)


def mixed(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    found = _against_recvlogical(server, directory, spark, Source.mixed_changes, times)
    return Measure("delta_mixed", found.best, 0.30, 0.50, details=found.details)


def busy_tables(
    server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int
) -> Measure:
    """The same changes over 20 tables, where 3 % of the updates leave a TOASTed value alone."""
    found = _against_recvlogical(
        server,
        directory,
        spark,
        lambda source: source.mixed_changes(TOASTED_ROWS),
        times,
        warm_up=False,  # it takes minutes, and its twenty tables warm themselves
        tables=tuple(f"t{number}" for number in range(20)),
        columns=TOASTED_COLUMNS,
    )
    return Measure("delta_busy_tables", found.best, 0.08, 0.2, details=found.details)
