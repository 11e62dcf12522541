"""The first copy of a table into Delta, against `psql`'s COPY to /dev/null and Spark's JDBC."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.delivering import lake, make_pipeline, table_path
from benchmarks.measure import Measure, Ratio, clock_from, ratio, timed
from benchmarks.source import Source, fresh_source
from penstock.testing import EmbeddedPostgres
from penstock.testing.postgres import wait_for

JDBC_DRIVER = "org.postgresql:postgresql:42.7.4"


def _psql(source: Source) -> float:
    command = [
        str(source.server.bin("psql")),
        *("-h", source.server.host, "-p", str(source.server.port), "-U", "postgres"),
        *("-d", source.name, "-qc", "COPY t TO STDOUT"),
    ]
    with timed() as timing, Path("/dev/null").open("wb") as nothing:
        subprocess.run(command, check=True, stdout=nothing)
    return timing.seconds


def _ours(source: Source, spark: SparkSession, rows: int) -> float:
    """Seconds from the moment that the pipeline knows the table until its copy counts."""
    running = make_pipeline(source, spark)
    elapsed = clock_from(lambda: running.status().tables)
    with running:
        wait_for(lambda: _copied(running.status().tables), limit=600)
        seconds = elapsed()
    found = spark.read.format("delta").load(table_path(source)).count()
    assert found == rows, (found, rows)
    return seconds


def _copied(tables: object) -> bool:
    states = [table.state.name for table in tables]  # type: ignore[attr-defined]
    assert "errored" not in states
    return bool(states) and all(
        state in ("finished_copy", "catchup", "sync_done", "ready") for state in states
    )


def _jdbc(source: Source, spark: SparkSession, rows: int) -> float:
    url = f"jdbc:postgresql://127.0.0.1:{source.server.port}/{source.name}"
    target = str(lake(source).with_name("jdbc"))
    with timed() as timing:
        (
            spark.read.format("jdbc")
            .options(
                url=url,
                dbtable="t",
                user="postgres",
                driver="org.postgresql.Driver",
                partitionColumn="id",
                lowerBound="0",
                upperBound=str(rows),
                numPartitions="4",
                fetchsize="10000",
            )
            .load()
            .write.format("delta")
            .save(target)
        )
    return timing.seconds


def _against_psql(
    server: EmbeddedPostgres, directory: Path, spark: SparkSession, rows: int, times: int
) -> tuple[Ratio, list[float]]:
    numbers = itertools.count()
    jdbc: list[float] = []

    def run() -> tuple[float, float]:
        with fresh_source(server, directory, f"copy_{rows}_{next(numbers)}") as source:
            source.fill(rows)
            _psql(source)  # the table's pages are in memory from here on
            reference = _psql(source)
            ours = _ours(source, spark, rows)
            jdbc.append(_jdbc(source, spark, rows))
            return reference, ours

    return ratio(run, times, warm_up=True), jdbc[1:]


def million(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    found, jdbc = _against_psql(server, directory, spark, 1_000_000, times)
    return _measure("copy_1m", found, jdbc, 0.25, 0.40)


def five_million(
    server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int
) -> Measure:
    found, jdbc = _against_psql(server, directory, spark, 5_000_000, times)
    return _measure("copy_5m", found, jdbc, 0.45, 0.75)


def _measure(name: str, found: Ratio, jdbc: list[float], floor: float, aim: float) -> Measure:
    """Slower than JDBC in the same run counts as nothing."""
    beaten = min(ours for _, ours in found.runs) < min(jdbc)
    details = found.details | {"Spark JDBC": ", ".join(f"{seconds:.2f} s" for seconds in jdbc)}
    return Measure(name, found.best if beaten else 0.0, floor, aim, details=details)
