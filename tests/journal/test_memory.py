"""When the receiver has to wait for memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.config import MIB, BackpressureConfig, BatchConfig, PgConnection, PipelineConfig
from penstock.journal.memory import (
    MemoryGauge,
    MemoryWatch,
    cgroup_of_this_process,
    machine_memory,
)
from penstock.journal.scribe import Scribe
from penstock.journal.writer import JournalWriter
from penstock.testing.postgres import wait_for
from penstock.testing.sample_tables import NOTES


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
    answers = [watched.paused(0, held) for held in (0, 799, 800, 500, 400, 399, 500)]
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


VERSION_2 = {
    "memory.max": "1000",
    "memory.current": "950",
    "memory.stat": "anon 5\ninactive_file 50\n",
}
VERSION_1 = {
    "memory.limit_in_bytes": "1000",
    "memory.usage_in_bytes": "950",
    "memory.stat": "inactive_file 7\ntotal_inactive_file 50\n",
}


@pytest.mark.parametrize(
    ("line", "place", "files"),
    [
        ("0::/a/b", "a/b", VERSION_2),
        ("0::/a/b", "a", VERSION_2),  # a limit of the group around it
        ("0::/host/path", "", VERSION_2),  # in a namespace
        ("4:cpu,memory:/a", "memory/a", VERSION_1),
        ("4:memory:/host/path", "memory", VERSION_1),
    ],
)
def test_the_control_group_of_either_version_is_found(
    tmp_path: Path, line: str, place: str, files: dict[str, str]
) -> None:
    proc, directory = tmp_path / "proc", tmp_path / "mount" / place
    proc.write_text(f"1:pids:/x\n{line}\n")
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    group = cgroup_of_this_process(proc, tmp_path / "mount")
    assert group is not None
    assert (group.limit, group.used()) == (1000, 900)


def test_a_group_without_a_limit_is_none(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_of_this_process(tmp_path / "nothing", tmp_path) is None


@pytest.mark.parametrize("family", [False, True])
def test_a_process_near_its_limit_is_seen(monkeypatch: pytest.MonkeyPatch, family: bool) -> None:
    limits = BackpressureConfig(activate=0.8, resume=0.4, refresh_interval_ms=1)
    watch = MemoryWatch(limits, family=family)
    assert 0 < watch._share() < 0.8
    rss = watch._process.memory_info().rss
    for memory, full in ((rss * 100, False), (rss, True), (rss * 2, True), (rss * 100, False)):
        watch._memory, watch._group, watch._next_look = memory, None, 0.0
        assert watch.full() is full
    watch = MemoryWatch(None, family=family)
    watch._memory = 1
    assert not watch.full()


def test_near_the_limit_what_was_read_is_decoded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = gauge(2000)
    monkeypatch.setattr(watched._watch, "full", lambda: True)
    assert watched.paused(1, 0)
    assert not watched.paused(0, 399), "or an open transaction would never end"


def test_backpressure_can_be_off() -> None:
    config = PipelineConfig(
        id=7, publication_name="p", pg_connection=PgConnection(), memory_backpressure=None
    )
    assert config.id == "7"
    assert not MemoryGauge(config, 1000).paused(10**9, 10**9)
    assert MemoryGauge(config, 1000).flush_bytes > 0
