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
from penstock.schema import Lsn
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
