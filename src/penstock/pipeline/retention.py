"""What leaves the journal, and when.

A table that is copied gives up what its cursor has passed. One that is not, or
that is set aside, keeps everything, up to a limit: past `journal.max_table_bytes`
a set-aside table loses its segments and is copied again when it is retried. A
table that left the publication gives up all it had; one that has changes here
but was not seen in the publication yet gives up nothing.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from penstock.pipeline.context import PipelineContext
from penstock.pipeline.scheduler import Scheduler
from penstock.pipeline.table import PipelineTable
from penstock.schema import Lsn, TableId
from penstock.states import Errored, FinishedCopy, Ready, SyncDone

logger = logging.getLogger("penstock.pipeline.retention")


class Retention:
    """Decides what may go, and lets it go."""

    def __init__(self, context: PipelineContext, scheduler: Scheduler) -> None:
        self._context = context
        self._scheduler = scheduler
        self._published: frozenset[TableId] = frozenset()
        self._published_as_of: Lsn | None = None

    def note_membership(self, published: frozenset[TableId], as_of: Lsn) -> None:
        """Who was in the publication; `as_of` is the journal's end before it was asked."""
        self._published, self._published_as_of = published, as_of

    def retire(self) -> int:
        """Drop what may go now; the bytes freed."""
        journal, config = self._context.journal, self._context.config.journal
        with self._context.retiring:
            tables = {table.id: table for table in self._scheduler.tables()}
            passed = {
                table.id: table.cursor
                for table in tables.values()
                if isinstance(table.state, FinishedCopy | SyncDone | Ready)
                and table.cursor is not None
            }
            if self._published_as_of is not None:
                # Of a table published after that, only later changes are here.
                gone = journal.tables() - set(tables) - self._published
                passed |= dict.fromkeys(gone, self._published_as_of)
            freed = journal.retire(passed, retention=timedelta(hours=config.retention_hours))
            for table in tables.values():
                self._limit(table)
            return freed

    def _limit(self, table: PipelineTable) -> None:
        """Drop what a set-aside table holds when it is too much."""
        journal = self._context.journal
        if not isinstance(table.state, Errored):
            return
        if journal.table_bytes(table.id) <= self._context.config.journal.max_table_bytes:
            return
        end = journal.end
        if self._scheduler.between_jobs(table, lambda: table.drop_changes(end)):
            logger.warning(
                "changes of a table that is set aside were dropped",
                extra={"table": table.name, "position": str(end)},
            )
