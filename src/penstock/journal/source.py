"""Making sure that journal and slot belong together, before anything streams.

The slot's confirmed position is never ahead of the journal's end, because only
what a manifest covers is acknowledged. So a slot that is ahead means that the
journal was lost or rolled back, and the changes between are gone: that is an
error here, never a silent gap. So is a server whose WAL ends before the journal does.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from penstock.config import PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.journal.journal import Journal, JournalOwner, SourceHistory
from penstock.journal.writer import JournalWriter
from penstock.postgres.connection import (
    Session,
    current_flush_lsn,
    current_timeline,
    in_recovery,
    server_version,
    system_identifier,
    translated,
)
from penstock.postgres.replication import ReplicationStream
from penstock.postgres.slots import FAILOVER_SINCE, SlotInfo, slot_info, waited_for
from penstock.schema import Lsn

logger = logging.getLogger(__name__)

_FIRST_WORD_S = 3.0
_NEXT_WORD_S = 30.0
"""When to say that the slot is waited for, and how often after that."""

ANEW = (
    "start the pipeline with invalidated_slot_behavior: recreate, or drop the slot if it is there"
    " and remove the journal; every table is copied again"
)
_ANEW_AND_WHY = f"{ANEW}. `penstock doctor` tells which limits of the server cost the slot"


def prepare_source(
    config: PipelineConfig,
    journal: JournalWriter,
    catalog: Session,
    stream: ReplicationStream,
    stop: threading.Event,
) -> bool:
    """Bring journal and slot to where streaming can begin at the journal's end.

    False if `stop` was set before there was a slot: its making may take as long as the
    longest transaction.
    """
    require_primary(catalog)
    journal.refresh()
    slot = slot_info(catalog, config.slot_name)
    _require_failover(config, catalog)
    require_own(config, journal, catalog, slot)
    if journal.owner() is None:
        journal.claim(rightful_owner(config, catalog))
        failpoint("journal_claimed")
    if not journal.empty:
        journal.settle()
        _continue(config, journal, slot)
    elif not _begin(config, journal, slot, stream, _SlotMaking(config.slot_name, catalog, stop)):
        return False
    if config.failover and slot is not None and not slot.failover:
        stream.make_failover(slot.name)
    _require_all_its_past(journal, catalog)
    _follow_timeline(journal, stream)
    return True


def require_match(
    config: PipelineConfig, journal: Journal, catalog: Session, slot: SlotInfo | None
) -> None:
    """Raise what `prepare_source` would, as far as that is told without changing anything."""
    require_own(config, journal, catalog, slot)
    if not journal.empty:
        _continue(config, journal, slot)
        if (reached := set_back_to(journal, catalog)) is not None:
            raise _set_back(journal, reached)


def require_primary(catalog: Session) -> None:
    """Raise what passes when a standby is promoted. Until then it may lack the slot, or have one
    that it only keeps: that says nothing about the slot."""
    if in_recovery(catalog):
        raise PenstockError(
            ErrorKind.SOURCE_CONNECTION,
            "the server is a standby; waiting for the primary",
            hint="nothing to do if it is about to be promoted; otherwise set pg_connection to the"
            " primary server",
        )


def set_back_to(journal: Journal, session: Session) -> Lsn | None:
    """Where the server's WAL ends, if the journal has more of the same timeline.

    Nothing is sent before it is flushed, and every position of ours is the end of a whole
    record, which recovery finds again: no restart and no crash takes a server back behind it.
    A disk that was restored does, or one that did not keep what it was told to.
    """
    known = journal.source_history()
    if known.set_back_to is not None:
        return known.set_back_to
    end = journal.end  # first: both go on while we look
    if known.timeline not in (None, current_timeline(session)):
        return None  # `_follow_timeline` knows more
    flushed = current_flush_lsn(session)
    return flushed if flushed < end else None


def is_past_lost(journal: Journal, session: Session, slot: SlotInfo | None) -> bool:
    """Whether changes cannot be had any more: what `invalidated_slot_behavior` is about."""
    return slot is None or slot.lost or set_back_to(journal, session) is not None


def sender_timeout(catalog: Session) -> float:
    """After how many seconds of silence the server hangs up; 0 for never."""
    with translated("reading wal_sender_timeout"):
        row = catalog.execute(
            "SELECT setting::float / 1000 FROM pg_settings WHERE name = 'wal_sender_timeout'"
        ).fetchone()
    return float(row[0]) if row else 0.0


def rightful_owner(config: PipelineConfig, catalog: Session) -> JournalOwner:
    """Who a journal must belong to for this pipeline to use it."""
    return JournalOwner(config.slot_name, system_identifier(catalog), catalog.info.dbname)


def require_own(
    config: PipelineConfig, journal: Journal, catalog: Session, slot: SlotInfo | None
) -> None:
    """Raise unless the journal is this pipeline's, or new together with its slot."""
    wanted, owner = rightful_owner(config, catalog), journal.owner()
    if owner is None:
        if slot is not None:
            raise PenstockError(
                ErrorKind.SOURCE_SLOT,
                f"the slot {slot.name} exists, but the journal {journal.root} is empty:"
                " it was lost, or the slot belongs to another pipeline",
                hint="point journal.location to the journal of this slot, or give up what the slot"
                f" holds with: SELECT pg_drop_replication_slot('{slot.name}')",
            )
    elif owner != wanted:
        raise PenstockError(
            ErrorKind.JOURNAL,
            f"the journal {journal.root} belongs to slot {owner.slot} of database"
            f" {owner.database} in cluster {owner.system_identifier}, not to slot {wanted.slot}"
            f" of database {wanted.database} in cluster {wanted.system_identifier}",
            hint="give every pipeline a journal.location of its own; after moving to a new cluster"
            " begin with an empty one",
        )


