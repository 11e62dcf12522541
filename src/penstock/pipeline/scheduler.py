"""Who works when: follows the journal and hands tables to pools of threads.

One thread looks into the journal every few milliseconds (a failed `open` when
nothing is new) and, when something is new or a table has finished its job, gives
every table that has something to do to a pool. Copies, batches and maintenance
have pools of their own, so none of them waits for another kind. Maintenance is for one
table at a time, and no other queues for it: it would be kept from its batches. Tables
that waited longest go first.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Event, RLock, Thread

from penstock.errors import DEFECT, ErrorKind, PenstockError, named_cause
from penstock.failpoints import failpoint
from penstock.journal.memory import MemoryWatch
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.copier import note_departure
from penstock.pipeline.failures import run_reporting
from penstock.pipeline.requests import Action, Requests
from penstock.pipeline.source_watch import Membership
from penstock.pipeline.table import Job, PipelineTable
from penstock.postgres.catalog import PublishedTable
from penstock.publication_drift.drift import forget_terms
from penstock.schema import TableId
from penstock.states import Errored, Init

logger = logging.getLogger("penstock.pipeline.scheduler")

_POLL, _IDLE_POLL = 0.02, 0.1
_IDLE_AFTER = 5.0
_LOOK_AROUND, _LOOK_SHARE = 1.0, 0.001
_FORGET_PAUSE = 2.0


class Scheduler:
    """Runs the tables' jobs until stopped. `on_failure` gets what fails the pipeline."""

    def __init__(
        self, context: PipelineContext, on_failure: Callable[[PenstockError], None]
    ) -> None:
        config = context.config
        self._context = context
        self._on_failure = on_failure
        self._tables: dict[TableId, PipelineTable] = {}
        self._lock = RLock()
        self._next_retry: datetime | None = None
        self._forget_at = self._look_at = 0.0
        self._settled = False
        self._wake = Event()
        self._memory = MemoryWatch(config.memory_backpressure, family=True)
        self.seen: Membership | None = None
        self._pools = {
            Job.COPY: ThreadPoolExecutor(config.max_table_sync_workers, "penstock-copy"),
            Job.APPLY: ThreadPoolExecutor(config.max_apply_workers, "penstock-apply"),
            Job.MAINTAIN: ThreadPoolExecutor(1, "penstock-maintain"),
        }
        self._thread = Thread(target=self._run, name="penstock-scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    def stop(self) -> None:
        """Hand out nothing more, let running jobs finish, make accepted writes safe."""
        self._context.stopping.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)
        for table in self.tables():
            table.finish()

    def tables(self) -> list[PipelineTable]:
        """The tables, by name."""
        with self._lock:
            return sorted(self._tables.values(), key=lambda table: table.name)

    def set_membership(self, membership: Membership) -> None:
        """Take in what the publication held."""
        found = {table.schema.id: table for table in membership.tables}
        store = self._context.store
        with self._lock:
            for table_id, entry in found.items():
                known = self._tables.get(table_id)
                if known is None:
                    self._add(entry, membership)
                elif known.leaving:
                    continue  # it left and came back; added when it is gone
                else:
                    known.see(entry, membership)
            for table_id, table in self._tables.items():
                table.leaving |= table_id not in found
            for table_id in set(store.get_table_states()) - set(found) - set(self._tables):
                self._forget(table_id, str(table_id))
        self.seen = membership
        self.wake()

    def between_jobs(self, table: PipelineTable, action: Callable[[], None]) -> bool:
        """Do something to a table while no job of its can run; False when one does.

        Nothing that waits: all tables would.
        """
        with self._lock:
            if table.job is not None:
                return False
            action()
            return True

    def answer(self, requests: Requests) -> None:
        """Have what was asked from outside done by the tables' next jobs; a request stays
        until it is."""
        for request in requests.pending():
            with self._lock:
                table = self._tables.get(request.table_id)
            if table is None:
                logger.warning(
                    "asked for a table that is not here",
                    extra={"table": str(request.table_id), "action": str(request.action)},
                )
                requests.done(request)
            elif table.errand is None:
                act = table.retry if request.action is Action.RETRY else table.resync
                table.errand = partial(requests.answer, request, act)
                self.wake()

    def _add(self, entry: PublishedTable, membership: Membership) -> None:
        store, table_id = self._context.store, entry.schema.id
        state = store.get_table_state(table_id)
        if state is None:
            state = Init()
            store.update_table_state(table_id, state)
            logger.info("table found", extra={"table": str(entry.schema.name)})
        if isinstance(state, Errored):
            retry = state.retry_policy.kind
            told = {"table": str(entry.schema.name), "retry": retry, "why": "see penstock status"}
            logger.warning("table is errored", extra=told)
        self._tables[table_id] = table = PipelineTable(self._context, entry, state, self.wake)
        table.see(entry, membership)  # it may have changed while no pipeline ran

    def _forget(self, table_id: TableId, name: str) -> None:
        """A table left the publication. Its segments go at the next retirement."""
        store, journal = self._context.store, self._context.journal
        if time.monotonic() < self._forget_at:
            return
        try:
            if store.get_destination_table_metadata(table_id) is not None:
                # First: with its metadata the store forgets that the table was ever copied.
                note_departure(journal, table_id)
            store.delete_table_state(table_id)
            failpoint("table_forgotten")
            forget_terms(journal, table_id)
        except (PenstockError, OSError) as error:
            # The store or the disk: tables that still have work tell if it stays away.
            logger.warning(
                "a table that left cannot be forgotten yet",
                extra={"table": name, "reason": str(error)},
            )
            self._forget_at = time.monotonic() + _FORGET_PAUSE
            return
        self._tables.pop(table_id, None)
        logger.info("table left the publication", extra={"table": name})

    def _run(self) -> None:
        run_reporting(self._loop, "scheduler", self._on_failure)

    def _loop(self) -> None:
        moved_at = 0.0
        while not self._context.stopping.is_set():
            if woken := self._wake.is_set():  # one that comes after this is for the next turn
                self._wake.clear()
            taken = self._context.journal.refresh()
            now = time.monotonic()
            if (
                woken
                or now >= self._look_at
                or self._retry_due
                or (taken and self._concerns(taken))
            ):
                if self._hand_out() or taken:
                    moved_at = now
                self._look_at = now + self._pause(time.monotonic() - now)
            self._wake.wait(_POLL if now - moved_at < _IDLE_AFTER else _IDLE_POLL)

    def _concerns(self, taken: int) -> bool:
        """Whether manifests that have been taken in, the last one among them, may be for a
        table. One that is empty is for those that wait for a position."""
        last = self._context.journal.last_manifest
        return taken > 1 or last is None or bool(last.tables) or not self._settled

    def _pause(self, cost: float) -> float:
        """When to look around again, after a look that took so long: hundreds of tables that
        all stream are looked at less often while nothing comes."""
        return max(_LOOK_AROUND, cost / _LOOK_SHARE) if self._settled else _LOOK_AROUND

    @property
    def _retry_due(self) -> bool:
        return self._next_retry is not None and self._next_retry <= datetime.now(UTC)

    def _hand_out(self) -> int:
        """Give every table that has something to do to its pool; how many these are."""
        handed_out = 0
        with self._lock:
            for table in list(self._tables.values()):
                if table.leaving and table.job is None:
                    self._forget(table.id, table.name)
            waiting = sorted(self._tables.values(), key=lambda table: table.idle_since)
            jobs = _next_jobs(waiting)
            # A table that was dropped and made again has another oid but the same place at
            # the destination, and so has one that was given another's name: the old one's
            # last write comes before the new one's copy.
            copies = any(job is Job.COPY for _, job in jobs)
            places = Counter(table.place for table in waiting) if copies else Counter()
            busy = any(table.job is not None for table in waiting)
            for table, job in jobs:
                if job is Job.COPY and places[table.place] > 1:
                    continue
                if busy and self._memory.full():
                    break  # the end of a running job wakes us
                busy = True
                table.job = job
                handed_out += 1
                future = self._pools[job].submit(table.run, job)
                future.add_done_callback(self._done)
            due = [table.next_due for table in waiting if table.job is None]
            # Kept, because it is asked for many times a second; whatever changes it wakes us.
            self._next_retry = min((at for at in due if at is not None), default=None)
            self._settled = not handed_out and all(table.settled for table in waiting)
        return handed_out

    def _done(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            return
        self._context.stopping.set()  # or the same job would fail again at once
        if not isinstance(error, PenstockError):
            message = f"a worker failed: {named_cause(error)}"
            error = PenstockError(ErrorKind.INTERNAL, message, hint=DEFECT)
        self._on_failure(error)


def _next_jobs(waiting: list[PipelineTable]) -> list[tuple[PipelineTable, Job]]:
    """What each table is to do, if anything."""
    maintaining = any(table.job is Job.MAINTAIN for table in waiting)
    jobs = []
    for table in waiting:
        job = table.next_job(may_maintain=not maintaining)
        if job is not None:
            jobs.append((table, job))
            maintaining |= job is Job.MAINTAIN
    return jobs
