"""The archive sees what a journal must never hold."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.manifest import ChangeCounts
from penstock.journal.segment import Chunk, write_segment
from penstock.journal.writer import JournalWriter
from penstock.schema import Lsn, TableId, TableName, TableSchema
from penstock.testing.postgres import wait_for
from tests.campaigns.archive import JournalArchive
from tests.conftest import Database

TABLE = TableSchema(TableId(7), TableName("public", "t"), ())
SLOT = "archived"


@pytest.fixture
def writer(tmp_path: Path) -> JournalWriter:
    writer = JournalWriter(tmp_path / "journal")
    writer.claim(JournalOwner(SLOT, "1", "db"))
    writer.append(Lsn(10), start=Lsn(10))
    return writer


@pytest.fixture
def archive(writer: JournalWriter, tmp_path: Path, database: Database) -> JournalArchive:
    return JournalArchive(writer.root, tmp_path / "archive", database.dsn, SLOT)


def flush(writer: JournalWriter, end: int, *segments: list[tuple[int, int]]) -> None:
    """A flush whose segments have changes at these positions and ordinals."""
    refs = []
    for number, places in enumerate(segments):
        rows = pa.table(
            {
                "op": ["i"] * len(places),
                "commit_lsn": [lsn for lsn, _ in places],
                "tx_ordinal": [ordinal for _, ordinal in places],
            }
        )
        chunk = Chunk(TABLE, rows, ChangeCounts(inserts=len(places)), False, 0, None, ())
        path = writer.segment_path(TABLE.id, f"{end}-{number}.parquet")
        refs.append(write_segment(path, writer.root, [chunk]))
    writer.append(Lsn(end), segments=tuple(refs))


def test_a_journal_that_begins_anew_is_another_one(
    writer: JournalWriter, archive: JournalArchive
) -> None:
    flush(writer, 30, [(10, 0)])
    archive.follow()
    writer.discard()
    archive.follow()
    anew = JournalWriter(writer.root)
    anew.claim(JournalOwner(SLOT, "1", "db"))
    archive.follow()
    assert archive.end == Lsn(0)
    anew.append(Lsn(50), start=Lsn(50))
    flush(anew, 60, [(50, 0)])
    archive.follow()
    assert archive.end == Lsn(60)
    assert archive.judge() == []
    assert archive.changes == {"i": 2}
    assert archive.journals == 2


def test_a_sound_journal_has_no_problems_and_is_kept_when_it_is_retired(
    writer: JournalWriter, archive: JournalArchive
) -> None:
    flush(writer, 30, [(10, 0), (10, 1)], [(20, 0)])
    assert archive.end == Lsn(0)
    archive.follow()
    flush(writer, 50, [(30, 0)])
    journal = Journal(writer.root)
    journal.refresh()
    journal.retire({TABLE.id: Lsn(30)})
    assert archive.judge() == []
    assert archive.changes == {"i": 4}
    assert archive.end == Lsn(50)


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        ([[(10, 0), (10, 0)]], "again"),
        ([[(10, 0)], [(10, 0)]], "again"),
        ([[(9, 0)]], "outside"),
        ([[(30, 0)]], "outside"),
    ],
)
def test_a_change_that_is_there_twice_or_out_of_bounds_is_a_problem(
    writer: JournalWriter,
    archive: JournalArchive,
    segments: list[list[tuple[int, int]]],
    problem: str,
) -> None:
    flush(writer, 30, *segments)
    (found,) = archive.judge()
    assert problem in found


def test_a_gap_and_a_missing_segment_are_problems(
    writer: JournalWriter, archive: JournalArchive
) -> None:
    flush(writer, 30)
    flush(writer, 40, [(30, 0)])
    (writer.segments_directory / "7" / "40-0.parquet").unlink()
    manifest = writer.manifests_directory / "0000000003.json"
    manifest.write_text(manifest.read_text().replace('"0/1E"', '"0/1F"'))
    gap, missing = archive.judge()
    assert "starts at 0/1F" in gap
    assert "not there" in missing


def test_a_slot_ahead_of_the_journal_is_a_problem(
    archive: JournalArchive, database: Database
) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    with archive:
        wait_for(lambda: archive.problems)
    assert "ahead of the journal" in archive.problems[0]
