from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.journal.manifest import Defect
from penstock.pipeline.overlap import may_matter, precedes
from penstock.schema import DdlNote
from penstock.states import VisibleXids
from tests.pipeline.journals import HandMadeJournal, table

VISIBLE = VisibleXids.parse("1000:1010:1005")
DEFECT = Defect("v", "id=1", "infinity", 1)


@pytest.fixture
def journal(tmp_path: Path) -> HandMadeJournal:
    return HandMadeJournal(tmp_path / "journal")


def file(journal: HandMadeJournal, xids: list[int], values: list[str | None] | None = None) -> str:
    return journal.reader.file(journal.segment(table(), xids, values=values))


def test_a_copy_contains_segments_whose_transactions_it_all_saw(journal: HandMadeJournal) -> None:
    assert precedes(table(), [file(journal, [990, 1001]), file(journal, [1009])], VISIBLE)


@pytest.mark.parametrize("unseen", [1005, 1010, 2000])
def test_one_change_that_the_copy_lacks_is_enough(journal: HandMadeJournal, unseen: int) -> None:
    assert not precedes(table(), [file(journal, [990]), file(journal, [1001, unseen])], VISIBLE)


@pytest.mark.parametrize(("xid", "seen"), [(1001, True), (1005, False), (1010, False)])
def test_an_announced_version_counts_even_without_changes(xid: int, seen: bool) -> None:
    assert precedes(replace(table(), note=DdlNote(xid)), [], VISIBLE) is seen


def test_a_defect_matters_without_a_copy_to_compare_with(journal: HandMadeJournal) -> None:
    assert may_matter(DEFECT, file(journal, [990], [None]), None)


def test_a_defect_that_the_copy_saw_mended_does_not_matter(journal: HandMadeJournal) -> None:
    assert not may_matter(DEFECT, file(journal, [990, 2000], [None, "fine"]), VISIBLE)


@pytest.mark.parametrize("name", [".v", "[0]", "a.b"])
def test_a_column_may_have_a_name_that_reads_like_a_path(
    journal: HandMadeJournal, name: str
) -> None:
    segment = journal.segment(table(columns=("id", name)), [990, 2000], values=["fine", None])
    assert may_matter(Defect(name, "id=1", "infinity", 1), journal.reader.file(segment), VISIBLE)


def test_a_defect_behind_the_copy_matters(journal: HandMadeJournal) -> None:
    assert may_matter(DEFECT, file(journal, [990, 2000], ["fine", None]), VISIBLE)
