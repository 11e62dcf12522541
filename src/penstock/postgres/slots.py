"""Replication slots as the server shows them.

A slot is the source's memory of how far we are: it keeps the WAL, and the
catalog's old rows, that we have not acknowledged. Making one and reading from
it are replication commands and live with the receiver; looking at one and
dropping it are plain SQL and live here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from penstock.postgres.connection import Session, translated
from penstock.schema import Lsn

PLUGIN = "pgoutput"
FAILOVER_SINCE = 170000


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """One row of `pg_replication_slots`; what a server's version does not know is None.

    `wal_status` is `reserved`, `extended`, `unreserved` or `lost`;
    `safe_wal_size` is how many bytes of WAL may still be written before the slot
    is in danger of being lost, None without a limit.
    """

    name: str
    plugin: str | None
    database: str | None
    active: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    safe_wal_size: int | None
    invalidation_reason: str | None
    failover: bool | None = None

    @property
    def lost(self) -> bool:
        """Whether nothing can be read from it any more."""
        return self.wal_status == "lost" or self.invalidation_reason is not None

    def foreign_to(self, database: str) -> bool:
        """Whether it is a physical one, or that of another plugin or database."""
        return self.plugin != PLUGIN or self.database != database

    @property
    def being_made(self) -> bool:
        """Whether the server still looks for the point where it can begin.

        It waits for every transaction that writes, also when whoever asked for the slot is
        gone. Then the slot is kept, or dropped if the making was cancelled.
        """
        return self.active and self.plugin is not None and self.confirmed_flush_lsn is None

    @classmethod
    def _from_row(cls, row: dict[str, Any]) -> Self:
        def position(name: str) -> Lsn | None:
            return Lsn.parse(row[name]) if row[name] else None

        return cls(
            row["slot_name"],
            row["plugin"],
            row["database"],
            row["active"],
            row["active_pid"],
            position("restart_lsn"),
            position("confirmed_flush_lsn"),
            row["wal_status"],
            row["safe_wal_size"],
            row.get("invalidation_reason") or _reason_before_17(row),
            row.get("failover"),
        )


def _reason_before_17(row: dict[str, Any]) -> str | None:
    """Why a slot is lost, of a server that does not say it yet."""
    if row.get("conflicting"):
        return "conflict"
    return "wal_removed" if row["wal_status"] == "lost" else None


def slot_info(session: Session, name: str) -> SlotInfo | None:
    """The slot of that name, if there is one."""
    # As JSON, because which columns there are depends on the server's version.
    query = "SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s"
    with translated(f"looking at slot {name}"):
        row = session.execute(query, [name]).fetchone()
    return SlotInfo._from_row(row[0]) if row else None


def waited_for(session: Session, name: str) -> list[int]:
    """Whom the making of the slot waits for now: server processes, 0 for a prepared transaction."""
    query = (
        "SELECT DISTINCT unnest(pg_blocking_pids(active_pid)) FROM pg_replication_slots"
        " WHERE slot_name = %s ORDER BY 1"
    )
    with translated(f"looking at what slot {name} waits for"):
        return [pid for (pid,) in session.execute(query, [name])]


def drop_slot(session: Session, name: str) -> bool:
    """Drop the slot; False when there was none. One that is in use is an error."""
    query = (
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
    )
    with translated(f"dropping slot {name}"):
        return session.execute(query, [name]).fetchone() is not None