def _require_failover(config: PipelineConfig, catalog: Session) -> None:
    if config.failover and server_version(catalog) < FAILOVER_SINCE:
        raise PenstockError(
            ErrorKind.SOURCE_CONFIGURATION,
            "failover: true needs Postgres 17 or later;"
            f" the server is {server_version(catalog) // 10000}",
            hint="leave failover out: after a promotion the slot has to be made again",
        )


def _follow_timeline(journal: JournalWriter, stream: ReplicationStream) -> None:
    """Make sure that a server which was promoted has all that the journal has.

    A standby may lack the last of what the primary had sent to us. Its positions go on
    from where it was promoted, so nothing else would tell that the journal holds changes
    which never happened there.
    """
    before, now = journal.source_history().timeline, stream.timeline()
    if before == now:
        return
    if before is not None:
        left = stream.left_at(before, now) if now > before else None
        if left is None or left < journal.end:
            raise PenstockError(
                ErrorKind.SOURCE_SLOT,
                f"the server was promoted {f'at {left}' if left else 'from another history'}, but"
                f" the journal {journal.root} has changes up to {journal.end} of the server before"
                " it, and they are lost there",
                hint="drop the slot and remove the journal: every table is copied again; to"
                " prevent it, name the standby's slot in synchronized_standby_slots",
                position=journal.end,
            )
    SourceHistory(timeline=now).keep(journal.root)


def _require_all_its_past(journal: JournalWriter, catalog: Session) -> None:
    """Streaming from the journal's end would pass over all that such a server writes before it."""
    reached = set_back_to(journal, catalog)
    if reached is not None:
        # Whoever starts us again may do so when its WAL has passed the journal's end.
        replace(journal.source_history(), set_back_to=reached).keep(journal.root)
        raise _set_back(journal, reached)


