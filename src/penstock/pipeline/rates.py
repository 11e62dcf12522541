"""How much, and how fast, over the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

_WINDOW = 10.0


class Meter:
    """Counts, and tells the rate over the last ten seconds. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._total = 0
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])

    @property
    def total(self) -> int:
        return self._total

    def add(self, count: int) -> None:
        with self._lock:
            self._total += count
            self._marks.append((self._clock(), self._total))
            self._forget()

    def reset(self) -> None:
        with self._lock:
            self._total = 0
            self._marks = deque([(self._clock(), 0)])

    @property
    def per_second(self) -> float:
        with self._lock:
            self._forget()
            since, before = self._marks[0]
            elapsed = self._clock() - since
            return (self._total - before) / elapsed if elapsed > 0 else 0.0

    def _forget(self) -> None:
        """Keep one mark at or before the window's start, to measure from."""
        horizon = self._clock() - _WINDOW
        while len(self._marks) > 1 and self._marks[1][0] <= horizon:
            self._marks.popleft()
