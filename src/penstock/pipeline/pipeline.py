"""A pipeline: everything that has to run, started in order and stopped in the other.

What can be refused is refused before anything is made: the preflight, the store,
Spark and the destination come first, and only then the receiver (see `runtime`), which
creates the slot. A slot that nobody reads makes Postgres keep its WAL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Lock, RLock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.config import PipelineConfig
from penstock.destinations.base import Destination, DestinationContext
from penstock.errors import DEFECT, ErrorKind, PenstockError, named_cause
from penstock.journal.journal import Journal
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.receiver_process import ReceiverReport, ReceiverState
from penstock.pipeline.runtime import Runtime
from penstock.pipeline.slot_recovery import recover_lost_slot
from penstock.pipeline.source_watch import Membership
from penstock.pipeline.status import (
    JournalStatus,
    PipelineStatus,
    SourceStatus,
    TableStatus,
    Work,
    position_at,
    shown_state,
    table_lag,
)
from penstock.pipeline.table import PipelineTable
from penstock.postgres.connection import connect
from penstock.postgres.ddl_triggers import TriggerState, install, may_make_triggers, trigger_state
from penstock.postgres.preflight import preflight, report, require
from penstock.schema import Lsn
from penstock.signals import keeping_handlers
from penstock.states import Errored
from penstock.stores.base import PipelineStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("penstock.pipeline")

_SLOT_PATIENCE = 15.0
_POLL = 0.02
_RECOVERY_DELAY = 1.0
_INTERRUPTED = 130
"""The exit code of a program that Ctrl-C has ended."""


class Pipeline:
    """Replicates a publication's tables into a destination.

    Runs once: `start`, then `wait` or whatever else there is to do, then
    `shutdown`. As a context manager it starts on entry and shuts down on exit. Ctrl-C in the
    block, other than in `wait`, ends the program after that, with exit code 130 and no traceback.
    Without `spark` it builds a session of its own, or uses the one that already
    runs in this process.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        store: PipelineStore,
        destination: Destination,
        spark: SparkSession | None = None,
    ) -> None:
        self.config = config
        self._store = store
        self._destination = destination
        self._spark = spark
        self._journal = Journal(config.journal_path)
        self._lock = Lock()
        self._closing_lock = RLock()
        self._asked_to_stop = Event()
        self._started = False
        self._running = self._recovering = False
        self._ended = Event()
        self._failure: PenstockError | None = None
        self._closing = ExitStack()
        self._runtime: Runtime | None = None

    @classmethod
    def from_config(cls, path: str | Path, *, spark: SparkSession | None = None) -> Pipeline:
        """Return the pipeline that the YAML file at `path` describes, with its store and
        destination."""
        from penstock.pipeline.assembly import Assembly

        return Assembly.of_file(path).pipeline(spark)

    def __enter__(self) -> Self:
        if not self._started:
            try:
                self.start()
            except KeyboardInterrupt:
                raise SystemExit(_INTERRUPTED) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(_INTERRUPTED) from None

    # Running.

    def start(self) -> None:
        """Start everything; returns when the receiver runs and tables are being worked on."""
        with self._lock:
            if self._started:
                raise PenstockError(
                    ErrorKind.INVALID_STATE,
                    f"pipeline {self.config.id} was started already",
                    hint="make a new Pipeline to run it again",
                )
            self._started = True
        with self._closing_lock:
            try:
                self._start()
            except BaseException:
                self._shut_down_after_failure()
                raise
            self._running = True
        logger.info("pipeline started", extra={"pipeline": self.config.id})

    def wait(self) -> None:
        """Return after `shutdown`; raise what failed the whole pipeline, after shutting down.

        Ctrl-C shuts the pipeline down, and `wait` returns.
        """
        self._require_started()
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            logger.info("interrupted, running writes finish", extra={"pipeline": self.config.id})
        if self._failure is None:
            self.shutdown()
        else:
            self._shut_down_after_failure()
        if self._failure is not None:
            raise self._failure

    def shutdown(self) -> None:
        """Stop intake, let running writes finish, move cursors, close everything. Idempotent."""
        self._asked_to_stop.set()
        with self._closing_lock:
            self._running = False
            try:
                self._closing.close()
            finally:
                self._ended.set()

    def _shut_down_after_failure(self) -> None:
        """Shut down; if that fails too, it is logged, since the first failure is to be raised."""
        try:
            self.shutdown()
        except Exception:
            logger.exception("shutdown failed", extra={"pipeline": self.config.id})

    # Looking at it.

    def status(self) -> PipelineStatus:
        """Where everything stands now."""
        runtime = self._runtime
        source = runtime.watch.status if runtime else SourceStatus()
        return PipelineStatus(
            self.config.id,
            self._running,
            runtime.receiver.report if runtime else ReceiverReport(ReceiverState.STOPPED),
            source,
            JournalStatus.of(self._journal),
            tuple(self._table_status(table, source.position) for table in self._tables()),
            self._failure.message if self._failure else None,
        )

    def wait_until(self, *, lsn: Lsn | str, timeout: float | None = None) -> None:
        """Return when every table has everything that was committed before `lsn`, also one that
        had just joined the publication there.

        Raises when that can no longer happen by itself (a table waits for
        somebody, the pipeline has ended) and when `timeout` seconds are over.
        """
        wanted = Lsn.parse(lsn) if isinstance(lsn, str) else lsn

        def reached() -> bool:
            return (
                self._journal.end >= wanted
                and self._has_seen(lambda seen: seen.source_at >= wanted)
                and all(table.position >= wanted for table in self._tables())
            )

        self._wait_for(reached, f"everything up to {wanted} to be applied", timeout)

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Return when every table of the publication is `ready`; raises like `wait_until`."""
        asked_at = time.monotonic()

        def ready() -> bool:
            return self._has_seen(lambda seen: seen.read_at >= asked_at) and all(
                table.state.name == "ready" and not table.unsettled for table in self._tables()
            )

        self._wait_for(ready, "every table to be ready", timeout)

    def _has_seen(self, late_enough: Callable[[Membership], bool]) -> bool:
        """Whether the publication was looked at late enough; if not, it is looked at now."""
        runtime = self._runtime
        if runtime is None:
            return False
        if (seen := runtime.scheduler.seen) is not None and late_enough(seen):
            return True
        runtime.watch.look_now()
        return False

    def _wait_for(self, reached: Callable[[], bool], what: str, timeout: float | None) -> None:
        self._require_started()
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._recovering or not reached():
            for table in self._tables():
                _require_no_standstill(table)
            if self._failure is not None:
                raise self._failure
            if self._ended.is_set():
                raise PenstockError(
                    ErrorKind.INVALID_STATE,
                    "the pipeline has been shut down",
                    hint="make a new Pipeline to go on where this one stopped",
                )
            if deadline is not None and time.monotonic() >= deadline:
                late = [f"{table.name} ({table.state.name})" for table in self._tables()]
                raise PenstockError(
                    ErrorKind.DESTINATION_TIMEOUT,
                    f"waited {timeout:g} s in vain for {what}; tables: {', '.join(late)}",
                    hint="status() tells how far each table is",
                )
            self._ended.wait(_POLL)

    # Starting, in order; closing goes backward.

    def _start(self) -> None:
        closing = self._closing
        self._journal.refresh()
        findings = preflight(self.config, slot_patience=_SLOT_PATIENCE)
        report(require(findings, begun=not self._journal.empty))
        self._have_changes_announced()
        self._store.open(self.config.id)
        closing.callback(self._store.close)
        self._store.load_table_states()
        self._store.load_table_schemas()
        self._store.load_destination_tables_metadata()
        spark = self._spark or self._build_spark()
        recover_lost_slot(self.config, self._store, self._journal)
        self._destination.startup(DestinationContext(self.config.id, spark, self._store))
        closing.callback(self._destination.shutdown)
        closing.callback(self._stop_engine)
        self._spark = spark
        self._start_engine()

    def _start_engine(self) -> None:
        assert self._spark is not None
        context = PipelineContext(
            self.config, self._store, self._journal, self._destination, self._spark
        )
        self._runtime = runtime = Runtime(context, lambda error: self._fail(error, runtime))
        runtime.start(self._require_startable)

    def _stop_engine(self) -> None:
        if self._runtime is not None:
            self._runtime.stop()

    def _have_changes_announced(self) -> None:
        """Put the event triggers in where we may; without them more is copied again."""
        with connect(self.config.pg_connection, f"{self.config.id}_setup") as session:
            if trigger_state(session) is not TriggerState.CURRENT and may_make_triggers(session):
                install(session)
                logger.info("event triggers set up", extra={"database": session.info.dbname})

    def _build_spark(self) -> SparkSession:
        from pyspark import SparkContext

        from penstock.spark.session import build_session, stop_session

        adopted = SparkContext._active_spark_context is not None
        given = self.config.spark
        # Spark's handler of SIGINT cancels all jobs. Ours let running writes finish.
        with keeping_handlers():
            spark = build_session(
                f"penstock-{self.config.id}",
                master=given.master,
                config={**self._destination.spark_settings(), **given.config},
                adopt=True,
            )
        if not adopted:
            self._closing.callback(stop_session, spark)
        return spark

    def _require_startable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._asked_to_stop.is_set():
            raise PenstockError(
                ErrorKind.INVALID_STATE,
                "the pipeline was shut down while it started",
                hint="make a new Pipeline to run it",
            )

    def _fail(self, error: PenstockError, runtime: Runtime) -> None:
        """Something ended that the runtime cannot go on without."""
        if runtime is not self._runtime:
            return
        if not self._running or not self._may_recover(error):
            self._end_with(error)
            return
        pause = _RECOVERY_DELAY if self._recovering else 0.0

        def recover() -> None:
            with self._closing_lock:
                # A recovery that was under way comes first, and may have seen to this.
                self._recovering = runtime is self._runtime and not self._ended.is_set()
                if self._recovering:
                    self._asked_to_stop.wait(pause)
                    self._recover(error)

        self._recovering = True
        Thread(target=recover, name="penstock-recovery", daemon=True).start()

    def _end_with(self, error: PenstockError) -> None:
        if self._failure is None:
            self._failure = error
            logger.error(
                "pipeline failed", extra={"kind": str(error.kind), "reason": error.message}
            )
        self._ended.set()

    def _may_recover(self, error: PenstockError) -> bool:
        recreates = self.config.invalidated_slot_behavior == "recreate"
        return recreates and error.kind is ErrorKind.SOURCE_SLOT

    def _recover(self, lost: PenstockError) -> None:
        """The slot is lost: go on with a new one, and copy every table again."""
        logger.warning("receiver failed", extra={"reason": lost.message})
        with self._closing_lock:
            try:
                self._stop_engine()
                self._begin_anew(lost)
            except PenstockError as error:
                if not self._asked_to_stop.is_set():
                    self._end_with(error)
            except Exception as error:
                logger.exception("recovery failed")
                message = f"recovery failed: {named_cause(error)}"
                self._end_with(PenstockError(ErrorKind.INTERNAL, message, hint=DEFECT))
            finally:
                self._recovering = False

    def _begin_anew(self, lost: PenstockError) -> None:
        recovered = False
        while not self._asked_to_stop.is_set():
            try:
                recovered = recovered or recover_lost_slot(self.config, self._store, self._journal)
                if not recovered:
                    raise lost
                self._start_engine()
                return
            except PenstockError as error:
                # A journal that has begun says that there was a new slot.
                if recovered and self._may_recover(error) and not self._journal.empty:
                    logger.warning("slot is lost again", extra={"reason": error.message})
                    recovered, lost = False, error
                elif error.kind.retryable:
                    logger.warning("source not reached", extra={"reason": error.message})
                else:
                    raise
                self._stop_engine()
                self._asked_to_stop.wait(_RECOVERY_DELAY)

    def _require_started(self) -> None:
        if not self._started:
            raise PenstockError(
                ErrorKind.INVALID_STATE, "the pipeline was not started", hint="call start()"
            )

    def _tables(self) -> list[PipelineTable]:
        return self._runtime.scheduler.tables() if self._runtime else []

    def _table_status(self, table: PipelineTable, source: Lsn | None) -> TableStatus:
        try:
            cursor = table.cursor
        except PenstockError:
            cursor = None  # the store is away, or closed after a start that failed
        position = position_at(self._journal, table.id, cursor)
        estimate = table.published.estimated_rows
        return TableStatus(
            table.id,
            table.name,
            shown_state(table.state),
            cursor,
            position,
            estimated_rows=estimate if estimate >= 0 else None,
            work=Work(
                table.rows.total,
                table.rows.per_second,
                table.applied.total,
                table.applied.per_second,
                table.batches,
                table.nulled,
            ),
            **table_lag(self._journal, table.id, position, source),
        )


def _require_no_standstill(table: PipelineTable) -> None:
    match table.state:
        case Errored(reason, solution, retry) if retry.kind != "timed":
            raise PenstockError(
                ErrorKind.INVALID_STATE,
                f"the table is errored: {reason}",
                hint=solution,
                table=table.published.schema.name,
            )