class _SlotMaking:
    """The wait until there is a slot: it says now and then what for, and ends when told to."""

    def __init__(self, slot: str, catalog: Session, stop: threading.Event) -> None:
        self._slot = slot
        self._catalog = catalog
        self._stop = stop
        self._began = time.monotonic()
        self._next_word = self._began + _FIRST_WORD_S

    def goes_on(self) -> bool:
        now = time.monotonic()
        if now >= self._next_word and not self._stop.is_set():
            self._next_word = now + _NEXT_WORD_S
            logger.warning(
                "the slot is made when running transactions have ended",
                extra={
                    "slot": self._slot,
                    "waiting_s": round(now - self._began),
                    "waiting_for_pids": waited_for(self._catalog, self._slot),
                },
            )
        return not self._stop.is_set()

    def by_another(self) -> PenstockError:
        """The server makes the slot for a receiver that is gone. That cannot be taken over, but
        the slot can be used when it is there."""
        pids = waited_for(self._catalog, self._slot)
        whose = f" (of server process {', '.join(map(str, pids))})" if pids else ""
        return PenstockError(
            ErrorKind.SOURCE_CONNECTION,
            f"the slot {self._slot} is still being made and waits for running transactions{whose}",
            hint="nothing to do if they end: it is tried again. A session that is idle in"
            " a transaction has to commit, roll back or be ended with pg_terminate_backend",
        )


def _begin(
    config: PipelineConfig,
    journal: JournalWriter,
    slot: SlotInfo | None,
    stream: ReplicationStream,
    making: _SlotMaking,
) -> bool:
    """The first flush: empty, at the new slot's consistent point. False if there is no slot yet.

    A slot that is there already was created by an earlier start that died
    before this flush (the journal is claimed before the slot is created), and
    nothing of it has been acknowledged. If it died while the server was still making
    the slot, the server goes on with that; only then the slot has a point to begin at.
    """
    if slot is None:
        point = stream.create_slot(config.slot_name, making.goes_on, failover=config.failover)
        if point is None:
            return False
        failpoint("slot_created")
    elif slot.lost:
        raise _lost(slot)
    elif slot.being_made:
        raise making.by_another()
    elif slot.confirmed_flush_lsn is None:
        raise _unusable(slot)
    else:
        point = slot.confirmed_flush_lsn
    journal.append(point, start=point)
    failpoint("journal_begun")
    return True


def _continue(config: PipelineConfig, journal: Journal, slot: SlotInfo | None) -> None:
    if slot is None:
        raise PenstockError(
            ErrorKind.SOURCE_SLOT,
            f"the slot {config.slot_name} is gone: changes after {journal.end} cannot be had",
            hint=_ANEW_AND_WHY,
        )
    if slot.lost:
        raise _lost(slot)
    if slot.confirmed_flush_lsn is not None and slot.confirmed_flush_lsn > journal.end:
        raise PenstockError(
            ErrorKind.SOURCE_SLOT,
            f"the slot {slot.name} is at {slot.confirmed_flush_lsn}, ahead of the journal"
            f" {journal.root}, which ends at {journal.end}: the journal was lost or rolled back",
            hint="restore the journal, or drop the slot and remove the journal:"
            " every table is copied again",
            position=journal.end,
        )


def _set_back(journal: Journal, reached: Lsn) -> PenstockError:
    return PenstockError(
        ErrorKind.SOURCE_SLOT,
        f"the source was set back: its WAL was at {reached} when the journal {journal.root}"
        f" had changes up to {journal.end}",
        hint=ANEW,
        position=journal.end,
    )


def _lost(slot: SlotInfo) -> PenstockError:
    return PenstockError(
        ErrorKind.SOURCE_SLOT,
        f"the slot {slot.name} is lost: {slot.invalidation_reason}",
        hint=_ANEW_AND_WHY,
    )


def _unusable(slot: SlotInfo) -> PenstockError:
    return PenstockError(
        ErrorKind.SOURCE_SLOT,
        f"the slot {slot.name} is not one that changes can be had from",
        hint="give the pipeline another id, or drop the slot if nobody needs it:"
        f" SELECT pg_drop_replication_slot('{slot.name}')",
    )
