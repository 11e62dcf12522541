"""A receiver that may hold little: it pauses often, and always goes on."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import MIB, BackpressureConfig, BatchConfig, PgConnection, PipelineConfig
from penstock.journal.decoder import ChangeDecoder
from penstock.journal.flush import FlushBuilder
from penstock.journal.journal import JournalOwner
from penstock.journal.memory import MemoryGauge, machine_memory
from penstock.journal.scribe import Scribe
from penstock.journal.writer import JournalWriter
from penstock.postgres.libpq import CopyBuffer
from penstock.schema import ZERO_LSN
from penstock.testing.postgres import wait_for
from penstock.testing.sample_tables import NOTES
from tests.journal.test_decoder_fuzz import BEGIN, COMMIT, OID, Relations, frame


def budget(size: int) -> BatchConfig:
    return BatchConfig(memory_budget_ratio=size / machine_memory())


def config(batch: BatchConfig) -> PipelineConfig:
    return PipelineConfig(id="x", publication_name="p", pg_connection=PgConnection(), batch=batch)


def fill(buffer: CopyBuffer, size: int) -> None:
    """Have the buffer hold one keepalive of `size` bytes, which the decoder passes over."""
    if size > buffer.data.size:
        buffer.data = np.empty(size, np.uint8)
    buffer.data[0] = ord("k")
    buffer.ends[0] = buffer.size = size
    buffer.count = 1


def wide_rows(columns: int, count: int, *end: bytes) -> CopyBuffer:
    """A buffer with a transaction that inserts rows of nothing but NULLs."""
    named = b"".join(b"\0c%d\0" % i + struct.pack(">Ii", 20, -1) for i in range(columns))
    relation = struct.pack(">I", OID) + b"public\0t\0f" + struct.pack(">H", columns) + named
    insert = frame(struct.pack(">cIcH", b"I", OID, b"N", columns) + b"n" * columns)
    messages = [BEGIN, frame(b"R" + relation), *[insert] * count, *end]
    buffer = CopyBuffer(1, len(messages))
    buffer.data = np.frombuffer(b"".join(messages), np.uint8).copy()
    buffer.ends[:] = np.cumsum([len(message) for message in messages])
    buffer.size, buffer.count = buffer.data.size, len(messages)
    return buffer


def journaled_rows(running: Any, name: str) -> int:
    journal = running.catch_up()
    flushes = journal.pending(running.schema(journal, name).id, ZERO_LSN)
    return sum(segment.rows for flush in flushes for segment in flush.segments)


@pytest.fixture
def frugal(tmp_path: Path) -> Iterator[Scribe]:
    """A scribe with room for 2 MiB. It is full at 1.7 and goes on below 1.5."""
    journal = JournalWriter(tmp_path)
    journal.claim(JournalOwner("slot", "1", "db"))
    scribe = Scribe(config(budget(2 * MIB)), journal, lambda _: NOTES)
    yield scribe
    scribe.close()


def test_an_empty_buffer_counts_as_nothing(frugal: Scribe) -> None:
    assert frugal.fresh_buffer(0) is not None
    assert not frugal.pause


def test_frames_count_with_their_size(frugal: Scribe) -> None:
    buffer = frugal.fresh_buffer(0)
    assert buffer is not None
    fill(buffer, MIB)
    assert not frugal.pause
    fill(buffer, 2 * MIB)
    wait_for(lambda: frugal.pause)


@pytest.mark.parametrize("size", [10 * MIB, 20 * MIB, 31 * MIB, 40 * MIB])
def test_a_pause_ends_when_the_frames_are_decoded(frugal: Scribe, size: int) -> None:
    buffer = frugal.fresh_buffer(0)
    for _ in range(4):
        assert buffer is not None
        fill(buffer, size)
        wait_for(lambda: frugal.pause)
        frugal.take(buffer)
        buffer = frugal.fresh_buffer(0)
        wait_for(lambda: not frugal.pause)
        frugal.check()


@pytest.mark.parametrize("grown", [17, 20, 32, 33])
def test_a_buffer_that_has_grown_goes_back_to_its_first_size(grown: int) -> None:
    buffer = CopyBuffer(16, 4)
    buffer.data = np.empty(grown, np.uint8)
    buffer.clear()
    assert buffer.data.size == 16


def test_a_buffer_that_has_not_grown_is_kept() -> None:
    buffer = CopyBuffer(16, 4)
    data = buffer.data
    fill(buffer, 16)
    buffer.clear()
    assert buffer.data is data
    assert (buffer.size, buffer.count) == (0, 0)


@pytest.mark.parametrize("memory", [1, 2, 3, 10, 1000, 4 * MIB, 2**40])
def test_what_no_flush_is_due_for_never_keeps_a_pause_up(memory: int) -> None:
    """Closed changes and those of an open transaction may each wait below a flush's size."""
    gauge = MemoryGauge(config(BatchConfig(memory_budget_ratio=1)), memory)
    gauge._interval = 0.0
    assert gauge.paused(memory, 0)
    assert not gauge.paused(0, 2 * max(gauge.flush_bytes - 1, 0))


@pytest.mark.parametrize("end", [(), (COMMIT,)], ids=["open", "closed"])
def test_wide_rows_of_nulls_are_decoded_and_written_piece_by_piece(
    tmp_path: Path, end: tuple[bytes, ...]
) -> None:
    """The buffer has 10 MB. All its values take 75 as Arrow, and their places 115 before that."""
    journal = JournalWriter(tmp_path)
    journal.claim(JournalOwner("slot", "1", "db"))
    builder = FlushBuilder(journal, 4 * MIB)
    frames = wide_rows(1600, 6000, *end)
    tracemalloc.start()
    try:
        decoded = ChangeDecoder({}, Relations()).decode(frames)
        builder.add(decoded)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * MIB
    segments = [*builder._closed.segments, *builder._open.segments]
    waiting = [*builder._closed.chunks, *builder._open.chunks]
    assert sum(s.rows for s in segments) + sum(c.rows.num_rows for c in waiting) == 6000


@pytest.mark.parametrize("size", [1000, 3 * MIB, 18 * MIB])
def test_a_tiny_budget_receives_everything(receiver: Any, size: int) -> None:
    often = BackpressureConfig(refresh_interval_ms=1)
    running = receiver(batch=budget(size), memory_backpressure=often)
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    many = "INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series({}, {}) g"
    running.execute(many.format(1, 5000))
    running.execute("INSERT INTO t SELECT 0, repeat('x', 40000000)")
    running.execute(many.format(5001, 10_000))
    assert journaled_rows(running, "t") == 10_001
    wait_for(lambda: running.events[-1]["event"] != "paused", "receiving goes on")
    assert any(event["event"] == "resumed" for event in running.events)


def test_large_rows_leave_nothing_behind_that_counts(receiver: Any) -> None:
    """Rows that make each buffer grow, if not to twice its size; the budget holds only two."""
    running = receiver(batch=budget(64 * MIB))
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for row in range(6):
        running.execute(f"INSERT INTO t SELECT {row}, repeat('x', 31000000)")
    running.execute("INSERT INTO t SELECT 100 + g, 'small' FROM generate_series(1, 2000) g")
    assert journaled_rows(running, "t") == 2006
