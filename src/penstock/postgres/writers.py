"""Waiting for the transactions that write to a table now.

A change reaches a copied table by its snapshot or by the stream. Three kinds can
miss both, and all belong to a transaction that has written to the table but is not
visible yet when the copy begins:

- The table was added to the publication meanwhile. What the transaction wrote
  before that is not sent, whenever it commits.
- Its commit was written before the point from which the slot sends, and it still waits
  for a synchronous standby.
- The journal has dropped the table's older segments, the transaction's among
  them: a commit is received before it is visible, and with synchronous standbys
  long before.

Such a transaction holds its lock on the table until after it has become
visible. So: note who holds a lock that writers take, and take the snapshot when all
of these are gone. The slot must exist by then. Those who come later need no waiting
for: they write after the table was published, commit into the slot, and nothing of
theirs has been dropped.
"""

from __future__ import annotations

from penstock.postgres.connection import Session, translated
from penstock.schema import TableSchema

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
