"""What has to be done every few seconds and can take a while: off the scheduler's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

from penstock.errors import PenstockError
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.failures import run_reporting
from penstock.pipeline.requests import Requests
from penstock.pipeline.retention import Retention
from penstock.pipeline.scheduler import Scheduler

logger = logging.getLogger("penstock.pipeline.housekeeper")

_INTERVAL = 2.0


class Housekeeper:
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
        self._thread = Thread(target=self._run, name="penstock-housekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._context.stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        run_reporting(self._loop, "housekeeper", self._on_failure)

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
                logger.warning("housekeeping failed", extra={"reason": str(error)})
