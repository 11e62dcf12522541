"""Making sure that journal and slot belong together, before anything streams.

The slot's confirmed position is never ahead of the journal's end, because only
what a manifest covers is acknowledged. So a slot that is ahead means that the
journal was lost or rolled back, and the changes between are gone: that is an
error here, never a silent gap.
"""

from __future__ import annotations

from penstock.config import PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.journal.journal import JournalOwner, JournalWriter
from penstock.postgres.connection import Session, system_identifier, translated
from penstock.postgres.replication import ReplicationStream
from penstock.postgres.slots import SlotInfo, slot_info

_ANEW = (
    "start the pipeline with invalidated_slot_behavior: recreate, or drop the slot if it is there"
    " and remove the journal; every table is copied again. `penstock doctor` tells which limits"
    " of the server cost the slot"
)


def prepare_source(
    config: PipelineConfig, journal: JournalWriter, catalog: Session, stream: ReplicationStream
) -> None:
    """Bring journal and slot to where streaming can begin at the journal's end."""
    journal.refresh()
    slot = slot_info(catalog, config.slot_name)
    _claim(config, journal, catalog, slot)
    journal.remove_litter()
    if journal.empty:
        _begin(config, journal, slot, stream)
    else:
        _continue(config, journal, slot)


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


def _claim(
    config: PipelineConfig, journal: JournalWriter, catalog: Session, slot: SlotInfo | None
) -> None:
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
        journal.claim(wanted)
        failpoint("journal_claimed")
    elif owner != wanted:
        raise PenstockError(
            ErrorKind.JOURNAL,
            f"the journal {journal.root} belongs to slot {owner.slot} of database"
            f" {owner.database} in cluster {owner.system_identifier}, not to slot {wanted.slot}"
            f" of database {wanted.database} in cluster {wanted.system_identifier}",
            hint="give every pipeline a journal.location of its own; after moving to a new cluster"
            " begin with an empty one",
        )


def _begin(
    config: PipelineConfig, journal: JournalWriter, slot: SlotInfo | None, stream: ReplicationStream
) -> None:
    """The first flush: empty, at the new slot's consistent point.

    A slot that is there already was created by an earlier start that died
    before this flush (the journal is claimed before the slot is created), and
    nothing of it has been acknowledged.
    """
    if slot is None:
        point = stream.create_slot(config.slot_name)
        failpoint("slot_created")
    elif slot.confirmed_flush_lsn is None:
        raise _lost(slot)
    else:
        point = slot.confirmed_flush_lsn
    journal.append(point, start=point)
    failpoint("journal_begun")


def _continue(config: PipelineConfig, journal: JournalWriter, slot: SlotInfo | None) -> None:
    if slot is None:
        raise PenstockError(
            ErrorKind.SOURCE_SLOT,
            f"the slot {config.slot_name} is gone: changes after {journal.end} cannot be had",
            hint=_ANEW,
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


def _lost(slot: SlotInfo) -> PenstockError:
    return PenstockError(
        ErrorKind.SOURCE_SLOT,
        f"the slot {slot.name} is lost: {slot.invalidation_reason or slot.wal_status}",
        hint=_ANEW,
    )
