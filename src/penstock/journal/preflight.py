"""What the preflight has to say of a pipeline's journal. The rules are those of `source`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.config import PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.findings import Finding, error, from_error, warning
from penstock.journal.journal import Journal
from penstock.journal.source import ANEW, is_past_lost, require_match, require_own
from penstock.postgres.connection import Session, in_recovery
from penstock.postgres.slots import SlotInfo

_SUBJECT = "journal"


def journal_findings(
    session: Session, config: PipelineConfig, slot: SlotInfo | None
) -> Iterator[Finding]:
    """Whether the journal is ours, and goes with the slot.

    The slot was looked at first: what it has acknowledged is in the journal by now, also
    while a receiver runs.
    """
    if in_recovery(session):
        return  # what a standby lacks says nothing
    journal = Journal(config.journal_path)
    try:
        journal.refresh()
        if slot is not None and (slot.lost or slot.foreign_to(session.info.dbname)):
            require_own(config, journal, session, None)  # the slot has a finding of its own
        else:
            require_match(config, journal, session, slot)
    except NotADirectoryError:
        return  # there is none, and who looks at the directory says why
    except OSError as failure:
        problem = f"the journal {journal.root} cannot be read: {failure.strerror or failure}"
        yield error(_SUBJECT, problem, "-- make it readable for this user", ErrorKind.JOURNAL)
    except PenstockError as failure:
        if failure.kind is not ErrorKind.SOURCE_SLOT or not is_past_lost(journal, session, slot):
            yield from_error(_SUBJECT, failure)
        elif config.invalidated_slot_behavior == "recreate":
            remedy = "-- none: the slot is made again and every table copied"
            yield warning(_SUBJECT, failure.message, remedy)
        else:
            yield error(_SUBJECT, failure.message, f"-- {ANEW}", failure.kind)
