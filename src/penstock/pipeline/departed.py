"""Tables that the store forgets and the destination keeps.

With a table that leaves the publication, all that the store has of it goes. If it comes back it
is copied again, which is right unless `table_sync_copy` leaves it out: the empty copy that such
a table begins with would take the place of what was streamed before. So it is when a table is
being copied again and is left out before that copy is done. So that a table was here is noted
in a file beside the journal.

    <journal>/departed/<oid>
"""

from __future__ import annotations

from penstock.journal.files import sync
from penstock.journal.journal import Journal
from penstock.schema import TableId

_DIRECTORY = "departed"


def note_departure(journal: Journal, table_id: TableId) -> None:
    """Durable when this returns. Noting it again does no harm."""
    directory = journal.root / _DIRECTORY
    directory.mkdir(exist_ok=True)
    (directory / str(table_id.oid)).touch()
    sync(directory)


def has_departed(journal: Journal, table_id: TableId) -> bool:
    """Whether the destination has the table from an earlier time in the publication."""
    return (journal.root / _DIRECTORY / str(table_id.oid)).exists()
