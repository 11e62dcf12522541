"""When the receiver has to wait for memory."""

from __future__ import annotations

from penstock.config import BackpressureConfig, BatchConfig, PgConnection, PipelineConfig
from penstock.journal.memory import MemoryGauge, machine_memory


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


def test_the_machine_has_memory() -> None:
    assert machine_memory() > 2**20
