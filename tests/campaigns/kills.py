"""The plan of a crash campaign: who is killed, where, and in which life.

A kill has a victim and a place: a failpoint, where the victim dies by itself, or a
moment of the writers' choosing. Postgres dies at a failpoint too: the process that
gets there stops, the server is killed and started again, and the process goes on.

A *life* is what one driver process lives through; it ends with its death.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.schema import TableName


class SlotLoss(StrEnum):
    """When a slot is dropped: before its driver starts, or under its receiver's hands."""

    DOWN = "down"
    RUNNING = "running"


class Victim(StrEnum):
    RECEIVER = "receiver"
    DRIVER = "driver"
    MACHINE = "machine"  # the driver and all that it started, at once
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Kill:
    """Who dies, and where: at the given passage of a failpoint, or at some moment.

    `starting` says that a driver comes to the failpoint while it starts or not at all,
    because it finds that done already; then it dies as soon as it has started.
    """

    victim: Victim
    failpoint: str | None = None
    passage: int = 1
    starting: bool = False

    @property
    def armed(self) -> str | None:
        """What the driver's environment has to say for it."""
        if self.failpoint is None:
            return None
        action = ":stop" if self.victim is Victim.POSTGRES else ""
        return f"{self.failpoint}:{self.passage}{action}"

    def __str__(self) -> str:
        return f"{self.victim} at {self.failpoint or 'some moment'}"


@dataclass(frozen=True, slots=True)
class Life:
    """The kills of one driver's life, in order; its own is the last.

    Only one of them can be at a failpoint that the receiver keeps coming to, and
    only one of Postgres's at any.

    `rejoin` names a table that leaves the publication and comes back, so that
    it is copied again. `slot_loss` comes before the kills, and has all tables copied again.
    """

    kills: tuple[Kill, ...]
    rejoin: TableName | None = None
    slot_loss: SlotLoss | None = None

    @property
    def failpoints(self) -> str:
        return ",".join(kill.armed for kill in self.kills if kill.armed)
