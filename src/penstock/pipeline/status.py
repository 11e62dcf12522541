"""Where a pipeline stands: frozen values, for people, for JSON and for tests.

`Pipeline.status()` tells it from inside. `read_status` tells it from another
process, from what is durable (store, journal, slot), without Spark and without
disturbing the pipeline; what only the running process knows (rates, counts) is
zero there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from penstock.journal.journal import Journal
from penstock.pipeline.receiver_process import ReceiverReport
from penstock.schema import Lsn, TableId
from penstock.states import Catchup, Errored, FinishedCopy, StoredState, TableState

_RATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TableFailure:
    """Why a table is errored. `retry` is `timed` (at `retry_at`), `manual` or `none`."""

    reason: str
    solution: str
    retry: str
    retry_at: datetime | None
    attempts: int

    def to_json(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "solution": self.solution,
            "retry": self.retry,
            "retry_at": self.retry_at.isoformat() if self.retry_at else None,
            "attempts": self.attempts,
        }


@dataclass(frozen=True, slots=True)
class Work:
    """What a running pipeline has done for a table since it started.

    `values_nulled` were unrepresentable, in the last copy and since: `on_unrepresentable`.
    """

    rows_copied: int = 0
    rows_per_second: float = 0.0
    changes_applied: int = 0
    changes_per_second: float = 0.0
    batches: int = 0
    values_nulled: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "rows_copied": self.rows_copied,
            "rows_per_second": round(self.rows_per_second, 1),
            "changes_applied": self.changes_applied,
            "changes_per_second": round(self.changes_per_second, 1),
            "batches": self.batches,
            "values_nulled": self.values_nulled,
        }


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table. It equals the source at `position`; `cursor` is what the store has.

    `estimated_rows` is the planner's estimate, None where there is none.
    `lag_seconds` is the age of the oldest change that waits, 0 when none does.
    """

    id: TableId
    name: str
    state: TableState
    cursor: Lsn | None
    position: Lsn | None
    pending_bytes: int
    lag_bytes: int | None
    lag_seconds: float
    estimated_rows: int | None
    work: Work

    @property
    def error(self) -> TableFailure | None:
        match self.state:
            case Errored(reason, solution, retry, _, attempts):
                return TableFailure(reason, solution, retry.kind, retry.at, attempts)
            case _:
                return None

    def to_json(self) -> dict[str, Any]:
        return {
            "oid": self.id.oid,
            "name": self.name,
            "state": self.state.name,
            "cursor": _text(self.cursor),
            "position": _text(self.position),
            "pending_bytes": self.pending_bytes,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": round(self.lag_seconds, 3),
            "estimated_rows": self.estimated_rows,
            **self.work.to_json(),
            "error": self.error.to_json() if self.error else None,
        }


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """What the journal holds: the changes behind `start` up to `end`."""

    location: str
    start: Lsn | None
    end: Lsn | None
    bytes: int

    @classmethod
    def of(cls, journal: Journal) -> JournalStatus:
        empty = journal.empty
        return cls(
            str(journal.root),
            None if empty else journal.start,
            None if empty else journal.end,
            journal.bytes,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "location": self.location,
            "start": _text(self.start),
            "end": _text(self.end),
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far the source's WAL is, and up to where its slot has been acknowledged.

    `unreceived_seconds` is for how long the journal has lacked what the source had; from
    outside nobody knows.
    """

    position: Lsn | None = None
    confirmed: Lsn | None = None
    slot_active: bool | None = None
    slot_wal_status: str | None = None
    problem: str | None = None
    unreceived_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "position": _text(self.position),
            "confirmed": _text(self.confirmed),
            "slot_active": self.slot_active,
            "slot_wal_status": self.slot_wal_status,
            "problem": self.problem,
            "unreceived_seconds": round(self.unreceived_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The whole pipeline. `running` is unknown (None) when it is looked at from outside."""

    id: str
    running: bool | None
    receiver: ReceiverReport
    source: SourceStatus
    journal: JournalStatus
    tables: tuple[TableStatus, ...]
    error: str | None = None

    def table(self, name: str) -> TableStatus:
        return next(table for table in self.tables if table.name == name)

    @property
    def ready(self) -> bool:
        """Whether every table is streaming."""
        return all(table.state.name == "ready" for table in self.tables)

    @property
    def lag_bytes(self) -> int | None:
        """How far the table that is furthest behind is behind the source."""
        lags = [table.lag_bytes for table in self.tables if table.lag_bytes is not None]
        return max(lags, default=None)

    @property
    def lag_seconds(self) -> float:
        """For how long the oldest change waits, in the journal or still at the source."""
        tables = [table.lag_seconds for table in self.tables]
        return max(self.source.unreceived_seconds, *tables, 0.0)

    @property
    def work(self) -> Work:
        """What has been done for all tables together."""
        return Work(*map(sum, zip(*(astuple(table.work) for table in self.tables), strict=True)))

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "running": self.running,
            "lag_bytes": self.lag_bytes,
            "lag_seconds": round(self.lag_seconds, 3),
            **self.work.to_json(),
            "receiver": self.receiver.to_json(),
            "source": self.source.to_json(),
            "journal": self.journal.to_json(),
            "tables": [table.to_json() for table in self.tables],
            "error": self.error,
        }


def shown_state(state: StoredState) -> TableState:
    """The state as people see it: a copied table that is not there yet is catching up."""
    return Catchup(state.barrier) if isinstance(state, FinishedCopy) else state


def position_at(journal: Journal, table_id: TableId, cursor: Lsn | None) -> Lsn | None:
    """Where a table equals the source whose cursor is there: the journal's end if nothing waits."""
    if cursor is None:
        return None
    # The end is read first: a manifest that comes in between is then pending, never passed.
    end = journal.end
    return cursor if journal.pending(table_id, cursor) else max(end, cursor)


def table_lag(
    journal: Journal, table_id: TableId, position: Lsn | None, source: Lsn | None
) -> Mapping[str, Any]:
    """The fields of a `TableStatus` that say how far it is behind."""
    pending = journal.pending(table_id, position) if position is not None else []
    oldest = pending[0].last_commit_at if pending else None
    return {
        "pending_bytes": sum(flush.bytes for flush in pending),
        "lag_bytes": (
            max(0, source.value - position.value)
            if source is not None and position is not None
            else None
        ),
        "lag_seconds": max(0.0, (datetime.now(UTC) - oldest).total_seconds()) if oldest else 0.0,
    }


def _text(lsn: Lsn | None) -> str | None:
    return str(lsn) if lsn is not None else None


class Meter:
    """Counts, and tells the rate over the last ten seconds. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._total = 0
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])

    @property
    def total(self) -> int:
        return self._total

    def add(self, count: int) -> None:
        with self._lock:
            self._total += count
            self._marks.append((self._clock(), self._total))
            self._forget()

    def reset(self) -> None:
        with self._lock:
            self._total = 0
            self._marks = deque([(self._clock(), 0)])

    @property
    def per_second(self) -> float:
        with self._lock:
            self._forget()
            since, before = self._marks[0]
            elapsed = self._clock() - since
            return (self._total - before) / elapsed if elapsed > 0 else 0.0

    def _forget(self) -> None:
        """Keep one mark at or before the window's start, to measure from."""
        horizon = self._clock() - _RATE_SECONDS
        while len(self._marks) > 1 and self._marks[1][0] <= horizon:
            self._marks.popleft()
