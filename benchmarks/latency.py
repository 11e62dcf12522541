"""From commit in Postgres to visible in Delta, against the same write by hand."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.delivering import make_pipeline, table_path
from benchmarks.measure import Measure, timed
from benchmarks.source import ROWS, Source, fresh_source
from penstock.destinations.delta.mark import Mark
from penstock.schema import Lsn
from penstock.testing import EmbeddedPostgres
from penstock.testing.postgres import wait_for

PER_SECOND = 20
WARM_UP, MEASURED = 600, 400
RECENT = 1_000_000


@dataclass
class CommitWatch:
    """Notes when each Delta commit of a table appeared, and up to which position it goes."""

    log: Path
    seen: dict[int, tuple[float, Lsn]] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        version = len(list(self.log.glob("*.json")))
        while not self.stop.is_set():
            path = self.log / f"{version:020d}.json"
            if path.exists():
                now = time.time()
                position = _position(path)
                if position is not None:
                    self.seen[version] = (now, position)
                version += 1
            else:
                self.stop.wait(0.005)

    def visible_at(self, position: Lsn) -> float:
        return min(at for at, end in self.seen.values() if end >= position)


def _position(commit: Path) -> Lsn | None:
    for line in commit.read_text().splitlines():
        info = json.loads(line).get("commitInfo")
        mark = Mark.loads(info.get("userMetadata")) if info else None
        if mark is not None and not mark.carried:
            return mark.position
    return None


def _trickle(
    source: Source, statement: str, value: Callable[[int], list[int]]
) -> list[tuple[float, Lsn]]:
    """One-row transactions at a steady rate: when each was committed, and where."""
    commits = []
    with source.connect() as connection:
        begin = time.monotonic()
        for number in range(WARM_UP + MEASURED):
            pause = begin + number / PER_SECOND - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            with connection.transaction():
                connection.execute(statement.encode(), value(number))
                row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            commits.append((time.time(), Lsn.parse(row[0])))
    return commits


def _latency(
    source: Source, spark: SparkSession, statement: str, value: Callable[[int], list[int]]
) -> float:
    """The median over the measured commits, in seconds."""
    with make_pipeline(source, spark) as running:
        running.wait_until_ready(timeout=300)
        watch = CommitWatch(Path(table_path(source)) / "_delta_log")
        thread = threading.Thread(target=watch.run)
        thread.start()
        commits = _trickle(source, statement, value)
        last = commits[-1][1]
        wait_for(lambda: any(end >= last for _, end in list(watch.seen.values())))
        watch.stop.set()
        thread.join()
    return statistics.median(watch.visible_at(position) - at for at, position in commits[WARM_UP:])


def _by_hand(action: Callable[[int], None]) -> float:
    times = []
    for number in range(15):
        with timed() as timing:
            action(number)
        times.append(timing.seconds)
    return statistics.median(times[5:])


def inserts(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    with fresh_source(server, directory, "latency_inserts") as source:
        ours = _latency(source, spark, f"INSERT INTO t {ROWS}", lambda n: [n, n])
        target = table_path(source)
        one = spark.read.format("delta").load(target).limit(1).collect()
        schema = spark.read.format("delta").load(target).schema

        def append(number: int) -> None:
            frame = spark.createDataFrame(one, schema)
            frame.write.format("delta").mode("append").save(target + "_hand")

        reference = _by_hand(append)
    return _measure("latency_inserts", ours, reference, 1.5, 0.8)


def updates(server: EmbeddedPostgres, directory: Path, spark: SparkSession, times: int) -> Measure:
    with fresh_source(server, directory, "latency_updates") as source:
        source.fill(RECENT)
        ours = _latency(
            source,
            spark,
            "UPDATE t SET a = a + 1, ts = now() WHERE id = %s",
            lambda n: [(n * 7919) % RECENT],
        )
        target = table_path(source) + "_hand"
        spark.read.format("delta").load(table_path(source)).write.format("delta").save(target)
        spark.sql(
            f"ALTER TABLE delta.`{target}` SET TBLPROPERTIES"
            " ('delta.enableDeletionVectors' = 'true')"
        )
        rows = spark.read.format("delta").load(target)

        def merge(number: int) -> None:
            key = (number * 7919) % RECENT
            one = rows.filter(f"id = {key}").collect()
            spark.createDataFrame(one, rows.schema).createOrReplaceTempView("one")
            with timed() as timing:
                spark.sql(
                    f"MERGE INTO delta.`{target}` t USING one s ON t.id = s.id"
                    " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                )
            merges.append(timing.seconds)

        merges: list[float] = []
        _by_hand(merge)
        reference = statistics.median(merges[5:])
    return _measure("latency_updates", ours, reference, 2.0, 1.0)


def _measure(name: str, ours: float, reference: float, floor: float, aim: float) -> Measure:
    details = {"by hand": f"{reference:.2f} s", "p50 commit to visible": f"{ours:.2f} s"}
    return Measure(name, ours - reference, floor, aim, "s beyond", below=True, details=details)
