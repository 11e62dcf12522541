"""Slot to Delta table, catching up from the slot's start, against `pg_recvlogical`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.measure import Measure, Ratio, clock_from, ratio
from benchmarks.source import Source, fresh_source
from penstock import Pipeline
from penstock.destinations import DeltaDestination
from penstock.pipeline.receiver_process import ReceiverState
from penstock.stores import SqlStore
from penstock.testing import EmbeddedPostgres
from penstock.testing.waiting import wait_for


def lake(source: Source) -> Path:
    return source.directory / "lake"


def table_path(source: Source) -> str:
    return str(lake(source) / "public" / "t")


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
) -> Ratio:
    numbers = itertools.count()

    def run() -> tuple[float, float]:
        with fresh_source(server, directory, f"deliver_{next(numbers)}") as source:
            with make_pipeline(source, spark) as running:
                running.wait_until_ready(timeout=120)
            source.reference_slot()
            changes = work(source)
            reference = source.drain_reference()
            ours = _catch_up(make_pipeline(source, spark), changes)
            _check(source, spark)
            return reference, ours

    return ratio(run, times, warm_up=True)


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
    (table,) = running.status().tables
    assert table.error is None, table.error
    return table.work.changes_applied


def _check(source: Source, spark: SparkSession) -> None:
    """A fast pipeline that is wrong has no speed."""
    with source.connect() as connection:
        wanted = connection.execute("SELECT count(*), sum(id), sum(a) FROM t").fetchone()
    found = spark.sql(f"SELECT count(*), sum(id), sum(a) FROM delta.`{table_path(source)}`").first()
    assert found is not None
    assert wanted is not None
    assert tuple(found) == tuple(int(v) if v is not None else None for v in wanted), (found, wanted)


def inserts(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    found = _against_recvlogical(server, directory, spark, lambda s: s.insert(1_000_000), times)
    return Measure("delta_inserts", found.best, 0.40, 0.65, details=found.details)


def mixed(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    found = _against_recvlogical(server, directory, spark, Source.mixed_changes, times)
    return Measure("delta_mixed", found.best, 0.30, 0.50, details=found.details)
