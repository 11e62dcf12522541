"""The table state machine.

    init ──▶ data_sync ──▶ finished_copy ──▶ (catchup) ──▶ sync_done ──▶ ready
      ▲          │               │                             │           │
      └── retry ─┴───────────────┴───────── errored ◀──────────┴───────────┘

Each state is a frozen value that carries what must survive with it; only
`catchup` is never stored. `errored` keeps the state that it interrupted, so
that a retry goes on where the table stood instead of copying again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from penstock.schema import Lsn


@dataclass(frozen=True, slots=True)
class VisibleXids:
    """The transactions a snapshot sees, from `pg_current_snapshot()`.

    `contains` takes a 32-bit xid, as the stream carries it, and compares modulo
    2³²: a transaction is visible when it began before `xmax` and was not
    running. (`xmin` needs no test of its own: everything between it and `xmax`
    that was running is listed.)
    """

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """From Postgres's `xmin:xmax:xip,xip,...`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(x) for x in running.split(",") if x))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def contains(self, xid: int) -> bool:
        before_xmax = (xid - self.xmax) % 2**32 >= 2**31
        return before_xmax and xid % 2**32 not in {x % 2**32 for x in self.running}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`timed` (with `at`), `manual` or `none`."""

    kind: str
    at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "at": self.at.isoformat() if self.at else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["kind"], datetime.fromisoformat(data["at"]) if data["at"] else None)


MANUAL = RetryPolicy("manual")
NO_RETRY = RetryPolicy("none")


@dataclass(frozen=True, slots=True)
class Init:
    name = "init"


@dataclass(frozen=True, slots=True)
class DataSync:
    name = "data_sync"


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """Copied. Changes of `visible` transactions are in the copy already, up to `barrier`."""

    copy_id: str
    visible: VisibleXids
    barrier: Lsn
    name = "finished_copy"


@dataclass(frozen=True, slots=True)
class Catchup:
    """Applying what the journal holds up to `lsn`. Never stored."""

    lsn: Lsn
    name = "catchup"


@dataclass(frozen=True, slots=True)
class SyncDone:
    """Equal to the source at `lsn`."""

    copy_id: str
    lsn: Lsn
    name = "sync_done"


@dataclass(frozen=True, slots=True)
class Ready:
    copy_id: str
    name = "ready"


@dataclass(frozen=True, slots=True)
class Errored:
    """Set aside. `interrupted` is the stored state that the error stopped.

    `attempts` counts failures since the last success.
    """

    reason: str
    solution: str
    retry_policy: RetryPolicy
    interrupted: StoredState
    attempts: int = 1
    name = "errored"


StoredState = Init | DataSync | FinishedCopy | SyncDone | Ready | Errored
TableState = StoredState | Catchup


def stage_of(state: StoredState) -> StoredState:
    """How far a table is: its state, or the one that an error has interrupted."""
    return stage_of(state.interrupted) if isinstance(state, Errored) else state


def copy_id_of(state: StoredState | None) -> str | None:
    """The copy that a table's rows at the destination stem from, once there is one."""
    match state:
        case FinishedCopy(copy_id=copy_id) | SyncDone(copy_id=copy_id) | Ready(copy_id=copy_id):
            return copy_id
        case Errored(interrupted=interrupted):
            return copy_id_of(interrupted)
        case _:
            return None


def state_to_json(state: StoredState) -> dict[str, Any]:
    """A state as the store keeps it."""
    match state:
        case FinishedCopy(copy_id, visible, barrier):
            body = {"copy_id": copy_id, "visible": str(visible), "barrier": str(barrier)}
        case SyncDone(copy_id, lsn):
            body = {"copy_id": copy_id, "lsn": str(lsn)}
        case Ready(copy_id):
            body = {"copy_id": copy_id}
        case Errored(reason, solution, retry, interrupted, attempts):
            return {
                "state": state.name,
                "reason": reason,
                "solution": solution,
                "retry": retry.to_json(),
                "interrupted": state_to_json(interrupted),
                "attempts": attempts,
            }
        case _:
            body = {}
    return {"state": state.name, **body}


def state_from_json(data: Mapping[str, Any]) -> StoredState:
    """The inverse of `state_to_json`."""
    match data["state"]:
        case "init":
            return Init()
        case "data_sync":
            return DataSync()
        case "finished_copy":
            return FinishedCopy(
                data["copy_id"], VisibleXids.parse(data["visible"]), Lsn.parse(data["barrier"])
            )
        case "sync_done":
            return SyncDone(data["copy_id"], Lsn.parse(data["lsn"]))
        case "ready":
            return Ready(data["copy_id"])
        case "errored":
            return Errored(
                data["reason"],
                data["solution"],
                RetryPolicy.from_json(data["retry"]),
                state_from_json(data["interrupted"]),
                data["attempts"],
            )
        case other:
            raise ValueError(f"unknown table state {other!r}")
