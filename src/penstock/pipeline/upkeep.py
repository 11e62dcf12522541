"""When a destination gets to do its housekeeping for a table (compaction, say)."""

from __future__ import annotations

import logging
import time

from penstock.destinations.base import Destination
from penstock.pipeline.failures import failure_of
from penstock.schema import TableSchema

logger = logging.getLogger("penstock.pipeline.upkeep")

_EVERY_SECONDS = 30.0
_QUIET_SECONDS = 2.0
_BATCHES = 64


class Upkeep:
    """Now and then, when the table is quiet; for one that never is, after many batches."""

    def __init__(self) -> None:
        self._done_at = time.monotonic()
        self._done_batches = 0

    def due(self, batches: int, worked_at: float) -> bool:
        """Whether it is time, after so many batches, of which the last was then."""
        fresh, now = batches - self._done_batches, time.monotonic()
        if fresh == 0 or now - self._done_at < _EVERY_SECONDS:
            return False
        return now - worked_at >= _QUIET_SECONDS or fresh >= _BATCHES

    def run(self, destination: Destination, table: TableSchema | None, batches: int) -> None:
        """Do it, after so many batches, if there is a table."""
        try:
            if table is not None:
                destination.maintain(table)
        except Exception as error:
            # Housekeeping that fails harms nobody; the next batch would tell.
            logger.warning(
                "maintenance failed",
                extra={"table": str(table and table.name), "reason": failure_of(error).loggable},
            )
        finally:
            self._done_batches = batches
            self._done_at = time.monotonic()
