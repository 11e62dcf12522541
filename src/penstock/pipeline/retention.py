"""What leaves the journal, and when.

A table that is copied gives up what its cursor has passed. One that is not, or
that is set aside, keeps everything, up to a limit: past `journal.max_table_bytes`
a set-aside table loses its segments and is copied again when it is retried. So do
the largest of them where all together leave other tables no room. A table that
left the publication gives up all it had; one that has changes here but was not seen
in the publication yet gives up nothing.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from penstock.journal.writer import RESUME_SHARE
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
            aside = [table for table in tables.values() if isinstance(table.state, Errored)]
            self._limit_each(aside)
            self._limit_all([table for table in aside if _waits_for_somebody(table)])
            return freed

    def _limit_each(self, aside: list[PipelineTable]) -> None:
        """Drop what a set-aside table holds when it is too much."""
        limit = self._context.config.journal.max_table_bytes
        for table in aside:
            if self._held(table) > limit:
                self._drop(table)

    def _limit_all(self, aside: list[PipelineTable]) -> None:
        """Drop what the largest tables hold that are set aside for good when receiving waits
        for room. Those that are tried again by themselves may be waited for.

        It may have paused at more than there is now, and goes on only below the mark: what
        set-aside tables hold above that would keep it waiting for ever.
        """
        journal, limit = self._context.journal, self._context.config.journal.max_bytes
        mark = limit * RESUME_SHARE
        if journal.bytes < limit and sum(map(self._held, aside)) < mark:
            return
        for table in sorted(aside, key=self._held, reverse=True):
            if journal.bytes < mark or not self._held(table):
                return
            self._drop(table)

    def _held(self, table: PipelineTable) -> int:
        return self._context.journal.table_bytes(table.id)

    def _drop(self, table: PipelineTable) -> None:
        end = self._context.journal.end
        if self._scheduler.between_jobs(table, lambda: table.drop_changes(end)):
            logger.warning(
                "changes of a table that is set aside were dropped",
                extra={"table": table.name, "position": str(end)},
            )


def _waits_for_somebody(table: PipelineTable) -> bool:
    return isinstance(table.state, Errored) and table.state.retry.kind != "timed"
