"""What set-aside tables may keep in the journal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.retention import Retention
from penstock.pipeline.scheduler import Scheduler
from penstock.schema import Lsn, TableId
from penstock.states import MANUAL, Errored, Ready, RetryPolicy, StoredState
from tests.pipeline.journals import HandMadeJournal, table

ASIDE = Errored("no", "mend it", MANUAL, Ready("c1"))
RETRIED = Errored("no", "wait", RetryPolicy("timed", datetime.now(UTC)), Ready("c1"))
FULL = 1000


class Tables:
    """In the scheduler's place: tables with what each holds in the journal."""

    def __init__(self, root: Path, held: dict[str, tuple[StoredState, int]]) -> None:
        journal = HandMadeJournal(root)
        self.dropped: list[str] = []
        self._tables = []
        for number, (name, (state, size)) in enumerate(held.items(), 1):
            journal.flush(100 + number, journal.segment(table(number, name), size=size))
            self._tables.append(Table(name, TableId(number), state, self.dropped, journal))
        limits = JournalConfig(location=str(root), max_bytes=FULL, max_table_bytes=FULL - 1)
        config = PipelineConfig(
            id="t", publication_name="p", pg_connection=PgConnection(), journal=limits
        )
        unused = cast(Any, None)
        context = PipelineContext(config, unused, journal.reader, unused, unused)
        Retention(context, cast(Scheduler, self)).retire()

    def tables(self) -> list[Table]:
        return self._tables

    def between_jobs(self, table: Table, action: Callable[[], None]) -> bool:
        action()
        return True


class Table:
    """A table that is copied up to nowhere."""

    cursor = Lsn(0)

    def __init__(
        self,
        name: str,
        table_id: TableId,
        state: StoredState,
        dropped: list[str],
        journal: HandMadeJournal,
    ) -> None:
        self.name, self.id, self.state = name, table_id, state
        self._dropped, self._journal = dropped, journal

    def drop_changes(self, end: Lsn) -> None:
        self._journal.reader.retire({self.id: end})
        self._dropped.append(self.name)


@pytest.mark.parametrize(
    ("held", "dropped"),
    [
        ({"a": (ASIDE, 200), "b": (ASIDE, 400), "c": (ASIDE, 300), "d": (ASIDE, 299)}, ["b"]),
        ({"a": (ASIDE, 500), "b": (ASIDE, 900), "c": (ASIDE, 600)}, ["b", "c"]),
        ({"a": (ASIDE, 300), "b": (Ready("c1"), 700)}, ["a"]),
        # Receiving may have paused at more, and goes on below 800.
        ({"a": (ASIDE, 300), "b": (ASIDE, 500)}, ["b"]),
        # What the other one holds goes by itself.
        ({"a": (ASIDE, 300), "b": (Ready("c1"), 699)}, []),
        ({"a": (Ready("c1"), 1200)}, []),
        # It comes back when its destination does.
        ({"a": (RETRIED, 900), "b": (ASIDE, 100)}, ["b"]),
    ],
)
def test_set_aside_tables_leave_room_for_others(
    tmp_path: Path, held: dict[str, tuple[StoredState, int]], dropped: list[str]
) -> None:
    """The largest go first, until receiving can go on."""
    assert Tables(tmp_path / "journal", held).dropped == dropped
