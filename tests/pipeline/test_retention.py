"""What errored tables may keep in the journal."""

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
from penstock.postgres.catalog import PublishedTable
from penstock.publication_drift.terms import Terms
from penstock.schema import Lsn, TableId
from penstock.states import MANUAL, Errored, Ready, RetryPolicy, StoredState
from penstock.stores import MemoryStore
from tests.pipeline.journals import HandMadeJournal, table

ASIDE = Errored("no", "mend it", MANUAL, Ready("c1"))
RETRIED = Errored("no", "wait", RetryPolicy("timed", datetime.now(UTC)), Ready("c1"))
READY = Ready("c1")
FULL = 1000


class Tables:
    """In the scheduler's place: tables with what each holds in the journal.

    A table's number is its oid; its one flush ends at 100 more than that.
    """

    def __init__(
        self, root: Path, held: dict[str, tuple[StoredState, int]], retention_hours: int = 0
    ) -> None:
        self.journal = journal = HandMadeJournal(root)
        self.store = MemoryStore()
        self.store.open("t")
        self.dropped: list[str] = []
        self._tables = []
        for number, (name, (state, size)) in enumerate(held.items(), 1):
            journal.flush(100 + number, journal.segment(table(number, name), size=size))
            self._tables.append(Table(name, TableId(number), state, self))
        limits = JournalConfig(
            location=str(root),
            max_bytes=FULL,
            max_table_bytes=FULL - 1,
            retention_hours=retention_hours,
        )
        config = PipelineConfig(
            id="t", publication_name="p", pg_connection=PgConnection(), journal=limits
        )
        unused = cast(Any, None)
        context = PipelineContext(config, self.store, journal.reader, unused, unused)
        self._retention = Retention(context, cast(Scheduler, self))

    def pass_everything(self, name: str) -> None:
        """Have a table applied all that is here of it."""
        [one] = [table for table in self._tables if table.name == name]
        one.cursor = self.journal.reader.end

    def retire(self) -> list[str]:
        """Which errored tables were dropped."""
        self._retention.retire()
        return self.dropped

    def held(self) -> list[str]:
        """Which tables have something in the journal."""
        journal = self.journal.reader
        return [table.name for table in self._tables if journal.table_bytes(table.id)]

    def tables(self) -> list[Table]:
        return self._tables

    def between_jobs(self, table: Table, action: Callable[[], None]) -> bool:
        action()
        return True


class Table:
    """A table that has applied nothing yet."""

    cursor: Lsn | None = None

    def __init__(self, name: str, table_id: TableId, state: StoredState, among: Tables) -> None:
        self.name, self.id, self.state, self._among = name, table_id, state, among
        self.published = PublishedTable(
            table(table_id.oid, name), None, "r", 0, Terms(frozenset(), None)
        )
        self.place = self.published.schema.name

    def drop_changes(self, end: Lsn, why: str) -> None:
        self._among.journal.reader.retire({self.id: end})
        self._among.dropped.append(self.name)


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
def test_errored_tables_leave_room_for_others(
    tmp_path: Path, held: dict[str, tuple[StoredState, int]], dropped: list[str]
) -> None:
    """The largest go first, until receiving can go on."""
    assert Tables(tmp_path / "journal", held).retire() == dropped


def test_an_errored_table_that_holds_back_too_many_manifests_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.retention._MAX_HELD_BACK", 10)
    tables = Tables(tmp_path, {"a": (ASIDE, 1), "b": (READY, 1), "c": (ASIDE, 1)}, 1)
    tables.pass_everything("c")  # what is here of it is here for its age
    for end in range(200, 207):
        tables.journal.flush(end)
    assert tables.retire() == []
    tables.journal.flush(207)
    assert tables.retire() == ["a"]
    assert tables.held() == ["b", "c"]


def test_what_is_kept_for_its_age_alone_makes_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest goes, until receiving can go on; an errored table loses nothing for it."""
    kept = {"a": (READY, 300), "b": (ASIDE, 200), "c": (READY, 250), "d": (READY, 340)}
    tables = Tables(tmp_path, kept, retention_hours=1)
    for name in "acd":
        tables.pass_everything(name)
    assert tables.retire() == []
    assert tables.held() == ["b", "c", "d"]
    assert len(caplog.messages) == 1
    tables.journal.flush(200, tables.journal.segment(table(1, "a"), size=200))
    assert tables.retire() == []
    assert tables.held() == ["a", "b", "d"]
    assert len(caplog.messages) == 1, "now and then is enough"


def test_what_an_errored_table_has_applied_is_not_held_against_it(tmp_path: Path) -> None:
    tables = Tables(tmp_path, {"a": (ASIDE, 700), "b": (READY, 299)}, retention_hours=1)
    tables.pass_everything("a")
    assert tables.retire() == []
    assert tables.held() == ["b"]
