"""Starting over after the slot was lost, where the user allows it.

A slot that is gone or invalidated takes with it every change after the journal's
end. With `invalidated_slot_behavior: recreate` every table is copied again from a
new slot on; otherwise the receiver refuses to start. Each step can be repeated, and
the order matters: the states first, so that no table can go on from a cursor in a
journal that is about to begin anew.
"""

from __future__ import annotations

import logging
import shutil
from threading import Event

from penstock.config import PipelineConfig
from penstock.journal.journal import Journal
from penstock.journal.lock import ReceiverLock
from penstock.postgres.connection import connect
from penstock.postgres.slots import drop_slot, slot_info
from penstock.stores.base import PipelineStore

logger = logging.getLogger("penstock.pipeline.slot")


def recover_lost_slot(config: PipelineConfig, store: PipelineStore, journal: Journal) -> None:
    """Make room for a new slot if the journal's own is lost and the configuration says so."""
    if config.invalidated_slot_behavior != "recreate" or journal.empty:
        return
    session = connect(config.pg_connection, f"{config.id}_slot")
    try:
        slot = slot_info(session, config.slot_name)
        if slot is not None and not slot.lost:
            return
        logger.warning(
            "slot is lost, every table is copied again",
            extra={"slot": config.slot_name, "journal_end": str(journal.end)},
        )
        with ReceiverLock(config.journal_path, Event()):
            store.reset_table_states_for_resync()
            if slot is not None:
                drop_slot(session, config.slot_name)
            journal.discard()
            shutil.rmtree(journal.copies_directory, ignore_errors=True)
    finally:
        session.close()
