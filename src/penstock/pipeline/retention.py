"""What leaves the journal, and when.

A table that is copied gives up what its cursor has passed, when it is older than
`journal.retention_hours`; where that leaves no room in `journal.max_bytes`, the oldest of it
goes before. What is behind the cursor stays, and so does all of a table that is not copied.
For a table that is errored there are limits: past `journal.max_table_bytes`, or when too
many manifests stay for it (each takes a file, and memory), it loses its segments and is copied
again when it is retried. So do the largest of them where all together leave other tables no
room. A table that left the publication gives up all it had; one that has changes here but was
not seen in the publication yet gives up nothing.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import takewhile

from penstock.journal.journal import TableFlush
from penstock.journal.writer import RESUME_SHARE
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.scheduler import Scheduler
from penstock.pipeline.table import PipelineTable
from penstock.schema import ZERO_LSN, Lsn, TableId
from penstock.states import Errored

logger = logging.getLogger("penstock.pipeline.retention")

_MAX_HELD_BACK = 100_000
_LOG_SECONDS = 600.0


class Retention:
    """Decides what may go, and lets it go."""

    def __init__(self, context: PipelineContext, scheduler: Scheduler) -> None:
        self._context = context
        self._scheduler = scheduler
        self._published: frozenset[TableId] = frozenset()
        self._published_as_of: Lsn | None = None
        self._log_at = 0.0

    def note_membership(self, published: frozenset[TableId], as_of: Lsn) -> None:
        """Who was in the publication; `as_of` is the journal's end before it was asked."""
        self._published, self._published_as_of = published, as_of

    def retire(self) -> int:
        """Drop what may go now; the bytes freed."""
        journal, config = self._context.journal, self._context.config.journal
        with self._context.retiring:
            tables = {table.id: table for table in self._scheduler.tables()}
            passed = {
                table.id: cursor
                for table in tables.values()
                if (cursor := table.cursor) is not None
            }
            if self._published_as_of is not None:
                # Of a table published after that, only later changes are here.
                gone = journal.tables() - set(tables) - self._published
                passed |= dict.fromkeys(gone, self._published_as_of)
            freed = journal.retire(passed, retention=timedelta(hours=config.retention_hours))
            freed += self._make_room(passed)
            aside = [table for table in tables.values() if isinstance(table.state, Errored)]
            self._clear_places(aside, tables.values())
            self._limit_each(aside)
            self._limit_all([table for table in aside if _waits_for_operator(table)])
            return freed

    def _make_room(self, passed: Mapping[TableId, Lsn]) -> int:
        """Drop the oldest of what is kept for its age alone, if the journal is full of it."""
        journal, end = self._context.journal, ZERO_LSN
        surplus = journal.bytes - self._mark
        if surplus < 0:
            return 0
        kept = [self._passed_by(table_id, cursor) for table_id, cursor in passed.items()]
        for flush in heapq.merge(*kept, key=lambda flush: flush.end):
            surplus, end = surplus - flush.bytes, flush.end
            if surplus < 0:
                break
        freed = journal.retire({table_id: min(at, end) for table_id, at in passed.items()})
        if freed and time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + _LOG_SECONDS
            logger.warning(
                "changes were dropped before their retention_hours, for max_bytes",
                extra={"bytes": freed, "position": str(end)},
            )
        return freed

    def _passed_by(self, table_id: TableId, cursor: Lsn) -> Iterator[TableFlush]:
        flushes = self._context.journal.pending(table_id, ZERO_LSN)
        return takewhile(lambda flush: flush.end <= cursor, flushes)

    @property
    def _mark(self) -> float:
        """Below this, receiving goes on."""
        return self._context.config.journal.max_bytes * RESUME_SHARE

    def _clear_places(
        self, aside: Iterable[PipelineTable], tables: Iterable[PipelineTable]
    ) -> None:
        """Drop the segments of an errored table whose name now belongs to another table. The other
        table is copied to the same place; otherwise its copy would wait for the errored one.
        """
        named = {table.published.schema.name: table.id for table in tables}
        for table in filter(_waits_for_operator, aside):
            if named.get(table.place, table.id) != table.id:
                self._drop(table, f"another table is called {table.place} now")

    def _limit_each(self, aside: list[PipelineTable]) -> None:
        """Drop what an errored table holds when it is too much."""
        journal, limit = self._context.journal, self._context.config.journal.max_table_bytes
        for table in aside:
            if self._held(table) > limit:
                self._drop(table, "they took more of the journal than max_table_bytes")
            elif journal.held_back(table.id, self._needed_behind(table)) > _MAX_HELD_BACK:
                self._drop(
                    table, f"they kept more than {_MAX_HELD_BACK:,} manifests in the journal"
                )

    def _limit_all(self, aside: list[PipelineTable]) -> None:
        """Drop what the largest tables hold that wait for an operator when receiving waits
        for room. Those that are tried again by themselves may be waited for.

        It may have paused at more than there is now, and goes on only below the mark: what
        errored tables hold above that would keep it waiting for ever.
        """
        journal, limit = self._context.journal, self._context.config.journal.max_bytes
        mark = self._mark
        if journal.bytes < limit and sum(map(self._held, aside)) < mark:
            return
        for table in sorted(aside, key=self._held, reverse=True):
            if journal.bytes < mark or not self._held(table):
                return
            self._drop(table, "the journal was full (max_bytes)")

    def _held(self, table: PipelineTable) -> int:
        return self._context.journal.table_bytes(table.id, self._needed_behind(table))

    def _needed_behind(self, table: PipelineTable) -> Lsn:
        """What comes before is here for its age, and not because the table is errored."""
        return table.cursor or ZERO_LSN

    def _drop(self, table: PipelineTable, why: str) -> None:
        end = self._context.journal.end
        if self._scheduler.between_jobs(table, lambda: table.drop_changes(end, why)):
            logger.warning(
                "changes of a table that is errored were dropped",
                extra={"table": table.name, "position": str(end), "why": why},
            )


def _waits_for_operator(table: PipelineTable) -> bool:
    return isinstance(table.state, Errored) and table.state.retry_policy.kind != "timed"
