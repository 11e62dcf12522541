"""How a command that runs for long is stopped from outside.

The first SIGINT or SIGTERM asks: it only sets an event, and whoever runs looks at
it. The second ends the process and its children at once. Both are safe, since
a pipeline must survive worse; the first is tidier.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

import psutil

from penstock.signals import SignalRelay


class StopRequest:
    """`asked` is set by the first signal. Install it again after starting Spark,
    which puts a handler of its own in place of ours. `say` tells whoever asked that it
    was heard; who draws on the terminal puts a way of its own there. `tidy` removes files before
    the process ends at once."""

    def __init__(self, farewell: str, tidy: Callable[[], None] = lambda: None) -> None:
        self.asked = threading.Event()
        self.say: Callable[[str], None] = _say
        self._farewell = farewell
        self._tidy = tidy
        self.install = SignalRelay(self._act).install

    def _act(self, number: int) -> None:
        if self.asked.is_set():
            try:
                end_children()
                self._tidy()
            finally:
                os._exit(128 + number)
        self.asked.set()
        # Beside us: a terminal that takes nothing must not keep us from the next signal.
        threading.Thread(target=self._bid_farewell, name="farewell", daemon=True).start()

    def _bid_farewell(self) -> None:
        with contextlib.suppress(OSError):  # nobody is there any more to read it
            self.say(f"{self._farewell}; once more to stop at once")


def _say(text: str) -> None:
    """A line on standard error, unless nobody reads there: then the next signal matters more."""
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{text}\n".encode())


def end_children(timeout: float = 10.0) -> None:
    """Kill what is left of the processes that this one started, and see them gone."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout)
