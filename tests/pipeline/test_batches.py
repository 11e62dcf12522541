from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.batches import GROWTH_LIMIT, BatchSize, Run, next_run
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
