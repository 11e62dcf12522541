"""When the receiver has to wait for memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.config import MIB, BackpressureConfig, BatchConfig, PgConnection, PipelineConfig
from penstock.journal.memory import MemoryGauge, machine_memory
from penstock.journal.scribe import Scribe
from penstock.journal.writer import JournalWriter
from penstock.testing.sample_tables import NOTES
from penstock.testing.waiting import wait_for


def gauge(memory: int) -> MemoryGauge:
    config = PipelineConfig(
        id="x",
        publication_name="p",
        pg_connection=PgConnection(),
        batch=BatchConfig(max_bytes=1000, memory_budget_ratio=0.5),
        memory_backpressure=BackpressureConfig(activate=0.8, resume=0.4, refresh_interval_ms=1),
    )
    gauge = MemoryGauge(config, memory)
    gauge._interval = 0.0
    return gauge


def test_reading_pauses_at_one_share_and_resumes_at_a_smaller_one() -> None:
    watched = gauge(2000)
    answers = [watched.paused(held) for held in (0, 799, 800, 500, 400, 399, 500)]
    assert answers == [False, False, True, True, True, False, False]


def test_flushes_are_smaller_on_a_small_machine() -> None:
    assert gauge(2**30).flush_bytes == 1000
    assert gauge(2000).flush_bytes == 200


def test_rows_larger_than_a_buffer_count_with_their_size(tmp_path: Path) -> None:
    config = PipelineConfig(
        id="x",
        publication_name="p",
        pg_connection=PgConnection(),
        batch=BatchConfig(memory_budget_ratio=200 * MIB / machine_memory()),
    )
    scribe = Scribe(config, JournalWriter(tmp_path), lambda _: NOTES)
    try:
        buffer = scribe.fresh_buffer(0)
        assert buffer is not None
        assert not scribe.pause
        buffer.data = np.empty(300 * MIB, np.uint8)
        buffer.size, buffer.count = buffer.data.size, 1
        wait_for(lambda: scribe.pause)
    finally:
        scribe.close()


def test_the_machine_has_memory() -> None:
    assert machine_memory() > 2**20
