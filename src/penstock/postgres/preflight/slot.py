"""What state the pipeline's slot is in."""

from __future__ import annotations

import time
from collections.abc import Iterator

from penstock.config import PipelineConfig
from penstock.errors import ErrorKind
from penstock.findings import Finding, error, warning
from penstock.postgres.connection import Session, translated
from penstock.postgres.slots import PLUGIN, SlotInfo, slot_info, waited_for

_POLL_SECONDS = 0.2


def free_slot(session: Session, name: str, patience: float) -> SlotInfo | None:
    """The slot as it is, given some seconds to become free if somebody has it."""
    deadline = time.monotonic() + patience
    while True:
        slot = slot_info(session, name)
        held = slot is not None and slot.active and not slot.being_made
        if not held or time.monotonic() >= deadline:
            return slot
        time.sleep(_POLL_SECONDS)


def slot_findings(
    session: Session, config: PipelineConfig, slot: SlotInfo | None
) -> Iterator[Finding]:
    """Whether the slot is ours, free and alive. None is fine: it will be made."""
    if slot is None:
        return
    subject = f"slot {slot.name}"
    drop = f"SELECT pg_drop_replication_slot('{slot.name}');"
    database = session.info.dbname
    if slot.foreign_to(database):
        what = (
            f"belongs to database {slot.database} and plugin {slot.plugin}"
            if slot.plugin
            else "is a physical slot"
        )
        yield error(
            subject,
            f"{what}, not to database {database} and {PLUGIN}",
            f"{drop} -- if nobody needs it; or give the pipeline another id",
            ErrorKind.SOURCE_SLOT,
        )
        return
    if slot.being_made:
        pids = waited_for(session, slot.name)
        end = " ".join(f"SELECT pg_terminate_backend({pid});" for pid in pids if pid)
        yield warning(
            subject,
            "is still being made, for a receiver that may be gone: it waits for running"
            f" transactions (of server process {', '.join(map(str, pids)) or 'unknown'})",
            f"{end} -- unless they end by themselves: the slot is used when it is there".strip(),
        )
    elif slot.active:
        query = "SELECT application_name FROM pg_stat_activity WHERE pid = %s"
        with translated("looking at the slot's user"):
            row = session.execute(query, [slot.active_pid]).fetchone()
        user = f" ({row[0]})" if row and row[0] else ""
        yield error(
            subject,
            f"is in use by server process {slot.active_pid}{user}",
            f"SELECT pg_terminate_backend({slot.active_pid});"
            " -- unless that is this pipeline, running already",
            ErrorKind.SOURCE_SLOT,
        )
    if slot.lost:
        reason = f" ({slot.invalidation_reason})" if slot.invalidation_reason else ""
        problem = f"is lost{reason}: the server has removed WAL that it needed"
        if config.invalidated_slot_behavior == "recreate":
            yield warning(subject, problem, "-- none: it is made again and every table copied")
        else:
            yield error(
                subject,
                problem,
                f"{drop} -- and set invalidated_slot_behavior to recreate: every table is"
                " copied again",
                ErrorKind.SOURCE_SLOT,
            )
    elif slot.wal_status == "unreserved":
        yield warning(
            subject,
            "is about to be lost: it holds more WAL than max_slot_wal_keep_size",
            "-- start the pipeline now, or raise max_slot_wal_keep_size",
        )
