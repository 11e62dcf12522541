"""Maintenance: of the journal, every few seconds in its own thread, and of the tables.

`MaintenanceThread` retires segments and hands over requests. Both may take a while, so they
are kept off the scheduler's thread. `TableMaintenance` decides when a destination maintains
a table (compaction, for example).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Thread
from typing import TYPE_CHECKING

from penstock.destinations.base import Destination
from penstock.errors import PenstockError
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.failures import failure_of, run_reporting
from penstock.pipeline.requests import Requests
from penstock.schema import TableSchema

if TYPE_CHECKING:
    from penstock.pipeline.retention import Retention
    from penstock.pipeline.scheduler import Scheduler

logger = logging.getLogger("penstock.pipeline.maintenance")

_INTERVAL = 2.0

_EVERY_SECONDS = 30.0
_QUIET_SECONDS = 2.0
_BATCHES = 64


class MaintenanceThread:
    """Retires segments, and has done what is asked of tables from outside.

    `on_failure` gets what fails the pipeline, from its thread.
    """

    def __init__(
        self,
        context: PipelineContext,
        scheduler: Scheduler,
        retention: Retention,
        on_failure: Callable[[PenstockError], None],
    ) -> None:
        self._context = context
        self._on_failure = on_failure
        self._scheduler = scheduler
        self._retention = retention
        self._requests = Requests(context.journal.root)
        self._thread = Thread(target=self._run, name="penstock-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._context.stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        run_reporting(self._loop, "maintenance", self._on_failure)

    def _loop(self) -> None:
        while not self._context.stopping.wait(_INTERVAL):
            try:
                freed = self._retention.retire()
                if freed:
                    logger.debug("journal retired", extra={"bytes": freed})
                self._scheduler.answer(self._requests)
            except (PenstockError, OSError) as error:
                # Nothing is lost by keeping more; the tables' own work meets
                # the same trouble and says so.
                logger.warning("maintenance failed", extra={"reason": str(error)})


class TableMaintenance:
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
            # Maintenance that fails harms nobody; the next batch would tell.
            logger.warning(
                "maintenance failed",
                extra={"table": str(table and table.name), "reason": failure_of(error).loggable},
            )
        finally:
            self._done_batches = batches
            self._done_at = time.monotonic()
