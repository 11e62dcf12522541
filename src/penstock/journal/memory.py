"""How much memory there is, how much of it is in use, and when a process has to wait.

Two limits hold at once. The first is the receiver's budget, a share of the memory that this process
may use (`batch.memory_budget_ratio`). Frames not yet decoded and changes not yet written count
against it. Flushes come early enough on a small machine to stay below it. If decoding and writing
are slower than reading all the same, reading pauses at one share of the budget and resumes at a
smaller one.

The second is the memory itself. What a process holds is more than what it counts, and in a
container it shares the limit with other processes, such as Spark's JVM. Near that limit the
receiver decodes what it has read before it reads more, and the driver starts no job next to one
that runs. Neither stops altogether: nothing might ever make the memory free.

`memory_backpressure: null` turns both kinds of pauses off.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.config import BackpressureConfig, PipelineConfig

_PROC = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A control group with a limit. `usage` and `stat` are files of the kernel."""

    limit: int
    usage: Path
    stat: Path
    reclaimable: str
    """The line of `stat` with the bytes of files that the kernel drops when memory is short."""

    def used(self) -> int:
        """Return the bytes in use, without what the kernel can take back."""
        used = int(self.usage.read_text())
        for line in self.stat.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == self.reclaimable:
                return max(0, used - int(count))
        return used


def cgroup_of_this_process(proc: Path = _PROC, mount: Path = _CGROUPS) -> Cgroup | None:
    """Return the group with the smallest limit that this process is in, of version 1 or 2.

    A container sees its own group either at the path that the kernel tells or, with a
    namespace, at the top.
    """
    found = []
    for place, version in _places(proc, mount):
        limit, usage, reclaimable = (
            ("memory.max", "memory.current", "inactive_file")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        try:
            text = (place / limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # and not "max"
            found.append(Cgroup(int(text), place / usage, place / "memory.stat", reclaimable))
    return min(found, key=lambda group: group.limit, default=None)


def _places(proc: Path, mount: Path) -> list[tuple[Path, int]]:
    """Return the directories of the groups that this process is in, and their versions."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        lines = []
    places = []
    for line in [*lines, "0::/", "0:memory:/"]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root, version = (mount / "memory", 1) if controllers else (mount, 2)
        inside = Path(path.lstrip("/"))
        places += [(root / each, version) for each in (inside, *inside.parents)]
    return places


def machine_memory() -> int:
    """Return the bytes that this process could use at the most."""
    total = int(psutil.virtual_memory().total)
    group = cgroup_of_this_process()
    return min(total, group.limit) if group else total


class MemoryWatch:
    """Whether this process, or its control group, is near the limit of its memory.

    With `family`, the processes that this one has started count as well.
    """

    def __init__(self, backpressure: BackpressureConfig | None, *, family: bool = False) -> None:
        self._backpressure = backpressure
        self._group = cgroup_of_this_process()
        self._memory = machine_memory()
        self._process = psutil.Process()
        self._family = family
        self._next_look = 0.0
        self._full = False

    def full(self) -> bool:
        """Return whether to take less. Looks again at every interval."""
        limits, now = self._backpressure, time.monotonic()
        if limits is None:
            return False
        if now >= self._next_look:
            # To find all processes of a family takes some ten milliseconds.
            self._next_look = now + limits.refresh_interval_ms / 1000 * (10 if self._family else 1)
            self._full = self._share() >= (limits.resume if self._full else limits.activate)
        return self._full

    def _share(self) -> float:
        """Return how much of the memory is in use, from 0 to 1."""
        used = self._process.memory_info().rss
        if self._family:
            for child in self._process.children(recursive=True):
                try:
                    used += child.memory_info().rss
                except psutil.Error:
                    continue  # it has ended
        shares = [used / self._memory]
        if self._group is not None and self._group.limit <= self._memory:
            try:
                shares.append(self._group.used() / self._group.limit)
            except OSError:
                self._group = None  # this process was moved to another group
        return max(shares)


class MemoryGauge:
    """Says whether the receiver has to pause, given what it holds now."""

    def __init__(self, config: PipelineConfig, memory: int | None = None) -> None:
        limits = config.memory_backpressure or BackpressureConfig()
        budget = (machine_memory() if memory is None else memory) * config.batch.memory_budget_ratio
        self._off = config.memory_backpressure is None
        self._activate = budget * limits.activate
        self._resume = budget * limits.resume
        self._interval = limits.refresh_interval_ms / 1000
        self._watch = MemoryWatch(config.memory_backpressure)
        self._next_look = 0.0
        self._paused = False
        self.flush_bytes = int(min(config.batch.max_bytes, self._resume / 2))
        """A flush, or a piece of an open transaction, is written at this size."""

    def paused(self, waiting: int, built: int) -> bool:
        """Return whether to pause with `waiting` bytes to decode and `built` bytes to write.

        Where the machine's memory is full, only bytes that wait for their decoding are a reason:
        an open transaction is written when it is larger or has ended, for which more has to be
        read.
        """
        now = time.monotonic()
        if now >= self._next_look and not self._off:
            self._next_look = now + self._interval
            over = waiting + built >= (self._resume if self._paused else self._activate)
            self._paused = over or (waiting > 0 and self._watch.full())
        return self._paused
