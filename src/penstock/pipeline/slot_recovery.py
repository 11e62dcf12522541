"""Starting over after the slot, the journal or some of the source's past was lost.

A slot that is gone or invalidated takes with it every change after the journal's
end; a source that was set back has undone some of those before it. With
`invalidated_slot_behavior: recreate` every table is copied again from a new slot on;
otherwise the receiver refuses to go on. Each step can be repeated, and the order matters:
the states first, so that no table can go on from a cursor in a journal that is about to
begin anew.

A journal that was removed, with its slot, leaves states behind whose cursors it
cannot serve: before its beginning, or, where the source was set back, behind its end.
These are forgotten: going on from them would leave a gap.
"""

from __future__ import annotations

import logging
import shutil
from threading import Event

from penstock.config import PipelineConfig
from penstock.failpoints import failpoint
from penstock.journal.journal import Journal
from penstock.journal.lock import ReceiverLock
from penstock.journal.source import is_past_lost, require_primary, rightful_owner
from penstock.postgres.connection import Session, connect
from penstock.postgres.slots import drop_slot, slot_info
from penstock.stores.base import PipelineStore, Worker

logger = logging.getLogger("penstock.pipeline.slot")


def recover_lost_slot(config: PipelineConfig, store: PipelineStore, journal: Journal) -> bool:
    """Make room for a new slot if the journal's own is lost and the configuration says so."""
    session = connect(config.pg_connection, f"{config.id}_slot")
    try:
        return _recover(session, config, store, journal)
    finally:
        session.close()


def _recover(
    session: Session, config: PipelineConfig, store: PipelineStore, journal: Journal
) -> bool:
    require_primary(session)
    if journal.owner() not in (None, rightful_owner(config, session)):
        return False  # another's journal is not ours to discard; the receiver refuses it
    slot = slot_info(session, config.slot_name)
    if slot is None and journal.empty:
        _forget_cursors(store, journal)  # the slot will be made, and the journal with it
        if journal.owner() is not None:
            # Of a journal that was being discarded when we died, anything may be left.
            with ReceiverLock(config.journal_path, Event()):
                journal.discard()
        return True
    intact = slot is not None and not slot.lost
    journal.refresh()  # the receiver's last words
    if not is_past_lost(journal, session, slot):
        if not journal.empty:  # or it was lost, and may be restored
            _forget_cursors(store, journal)
        return False
    if config.invalidated_slot_behavior != "recreate":
        return False
    logger.warning(
        "source was set back, every table is copied again"
        if intact
        else "slot is lost, every table is copied again",
        extra={"slot": config.slot_name, "journal_end": str(journal.end)},
    )
    with ReceiverLock(config.journal_path, Event()):
        store.reset_table_states_for_resync()
        failpoint("states_reset")
        if slot is not None:
            drop_slot(session, config.slot_name)
        journal.discard()
        failpoint("journal_discarded")
        shutil.rmtree(journal.copies_directory, ignore_errors=True)
    return True


def _forget_cursors(store: PipelineStore, journal: Journal) -> None:
    """Have every table copied if there are cursors that the journal was never able to serve."""
    cursors = [
        cursor
        for table_id in store.get_table_states()
        if (cursor := store.get_replication_progress(Worker.apply(table_id))) is not None
    ]
    if cursors and (journal.empty or min(cursors) < journal.began or max(cursors) > journal.end):
        logger.warning(
            "the journal is a new one, every table is copied again",
            extra={"journal": str(journal.root)},
        )
        store.reset_table_states_for_resync()
