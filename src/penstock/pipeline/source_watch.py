"""A look at the source now and then: which tables are published, how far its WAL is.

It has a connection and a thread of its own, because a look can take long: the
catalog makes one wait for a table that is being altered. A source that cannot be
reached is no failure here; the receiver tells that story. A store or a disk that
fails is met again at the next look. Anything else fails the pipeline: without looks
tables would go their own ways unnoticed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event, Thread

import psycopg

from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.failures import Failure, failure_of, run_reporting
from penstock.pipeline.status import SourceStatus
from penstock.postgres.catalog import PublishedTable, publication_exists, published_tables
from penstock.postgres.connection import Session, connect, current_flush_lsn, translated
from penstock.postgres.slots import slot_info
from penstock.schema import Lsn

logger = logging.getLogger("penstock.pipeline.source")

_MEMBERSHIP_SECONDS = 2.0
_MEMBERSHIP_SHARE = 0.003
_LOCK_TIMEOUT = "2s"


@dataclass(frozen=True, slots=True)
class Membership:
    """What the publication held; `as_of` is the journal's end before it was asked, and
    `read_at` the time.

    `source_at` is where the source's WAL was afterwards: a journal that reaches there
    has everything that made the tables what they are here.
    """

    tables: tuple[PublishedTable, ...]
    as_of: Lsn
    read_at: float
    source_at: Lsn


class SourceWatch:
    """Looks every second or so. Both callbacks are called from its thread."""

    def __init__(
        self,
        context: PipelineContext,
        on_membership: Callable[[Membership], None],
        on_failure: Callable[[PenstockError], None],
    ) -> None:
        self._context = context
        self._on_membership = on_membership
        self._on_failure = on_failure
        self._session: Session | None = None
        self._wanted = Event()
        self._unreceived: tuple[Lsn, float] | None = None
        self._thread = Thread(target=self._run, name="penstock-source", daemon=True)
        self.status = SourceStatus()

    def start(self) -> None:
        self._thread.start()

    def look_now(self) -> None:
        """Look at the publication without waiting for the next time."""
        self._wanted.set()

    def stop(self) -> None:
        self._context.stopping.set()
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        else:
            self._disconnect()  # it may have been asked without ever having been started

    def membership(self) -> Membership | None:
        """Ask the publication now; None when there is none of that name."""
        config, session = self._context.config, self._connected()
        as_of, read_at = self._context.journal.end, time.monotonic()
        if not publication_exists(session, config.publication_name):
            return None
        tables = published_tables(session, config.publication_name, config.column_types)
        return Membership(tuple(tables), as_of, read_at, current_flush_lsn(session))

    def _run(self) -> None:
        try:
            run_reporting(self._loop, "source watch", self._fail)
        finally:
            self._disconnect()

    def _fail(self, error: PenstockError) -> None:
        if not self._context.stopping.is_set():  # `stop` does not wait for ever
            self._on_failure(error)

    def _loop(self) -> None:
        interval = self._context.config.replication_lag_refresh_interval_ms / 1000
        asked_at, pause = time.monotonic(), _MEMBERSHIP_SECONDS
        while not self._context.stopping.is_set():
            wanted = self._wanted.is_set()
            self._wanted.clear()
            try:
                self.status = self._ask()
                self._context.source.last_seen = self.status.position
                if wanted or time.monotonic() - asked_at >= pause:
                    asked_at, worked = time.monotonic(), time.thread_time()
                    if (membership := self.membership()) is None:
                        self._on_failure(self._gone())
                        break
                    self._on_membership(membership)
                    pause = look_pause(time.thread_time() - worked)
            except (PenstockError, psycopg.Error, OSError) as error:
                self._bear_with(failure_of(error))
                self._context.stopping.wait(interval)
            else:
                self._wanted.wait(min(interval, pause))

    def _ask(self) -> SourceStatus:
        status = source_status(self._connected(), self._context.config.slot_name)
        now, end = time.monotonic(), self._context.journal.end
        if self._unreceived is not None and self._unreceived[0] <= end:
            self._unreceived = None
        if self._unreceived is None and status.position is not None and status.position > end:
            self._unreceived = (status.position, now)
        since = self._unreceived[1] if self._unreceived else now
        return replace(status, unreceived_seconds=now - since)

    def _bear_with(self, failure: Failure) -> None:
        if failure.kind.value.startswith("source."):
            logger.debug("source not reached", extra={"reason": failure.reason})
            self.status = replace(self.status, problem=failure.reason)
        else:
            logger.warning(
                "look at the source failed, trying again",
                extra={"kind": str(failure.kind), "reason": failure.reason},
            )
        self._disconnect()

    def _gone(self) -> PenstockError:
        """A publication that is gone takes no table with it. Before version 18 the stream fails
        too; since then nothing comes any more, and nobody says why."""
        name = self._context.config.publication_name
        return PenstockError(
            ErrorKind.SOURCE_CONFIGURATION,
            f"the publication {name} is gone, so no changes are sent",
            hint="create it again and start the pipeline: its tables are copied again",
        )

    def _connected(self) -> Session:
        if self._session is None:
            config = self._context.config
            session = connect(config.pg_connection, f"{config.id}_watch")
            with translated("setting up the session"):
                session.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'".encode())
            self._session = session
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def look_pause(cost: float) -> float:
    """How long after a look that took so much processor time the next one comes.

    It reads every column of every table: for hundreds of tables, less often.
    """
    return max(_MEMBERSHIP_SECONDS, cost / _MEMBERSHIP_SHARE)


def source_status(session: Session, slot_name: str) -> SourceStatus:
    """How far the source is, and what it says of our slot."""
    slot, position = slot_info(session, slot_name), current_flush_lsn(session)
    if slot is None:
        return SourceStatus(position, problem=f"there is no slot {slot_name}")
    return SourceStatus(position, slot.confirmed_flush_lsn, slot.active, slot.wal_status)
