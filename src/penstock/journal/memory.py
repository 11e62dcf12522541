"""How much the receiver may hold in memory, and when it has to wait.

The budget is a share of the machine's memory (of the container's, where there is
a limit). What counts against it are frames not yet decoded and changes not yet
written. Flushes come early enough on a small machine to stay below it; if decoding
and writing fall behind all the same, reading pauses at one share of the budget and
resumes at a smaller one.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from penstock.config import PipelineConfig

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_memory() -> int:
    """Bytes that this process could use at the most."""
    total = int(psutil.virtual_memory().total)
    try:
        limit = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


class MemoryGauge:
    """Says whether to pause, given what is held now. Looks anew at every interval."""

    def __init__(self, config: PipelineConfig, memory: int | None = None) -> None:
        backpressure = config.memory_backpressure
        budget = (machine_memory() if memory is None else memory) * config.batch.memory_budget_ratio
        self._activate = budget * backpressure.activate
        self._resume = budget * backpressure.resume
        self._interval = backpressure.refresh_interval_ms / 1000
        self._next_look = 0.0
        self._paused = False
        self.flush_bytes = int(min(config.batch.max_bytes, self._resume / 2))
        """A flush, or a piece of an open transaction, is written at this size."""

    def paused(self, held: int) -> bool:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._interval
            self._paused = held >= (self._resume if self._paused else self._activate)
        return self._paused
