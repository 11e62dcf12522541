"""One table of a running pipeline: its state, and what is to be done with it next.

The scheduler asks `next_job` and has the answer run in a pool; a table does one
job at a time. Whatever a job raises ends here, as the table's `errored` state:
no other table notices. The exceptions are the pipeline's own: a store that stays
away leaves nowhere to write the error, so it fails the pipeline.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

from penstock.destinations.schema_change import SchemaChange
from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.pipeline.applier import Applier, ResyncWanted
from penstock.pipeline.context import Interrupted, PipelineContext
from penstock.pipeline.copier import Copier, TableGone
from penstock.pipeline.failures import (
    StoreOutage,
    copied_in_vain,
    due,
    errored,
    failure_of,
    left_out_of_copies,
    require_spark,
    without_changes,
)
from penstock.pipeline.maintenance import TableMaintenance
from penstock.pipeline.source_watch import Membership
from penstock.pipeline.status import Meter, position_at
from penstock.postgres.catalog import PublishedTable
from penstock.publication_drift.drift import Drift
from penstock.schema import ZERO_LSN, Lsn, TableId, TableName, TableSchema
from penstock.spark.session import own_session
from penstock.states import (
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    StoredState,
    SyncDone,
    copy_id_of,
    stage_of,
)
from penstock.stores.base import Worker, schema_at_destination

logger = logging.getLogger("penstock.pipeline.table")


class Job(StrEnum):
    COPY = "copy"
    APPLY = "apply"
    MAINTAIN = "maintain"


class PipelineTable:
    """A published table. `wake` tells the scheduler that there may be something to do."""

    def __init__(
        self,
        context: PipelineContext,
        published: PublishedTable,
        state: StoredState,
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._wake = wake
        self._session = own_session(context.spark)
        self._applier: Applier | None = None
        self._attempts = state.attempts if isinstance(state, Errored) else 0
        self._maintenance = TableMaintenance()
        self._outage = StoreOutage(context.stopping)
        self._worked_at = 0.0
        self._drift = Drift(context, published.schema.id)
        self._copied_for: Lsn | None = None
        self._finished_at: Lsn | None = None
        self.published = published
        self.state = state
        self.job: Job | None = None
        self.errand: Callable[[], None] | None = None  # asked from outside, for its next job
        self.leaving = False
        self.rows = Meter()
        self.applied = Meter()
        self.batches = self.nulled = 0

    @property
    def id(self) -> TableId:
        return self.published.schema.id

    @property
    def name(self) -> str:
        return str(self.published.schema.name)

    @property
    def place(self) -> TableName:
        """Where at the destination it writes: when it was renamed, its old place until a copy."""
        copied = isinstance(stage_of(self.state), FinishedCopy | SyncDone | Ready)
        return (self._there() if copied else self.published.schema).name

    # What the scheduler and the status ask.

    def next_job(self, *, may_maintain: bool = True) -> Job | None:
        """What to do now; None when there is nothing, or when it is being done."""
        if self.job is not None or self.leaving:
            return None
        if self.errand is not None:
            return Job.APPLY
        state = self.state
        if isinstance(state, Errored) and not due(state):
            return None
        state = stage_of(state)
        if isinstance(state, Init | DataSync):
            return Job.COPY
        applier = self._applier
        if applier is None or isinstance(state, SyncDone):
            return Job.APPLY
        may_maintain = may_maintain and isinstance(state, Ready)
        if may_maintain and self._maintenance.due(self.batches, self._worked_at):
            return Job.MAINTAIN
        return Job.APPLY if applier.has_work or self._drifted or self._drift.broken else None

    def see(self, published: PublishedTable, membership: Membership) -> None:
        """Take in how the catalog describes the table."""
        self.published = published
        self._drift.see(published, membership, self._there())

    @property
    def _drifted(self) -> bool:
        """Whether the table has changed in the catalog and nothing in the stream says so.

        Without the event triggers Postgres tells of a change with the next row that it
        sends; a table that nobody writes to would stay as it was.
        """
        applier = self._applier
        return (
            applier is not None
            and self._drift.drifted_from(applier)
            and isinstance(self.state, Ready)
            and not applier.pending
        )

    @property
    def settled(self) -> bool:
        """Whether only changes, or somebody, can give it something to do."""
        applier = self._applier
        if self.job is not None or applier is None or not isinstance(self.state, Ready):
            return isinstance(self.state, Errored)
        return not applier.pending and not applier.has_open_deliveries

    @property
    def next_due(self) -> datetime | None:
        """When a retry comes due by itself."""
        return self.state.retry_policy.at if isinstance(self.state, Errored) else None

    @property
    def idle_since(self) -> float:
        """When it last had a turn: those that waited longest go first."""
        return self._worked_at

    @property
    def cursor(self) -> Lsn | None:
        """Up to where everything is durable at the destination, as the store has it; None for
        a table that is not copied. One that is errored has it in the store only."""
        if self._finished_at is not None:
            return self._finished_at
        if copy_id_of(self.state) is None:
            return None
        if (applier := self._applier) is not None:
            return applier.cursor
        return self._context.store.get_replication_progress(Worker.apply(self.id))

    @property
    def position(self) -> Lsn:
        """Up to where the destination equals the source; nowhere, while the catalog shows what
        no change tells of."""
        applier = self._applier  # a job may forget it meanwhile
        if applier is None or self.unsettled:
            return ZERO_LSN
        return position_at(self._context.journal, self.id, applier.cursor) or ZERO_LSN

    @property
    def unsettled(self) -> bool:
        """Whether it may have to be copied again, or altered, for what the catalog has shown."""
        return self._drift.unsettled(self._applier)

    # Jobs, each in a thread of a pool.

    def run(self, job: Job) -> None:
        """Do a job and clear it. Never raises for trouble that is the table's own."""
        try:
            self._session.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            match job:
                case Job.COPY:
                    self._copy()
                case Job.APPLY:
                    self._apply()
                case Job.MAINTAIN:
                    there = self._applier.schema if self._applier else None
                    self._maintenance.run(self._context.destination, there, self.batches)
        except Interrupted:
            logger.info("interrupted by shutdown", extra={"table": self.name})
        except TableGone:
            logger.info("table is not published any more", extra={"table": self.name})
            # The next look at the publication finds the same and lets the table go.
            self.leaving = True
        except Exception as error:
            if self._context.stopping.is_set() and job is Job.COPY:
                logger.info("copy interrupted by shutdown", extra={"table": self.name})
            else:
                self._fail(error)
        finally:
            self._worked_at = time.monotonic()
            self.job = None
            self._wake()

    def finish(self) -> None:
        """At shutdown, when no job runs: make accepted writes safe and move the cursor."""
        try:
            if self._applier is not None and not isinstance(self.state, Errored):
                self._applier.flush()
            self._finished_at = self.cursor  # for the status: the store is closed next
        except Exception as error:
            # What is not flushed stays before the cursor and is sent again.
            logger.warning(
                "flush at shutdown failed",
                extra={"table": self.name, "reason": failure_of(error).loggable},
            )

    def retry(self) -> None:
        """Go on where an error stopped the table; nothing where none did."""
        if isinstance(self.state, Errored):
            self._attempts = 0
            self.enter(self.state.interrupted)

    def resync(self) -> None:
        """Have the table copied again. Waits for what the destination has taken."""
        self._attempts = 0
        self._forget_applier()
        self.enter(Init())

    def drop_changes(self, end: Lsn, why: str) -> None:
        """Give up an errored table's segments up to `end`; it is copied again when retried."""
        state = self.state
        if not isinstance(state, Errored):
            return
        # It has no applier, so nothing has to be waited for.
        if not isinstance(state.interrupted, Init):
            # The state first: killed before the segments go, it only says too early
            # that they are gone. The other way round the gap would be silent.
            self.enter(without_changes(state, end, why))
        self._context.journal.retire({self.id: end})

    def enter(self, state: StoredState) -> None:
        """Store a state, then have it."""
        self._context.store.update_table_state(self.id, state)
        self.state = state
        failpoint("state_changed")
        if not isinstance(state, Errored):
            logger.info("table is %s", state.name, extra=self._extra(state))

    def _copy(self) -> None:
        self._forget_applier()
        self.rows.reset()
        schema, keep = self.published.schema, self._drift.keep
        copier = Copier(
            self._context, schema, self._session, self.enter, keep, self.rows, self._attempts
        )
        try:
            copier.copy(begun=isinstance(stage_of(self.state), DataSync))
        finally:
            self._attempts = copier.failures
        self.nulled = copier.nulled
        self._succeeded()

    def _apply(self) -> None:
        if (errand := self.errand) is not None:
            self.errand = None  # if it fails, it is asked for again
            errand()
            self._outage.over()
            return
        if isinstance(self.state, Errored):
            self.enter(self.state.interrupted)
        applier = self._applier or self._open_applier()
        before, nulled, cursor = applier.batches, applier.nulled, applier.cursor
        if self._drift.wants_copy(self.published):
            self.resync()
            return
        try:
            applier.step()
            if self._drifted:
                applier.follow(self.published.schema)
        except ResyncWanted as wanted:
            self._resync_for(wanted.change)
            return
        if applier.batches > before:
            self.batches += applier.batches - before
            self.nulled += applier.nulled - nulled
        position = applier.passed_barrier()
        if position is not None and self._drift.left_behind:
            logger.info("source was promoted under the copy", extra={"table": self.name})
            self.resync()
            return
        if position is not None:
            self._synchronise(applier, position)
        elif isinstance(self.state, SyncDone):
            self.enter(Ready(self.state.copy_id))
        # What was only handed over may still fail.
        if applier.cursor > cursor or not applier.has_open_deliveries:
            self._succeeded()

    def _resync_for(self, change: SchemaChange) -> None:
        if not self._context.config.table_sync_copy.includes(self.name):
            # An empty copy would take the place of all that the destination has.
            raise left_out_of_copies(change)
        if self._copied_for == change.new.version:
            raise copied_in_vain(change)
        self._copied_for = change.new.version
        self._forget_applier()
        self.enter(Init())

    def _synchronise(self, applier: Applier, position: Lsn) -> None:
        assert isinstance(self.state, FinishedCopy)
        copy_id = self.state.copy_id
        # The cursor before the state: with the state the filter is forgotten, and a
        # cursor that still stood before the barrier would apply the copy's changes again.
        applier.past_barrier(position)
        self.enter(SyncDone(copy_id, position))
        self.enter(Ready(copy_id))

    def _open_applier(self) -> Applier:
        assert isinstance(self.state, FinishedCopy | SyncDone | Ready)
        applier = Applier(
            self._context,
            self._stored_schema(),
            self.state,
            self._session,
            self.applied,
            self._wake,
            lambda: self._drift.exact,
        )
        applier.open()
        self._drift.keep_first(self.published.terms)
        self._applier = applier
        return applier

    def _there(self) -> TableSchema:
        applier = self._applier
        return applier.schema if applier else self._stored_schema()

    def _stored_schema(self) -> TableSchema:
        return schema_at_destination(self._context.store, self.id) or self.published.schema

    def _succeeded(self) -> None:
        self._attempts = 0
        self._outage.over()

    def _fail(self, error: Exception) -> None:
        try:
            self._enter_errored(error)
        except PenstockError as trouble:
            if trouble.kind is not ErrorKind.STORE:
                raise
            self._outage.bear(trouble, self.name)

    def _enter_errored(self, error: Exception) -> None:
        """Raises what the store raises, now or before: that is no failure of the table."""
        failure, attempts = failure_of(error), self._attempts + 1
        if failure.kind is ErrorKind.INTERNAL:
            require_spark(self._context.spark)
        self._forget_applier()
        if failure.kind is ErrorKind.STORE:
            raise error
        state = errored(failure, stage_of(self.state), attempts, self._context.config)
        self.enter(state)
        self._attempts = attempts
        self._outage.over()
        logger.error(
            "table errored",
            extra={**self._extra(state), "kind": str(failure.kind), "reason": failure.loggable},
        )
        logger.debug("where it failed", extra={"trace": traceback.format_tb(error.__traceback__)})

    def _forget_applier(self) -> None:
        if self._applier is not None:
            self._applier.abandon()
            self._applier = None

    def _extra(self, state: StoredState) -> dict[str, object]:
        extra: dict[str, object] = {"table": self.name, "state": state.name}
        if isinstance(state, Errored):
            extra |= {"retry": state.retry_policy.kind, "attempts": state.attempts}
        return extra
