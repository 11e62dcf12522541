"""What runs while a pipeline runs, around one journal: started in order, stopped in the other.

A slot that is lost takes its journal with it. A pipeline that may begin anew then stops
this and makes another; store, destination and Spark stay as they are.

The slot must exist before the first table's writers are waited for and its snapshot is
taken, or changes between the two would be in neither. The journal's first manifest says
that it does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack

from penstock.errors import PenstockError
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.copier import remove_leftovers
from penstock.pipeline.maintenance import MaintenanceThread
from penstock.pipeline.receiver_process import ReceiverProcess
from penstock.pipeline.retention import Retention
from penstock.pipeline.scheduler import Scheduler
from penstock.pipeline.source_watch import Membership, SourceWatch
from penstock.schema import TableId

logger = logging.getLogger("penstock.pipeline")

_POLL = 0.02
_LOG_WAIT = 10.0


class Runtime:
    """Receiver, watch, scheduler and maintenance. Runs once; `on_failure` gets what ends it."""

    def __init__(
        self, context: PipelineContext, on_failure: Callable[[PenstockError], None]
    ) -> None:
        self._context = context
        self._on_failure = on_failure
        self._failure: PenstockError | None = None
        self.scheduler = Scheduler(context, self._fail)
        self._retention = Retention(context, self.scheduler)
        self.watch = SourceWatch(context, self._join, self._fail)
        self.receiver = ReceiverProcess(context.config, self._fail)
        self._closing = ExitStack()

    def start(self, check: Callable[[], None]) -> None:
        """Start everything; `check` raises if there is no use in waiting for the slot."""
        context, closing = self._context, self._closing
        closing.callback(self.receiver.stop)
        self.receiver.start()
        self._wait_for_slot(check)
        remove_leftovers(context.journal)

        membership = self.watch.membership()
        if membership is not None:
            self._retention.note_membership(_ids(membership), membership.as_of)
            self.scheduler.set_membership(membership)
        maintenance = MaintenanceThread(context, self.scheduler, self._retention, self._fail)
        closing.callback(self.scheduler.stop)
        closing.callback(maintenance.stop)
        closing.callback(self.watch.stop)
        closing.callback(self.receiver.terminate)
        self.scheduler.start()
        maintenance.start()
        self.watch.start()

    def stop(self) -> None:
        """Stop intake, let running writes finish, move cursors. Idempotent."""
        self._context.stopping.set()
        self._closing.close()
        self.watch.stop()

    def _fail(self, error: PenstockError) -> None:
        self._failure = error
        self._on_failure(error)

    def _join(self, membership: Membership) -> None:
        """Take in what the publication holds; retention last, so that nothing of a table
        goes that the scheduler does not know yet."""
        self.scheduler.set_membership(membership)
        self._retention.note_membership(_ids(membership), membership.as_of)

    def _wait_for_slot(self, check: Callable[[], None]) -> None:
        """Until the journal has its first manifest. Making a slot waits for running
        transactions, so this may take as long as they do."""
        journal = self._context.journal
        log_at = time.monotonic() + _LOG_WAIT
        while True:
            failure = self._failure
            journal.refresh()
            if not journal.empty and self.receiver.settled:
                return
            check()
            if failure is not None:
                raise failure  # the journal has by now whatever came before it
            if time.monotonic() >= log_at:
                slot = self._context.config.slot_name
                logger.info("waiting for the slot", extra={"slot": slot})
                log_at = time.monotonic() + _LOG_WAIT
            time.sleep(_POLL)


def _ids(membership: Membership) -> frozenset[TableId]:
    return frozenset(table.schema.id for table in membership.tables)
