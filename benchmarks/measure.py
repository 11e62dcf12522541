"""What a benchmark says: a value, the floor it has to reach, and how it was got."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.testing.postgres import wait_for


@dataclass(frozen=True)
class Measure:
    """One line of the results. `below` says that smaller is better."""

    name: str
    value: float
    floor: float
    aim: float
    unit: str = ""
    below: bool = False
    details: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return self.value <= self.floor if self.below else self.value >= self.floor

    @property
    def aim_met(self) -> bool:
        return self.value <= self.aim if self.below else self.value >= self.aim

    def __str__(self) -> str:
        verdict = "met" if self.met else "short"
        return f"MEASURE {self.name} {self.value:.2f} floor {self.floor:g} {verdict}"


@dataclass
class Timing:
    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Timing]:
    timing = Timing()
    start = time.perf_counter()
    yield timing
    timing.seconds = time.perf_counter() - start


def clock_from(condition: Callable[[], object]) -> Callable[[], float]:
    """A clock that starts when `condition` first holds; it tells the seconds since then."""
    began: list[float] = []

    def watch() -> None:
        wait_for(condition)
        began.append(time.perf_counter())

    watcher = threading.Thread(target=watch)
    watcher.start()

    def elapsed() -> float:
        now = time.perf_counter()
        watcher.join()
        return now - began[0]

    return elapsed


@dataclass(frozen=True)
class Ratio:
    """The best of several runs, and all of them."""

    best: float
    runs: tuple[tuple[float, float], ...]

    @property
    def details(self) -> dict[str, str]:
        return {
            "reference": ", ".join(f"{reference:.2f} s" for reference, _ in self.runs),
            "ours": ", ".join(f"{ours:.2f} s" for _, ours in self.runs),
        }


def ratio(run: Callable[[], tuple[float, float]], times: int, *, warm_up: bool = False) -> Ratio:
    """Reference time over ours: the best of `times` runs, each with its own reference.

    With `warm_up` a run that does not count comes first: a JVM that has never done
    the like takes twice the time, and a pipeline runs for months.
    """
    if warm_up:
        run()
    runs = tuple(run() for _ in range(times))
    return Ratio(max(reference / ours for reference, ours in runs), runs)
