"""One view of the source, shared by every task of a copy.

A snapshot is matched to the stream by transaction, not by position: afterwards
exactly those changes are skipped whose transaction was visible in it. So beside
the exported snapshot itself two things are noted: which transactions it sees,
and a WAL position after it (the *barrier*) behind which none of them can
commit any more.

The order matters. The commit record of a visible transaction is in the WAL
before the snapshot can see it, so a position read after the snapshot is behind
all of them; one read before it would drop the filter too early, and a change
that the copy has already would be applied twice.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

import psycopg

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.connection import Session, connect, current_wal_lsn, in_recovery, translated
from penstock.schema import Lsn, TableSchema
from penstock.states import VisibleXids


class ExportedSnapshot:
    """A `REPEATABLE READ`, read-only transaction whose snapshot others may import.

    Inside the `with` block `id` can be given to `SET TRANSACTION SNAPSHOT` in
    other sessions of the same database, and `connection` reads inside the
    snapshot (sizes, for instance). The source keeps old row versions for as long
    as it is open, so leave it as soon as the last task has read its rows.
    """

    id: str
    visible: VisibleXids
    barrier: Lsn
    connection: Session

    def __init__(self, connection: PgConnection, purpose: str = "snapshot") -> None:
        self._parameters = connection
        self._purpose = purpose

    def __enter__(self) -> Self:
        self.connection = connect(self._parameters, self._purpose)
        try:
            self._take()
        except BaseException:
            self.connection.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Closing alone leaves the server to find out, a little later.
        with suppress(psycopg.Error):
            self.connection.execute("ROLLBACK")
        self.connection.close()

    def _take(self) -> None:
        if in_recovery(self.connection):
            raise PenstockError(
                ErrorKind.SOURCE_SNAPSHOT,
                "copying from a standby is not supported yet: its snapshots do not tell which"
                " transactions are running",
                hint="set pg_connection to the primary server",
            )
        with translated("taking a snapshot of the source"):
            self.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            # One statement, so that both are of the transaction's one snapshot.
            row = self.connection.execute(
                "SELECT pg_current_snapshot()::text, pg_export_snapshot()"
            ).fetchone()
        assert row is not None
        self.visible = VisibleXids.parse(row[0])
        self.id = row[1]
        self.barrier = current_wal_lsn(self.connection)


# Waiting for the transactions that write to a table now.
#
# A change reaches a copied table by its snapshot or by the stream. Three kinds can
# miss both, and all belong to a transaction that has written to the table but is not
# visible yet when the copy begins:
#
# - The table was added to the publication meanwhile. What the transaction wrote
#   before that is not sent, whenever it commits.
# - Its commit was written before the point from which the slot sends, and it still waits
#   for a synchronous standby.
# - The journal has dropped the table's older segments, the transaction's among
#   them: a commit is received before it is visible, and with synchronous standbys
#   long before.
#
# Such a transaction holds its lock on the table until after it has become
# visible. So: note who holds a lock that writers take, and take the snapshot when all
# of these are gone. The slot must exist by then. Those who come later need no waiting
# for: they write after the table was published, commit into the slot, and nothing of
# theirs has been dropped.

# Everything that conflicts with SHARE: what writes rows, and what rewrites the table.
_HOLDERS = """
    SELECT DISTINCT l.virtualtransaction
    FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                     'AccessExclusiveLock')
      AND (l.relation = %(oid)s
           OR l.relation IN (SELECT relid FROM pg_partition_tree(%(oid)s)))
"""


class Writers:
    """The transactions that held a write lock on a table when this was made."""

    def __init__(self, session: Session, table: TableSchema) -> None:
        self._session = session
        self._table = table
        self._left = self._holders()

    def left(self) -> int:
        """How many of them are still there."""
        if self._left:
            self._left &= self._holders()
        return len(self._left)

    def _holders(self) -> set[str]:
        with translated("looking for transactions that write to the table", self._table.name):
            rows = self._session.execute(_HOLDERS, {"oid": self._table.id.oid}).fetchall()
        return {row[0] for row in rows}
