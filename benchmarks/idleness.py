"""What a pipeline costs while nothing is written: processor time, memory, files.

Measured are this process with its JVM and Python workers, and the receiver; Postgres is not.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from benchmarks.delivering import make_pipeline
from benchmarks.measure import Measure, timed
from benchmarks.source import Source, fresh_source
from penstock import Pipeline
from penstock.testing import EmbeddedPostgres

TABLES, IDLE_SECONDS, HOUR = 20, 60, 3600
MANY_TABLES, BUSY_TABLES = 500, 20
_SETTLING_SECONDS = 60  # a JVM compiles for a while after the work that called for it


@dataclass(frozen=True)
class Cost:
    """Shares of a core by process; the journal's files and all resident memory (MiB), before
    and after."""

    shares: Mapping[str, float]
    files: tuple[int, int]
    memory: tuple[float, float]

    @property
    def percent(self) -> float:
        return 100 * sum(self.shares.values())

    @property
    def details(self) -> dict[str, str]:
        shares = ", ".join(f"{name} {100 * share:.2f} %" for name, share in self.shares.items())
        return {
            "processes": shares,
            "journal files": f"{self.files[0]}, then {self.files[1]}",
            "resident": f"{self.memory[0]:.0f} MiB, then {self.memory[1]:.0f} MiB",
        }


def _processes(server: EmbeddedPostgres, running: Pipeline) -> dict[str, psutil.Process]:
    """Ours by name: what is below this process and is not Postgres."""
    receiver = running.status().receiver.pid
    found = {"driver": psutil.Process()}
    for process in psutil.Process().children(recursive=True):
        if process.pid == receiver:
            found["receiver"] = process
        elif process.name() == "java":
            found["JVM"] = process
        elif process.name() != "postgres" and process.pid != server.pid:
            found[f"{process.name()} {process.pid}"] = process
    return found


def _used(process: psutil.Process) -> float:
    """Seconds of processor time; none of one that has ended (Python workers do when idle)."""
    try:
        spent = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(spent.user + spent.system)


def _resident(processes: Mapping[str, psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes.values()) / 2**20


def _idle(server: EmbeddedPostgres, source: Source, running: Pipeline, seconds: float) -> Cost:
    processes = _processes(server, running)
    journal = source.directory / "journal"

    def files() -> int:
        return sum(1 for path in journal.rglob("*") if path.is_file())

    files_before, memory_before, began = files(), _resident(processes), time.monotonic()
    before = {name: _used(process) for name, process in processes.items()}
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    shares = {
        name: max(0.0, _used(process) - before[name]) / elapsed
        for name, process in processes.items()
    }
    known = {name: shares.pop(name) for name in ("driver", "JVM", "receiver")}
    return Cost(
        known | {"others": sum(shares.values())},
        (files_before, files()),
        (memory_before, _resident(_processes(server, running))),
    )


def idle(
    server: EmbeddedPostgres,
    directory: Path,
    spark: SparkSession,
    times: int,
    seconds: float = IDLE_SECONDS,
) -> Measure:
    """20 tables streaming, nothing written."""
    tables = tuple(f"t{number}" for number in range(TABLES))
    with fresh_source(server, directory, "idle", tables=tables) as source:
        _fill(source)
        with make_pipeline(source, spark) as running:
            running.wait_until_ready(timeout=300)
            time.sleep(_SETTLING_SECONDS)
            cost = _idle(server, source, running, seconds)
    return Measure("idle_cpu", cost.percent, 2, 1, "%", below=True, details=cost.details)


def many_tables(
    server: EmbeddedPostgres,
    directory: Path,
    spark: SparkSession,
    times: int,
    count: int = MANY_TABLES,
) -> Measure:
    """500 tables of which 20 are written to, then idleness; processor time and memory."""
    tables = tuple(f"t{number}" for number in range(count))
    with fresh_source(server, directory, "many_tables", tables=tables) as source:
        _fill(source)
        with make_pipeline(source, spark) as running:
            with timed() as ready:
                running.wait_until_ready(timeout=1800)
            with timed() as busy:
                _fill(source, tables[:BUSY_TABLES], start=1000)
                running.wait_until(lsn=source.position(), timeout=600)
            time.sleep(_SETTLING_SECONDS)
            cost = _idle(server, source, running, IDLE_SECONDS)
    details = cost.details | {
        "tables": str(count),
        "until ready": f"{ready.seconds:.1f} s",
        "1,000 rows into each of 20": f"{busy.seconds:.1f} s",
    }
    return Measure("many_tables", cost.percent, 2, 1, "%", below=True, details=details)


def _fill(source: Source, tables: tuple[str, ...] | None = None, start: int = 0) -> None:
    for table in tables or source.tables:
        source.fill(1000, start, table)
