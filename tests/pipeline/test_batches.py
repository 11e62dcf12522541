from __future__ import annotations

from pathlib import Path

import pytest

from penstock.journal.journal import TableFlush
from penstock.pipeline import batches
from penstock.pipeline.batches import GROWTH_LIMIT, BatchSize, Gathering, Run, next_run
from penstock.schema import Lsn, TableId
from tests.pipeline.journals import HandMadeJournal, table

TABLE = TableId(1)
LARGE = 10**9


@pytest.fixture
def journal(tmp_path: Path) -> HandMadeJournal:
    return HandMadeJournal(tmp_path / "journal")


def run(journal: HandMadeJournal, cursor: int, max_bytes: int = LARGE) -> Run | None:
    return next_run(journal.reader, TABLE, Lsn(cursor), max_bytes)


def test_nothing_pending_is_no_run(journal: HandMadeJournal) -> None:
    assert run(journal, 100) is None


def test_a_run_takes_every_flush_of_its_version(journal: HandMadeJournal) -> None:
    first = table(version=150)
    journal.flush(200, journal.segment(first), schemas=(first,))
    journal.flush(300)
    journal.flush(400, journal.segment(first))

    found = run(journal, 100)

    assert found is not None
    assert (found.start, found.end, len(found.segments)) == (Lsn(100), Lsn(400), 2)
    assert not found.cut


def test_a_run_starts_behind_the_cursor(journal: HandMadeJournal) -> None:
    first = table(version=150)
    journal.flush(200, journal.segment(first), schemas=(first,))
    journal.flush(300, journal.segment(first))

    found = run(journal, 200)

    assert found is not None
    assert (found.start, found.end, len(found.segments)) == (Lsn(200), Lsn(300), 1)
    assert run(journal, 300) is None


def test_a_run_is_cut_at_the_limit_but_never_empty(journal: HandMadeJournal) -> None:
    first = table(version=150)
    journal.flush(200, journal.segment(first, size=50), schemas=(first,))
    journal.flush(300, journal.segment(first, size=50))
    journal.flush(400, journal.segment(first, size=50))

    small, medium = run(journal, 100, 10), run(journal, 100, 100)

    assert small is not None
    assert (small.end, small.cut) == (Lsn(200), True)
    assert medium is not None
    assert (medium.end, medium.cut) == (Lsn(300), True)


def test_a_run_ends_where_a_version_begins(journal: HandMadeJournal) -> None:
    first, second = table(version=150), table(version=250, columns=("id", "v", "w"))
    journal.flush(200, journal.segment(first), schemas=(first,))
    journal.flush(300, journal.segment(second), schemas=(second,))

    found = run(journal, 100)

    assert found is not None
    assert (found.schema, found.end, found.cut) == (first, Lsn(200), False)
    after = run(journal, 200)
    assert after is not None
    assert (after.schema, after.end) == (second, Lsn(300))


def test_a_flush_with_two_versions_is_applied_in_parts(journal: HandMadeJournal) -> None:
    first, second = table(version=150), table(version=250, columns=("id", "v", "w"))
    journal.flush(200, journal.segment(first), schemas=(first,))
    journal.flush(300, journal.segment(first), journal.segment(second), schemas=(second,))

    before = run(journal, 100)

    assert before is not None
    assert before.schema == first
    assert len(before.segments) == 2
    assert Lsn(200) < before.end < Lsn(300)
    after = next_run(journal.reader, TABLE, before.end, LARGE)
    assert after is not None
    assert (after.schema, after.end, len(after.segments)) == (second, Lsn(300), 1)
    assert run(journal, 300) is None


def test_a_part_is_not_lost_when_its_end_touches_the_flush_before(
    journal: HandMadeJournal,
) -> None:
    """A commit record may begin at the byte at which the last flush ended."""
    first, second = table(version=150), table(version=200, columns=("id", "v", "w"))
    third = table(version=201, columns=("id", "w"))
    journal.flush(200, journal.segment(first), schemas=(first,))
    journal.flush(
        300, *(journal.segment(s) for s in (first, second, third)), schemas=(second, third)
    )

    versions, cursor = [], Lsn(200)
    while (found := next_run(journal.reader, TABLE, cursor, LARGE)) is not None:
        versions.append(found.schema.version)
        cursor = found.end

    assert versions == [first.version, second.version, third.version]
    assert cursor == Lsn(300)


def test_batches_grow_while_the_table_is_behind_and_shrink_again() -> None:
    size = BatchSize(100)
    behind = Run(table(), Lsn(1), Lsn(2), (), cut=True)
    there = Run(table(), Lsn(1), Lsn(2), (), cut=False)

    for _ in range(10):
        size.after(behind)
    assert size.bytes == 100 * GROWTH_LIMIT
    for _ in range(10):
        size.after(there)
    assert size.bytes == 100


FAR = 1 << 30


class TestGathering:
    """A table waits for a larger batch only while the journal is far behind the source."""

    @pytest.fixture
    def pending(self, journal: HandMadeJournal) -> list[TableFlush]:
        first = table(version=150)
        journal.flush(200, journal.segment(first, size=50), schemas=(first,))
        return journal.reader.pending(TABLE, Lsn(100))

    def test_it_goes_on_until_the_journal_has_what_the_source_had_at_first(
        self, pending: list[TableFlush]
    ) -> None:
        gathering = Gathering()
        assert gathering.goes_on(pending, Lsn(200), Lsn(FAR), LARGE)
        # A source that writes on does not make it longer.
        assert gathering.goes_on(pending, Lsn(FAR - 1), Lsn(2 * FAR), LARGE)
        assert not gathering.goes_on(pending, Lsn(FAR), Lsn(FAR + 1), LARGE)

    def test_a_journal_that_keeps_up_makes_nobody_wait(self, pending: list[TableFlush]) -> None:
        gathering = Gathering()
        assert not gathering.goes_on(pending, Lsn(200), Lsn(1000), LARGE)
        assert not gathering.goes_on(pending, Lsn(200), None, LARGE)
        assert not gathering.goes_on([], Lsn(200), Lsn(FAR), LARGE)

    def test_a_full_batch_does_not_wait(self, pending: list[TableFlush]) -> None:
        assert not Gathering().goes_on(pending, Lsn(200), Lsn(FAR), 50)

    def test_it_has_an_end(
        self, pending: list[TableFlush], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gathering = Gathering()
        assert gathering.goes_on(pending, Lsn(200), Lsn(FAR), LARGE)
        monkeypatch.setattr(batches, "_LONGEST_WAIT", 0.0)
        assert not gathering.goes_on(pending, Lsn(200), Lsn(FAR), LARGE)

    def test_what_came_during_a_batch_has_waited_already(
        self, pending: list[TableFlush], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gathering = Gathering()
        now = [100.0]
        monkeypatch.setattr(batches.time, "monotonic", lambda: now[0])
        gathering.ended()
        now[0] += 1
        assert gathering.goes_on(pending, Lsn(200), Lsn(FAR), LARGE)
        now[0] += 60
        assert not gathering.goes_on(pending, Lsn(200), Lsn(FAR), LARGE)
