"""Signals, acted upon outside the code that they interrupt.

A handler runs in the main thread between any two of its instructions: also while that
thread holds a lock, or is in the handler already. Whatever takes a lock (`Event.set`,
logging) may then wait for itself, for ever. So the handler only passes the signal on,
by a queue that is made for this, to a thread that may do as it likes.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def keeping_handlers() -> Iterator[None]:
    """Put the handlers of the stop signals back after the block, if it has replaced them."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # Only the main thread may set a handler, so the block of another has set none.
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


class SignalRelay:
    """Calls `act` with the number of each stop signal, one after the other, in its own thread."""

    def __init__(self, act: Callable[[int], None]) -> None:
        self._act = act
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="signals", daemon=True).start()

    def install(self) -> None:
        """Take the signals; again when somebody else has put a handler in place of ours."""
        for number in STOP_SIGNALS:
            signal.signal(number, lambda number, _: self._came.put(number))

    def _run(self) -> None:
        while True:
            number = self._came.get()
            try:
                self._act(number)
            except Exception:
                logger.exception("a signal could not be acted upon", extra={"signal": number})
