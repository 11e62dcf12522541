"""A store that is away for a while, and how long it is waited for.

It may be on the same server as the source, so whatever the source may do (restart, fail
over) it may do too. What a table was doing is repeated after a pause, as after a restart.
"""

from __future__ import annotations

import logging
import time
from threading import Event

from penstock.errors import PenstockError

logger = logging.getLogger("penstock.pipeline.outage")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
_PATIENCE = 600.0


class StoreOutage:
    """What one table has seen of it since its last success. `stopping` ends every pause."""

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping
        self._began: float | None = None
        self._pause = _FIRST_PAUSE

    def bear(self, error: PenstockError, table: str) -> None:
        """Pause, for longer each time; raises `error` when this has been going on for too long."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        elif now - self._began >= _PATIENCE:
            raise error
        logger.warning(
            "store failed, trying again",
            extra={"table": table, "reason": error.message, "pause": self._pause},
        )
        self._stopping.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def over(self) -> None:
        """The store took what it was given."""
        self._began, self._pause = None, _FIRST_PAUSE
