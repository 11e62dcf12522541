"""Slot to durable journal, against `pg_recvlogical` to a file; and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Measure, Ratio, ratio, timed
from benchmarks.source import Source, fresh_source
from penstock.config import PipelineConfig
from penstock.journal.journal import Journal
from penstock.schema import ZERO_LSN
from penstock.testing import EmbeddedPostgres
from penstock.testing.postgres import wait_for


@dataclass(frozen=True)
class ReceiverChild:
    """A receiver as a pipeline runs it: a process of its own, streaming already."""

    process: subprocess.Popen[bytes]
    journal: Journal

    def wait_until(self, changes: int) -> None:
        """Until so many changes are durable in the journal."""

        def reached() -> bool:
            assert self.process.poll() is None, "the receiver died"
            self.journal.refresh()
            return changes <= sum(
                segment.rows
                for table in self.journal.tables()
                for flush in self.journal.pending(table, ZERO_LSN)
                for segment in flush.segments
            )

        wait_for(reached, limit=600)


def peak_memory(pid: int) -> int:
    """The most memory that a process ever had in use, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no VmHWM in /proc")


@contextmanager
def receiver(config: PipelineConfig) -> Iterator[ReceiverChild]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.journal.receiver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    settings = config.model_dump(mode="json")
    settings["pg_connection"] = config.pg_connection.parameters()
    process.stdin.write(json.dumps(settings).encode() + b"\n")
    process.stdin.flush()
    event = json.loads(process.stdout.readline())
    assert event["event"] == "streaming", event
    try:
        yield ReceiverChild(process, Journal(config.journal_path))
    finally:
        process.stdin.close()
        process.wait()


def against_recvlogical(
    server: EmbeddedPostgres, directory: Path, work: Callable[[Source], int], times: int
) -> Ratio:
    numbers = iter(range(times))

    def run() -> tuple[float, float]:
        with fresh_source(server, directory, f"receive_{next(numbers)}") as source:
            with receiver(source.config()):
                pass  # makes slot and journal
            source.reference_slot()
            changes = work(source)
            reference = source.drain_reference()
            with receiver(source.config()) as child, timed() as timing:
                child.wait_until(changes)
            return reference, timing.seconds

    return ratio(run, times)


def inserts(server: EmbeddedPostgres, directory: Path, times: int) -> Measure:
    found = against_recvlogical(server, directory, lambda s: s.insert(1_000_000), times)
    return Measure("receive_inserts", found.best, 0.85, 0.97, details=found.details)


def mixed(server: EmbeddedPostgres, directory: Path, times: int) -> Measure:
    found = against_recvlogical(server, directory, Source.mixed_changes, times)
    return Measure("receive_mixed", found.best, 0.80, 0.95, details=found.details)


def memory_over(
    name: str, server: EmbeddedPostgres, directory: Path, work: Callable[[Source], int]
) -> Measure:
    """Peak memory of the receiver over what is written in one go."""
    with fresh_source(server, directory, name) as source:
        with receiver(source.config()):
            pass
        changes = work(source)
        with receiver(source.config()) as child, timed() as timing:
            child.wait_until(changes)
            peak = peak_memory(child.process.pid)
    details = {"drained in": f"{timing.seconds:.2f} s"}
    return Measure(name, peak / 2**20, 600, 400, "MiB", below=True, details=details)


def memory(server: EmbeddedPostgres, directory: Path, times: int) -> Measure:
    """Peak memory of the receiver over one transaction of 5M rows."""

    def work(source: Source) -> int:
        return source.insert(5_000_000, per_transaction=5_000_000)

    return memory_over("receiver_memory", server, directory, work)
