"""How a command that runs for long is stopped from outside.

The first SIGINT or SIGTERM asks: it only sets an event, and whoever runs looks at
it. The second ends the process and its children at once. Both are safe, since
a pipeline must survive worse; the first is tidier.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType

import psutil

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """`asked` is set by the first signal. Install it again after starting Spark,
    which puts a handler of its own in place of ours."""

    def __init__(self, farewell: str) -> None:
        self.asked = threading.Event()
        self._farewell = farewell

    def install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.asked.is_set():
            end_children()
            os._exit(128 + number)
        self.asked.set()
        # Not through logging: the thread interrupted here may be inside it.
        os.write(2, f"{self._farewell}; once more to stop at once\n".encode())


def end_children(timeout: float = 10.0) -> None:
    """Kill what is left of the processes that this one started, and see them gone."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout)
