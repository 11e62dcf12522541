"""The journal's files: contiguous, exclusive, retired without a gap."""

from __future__ import annotations

import errno
import os
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest

from penstock.errors import PenstockError
from penstock.journal.files import replace
from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.manifest import ChangeCounts, Manifest, now
from penstock.journal.segment import Chunk, write_segment
from penstock.journal.writer import JournalWriter
from penstock.schema import ZERO_LSN, ColumnSchema, Lsn, TableId, TableName, TableSchema, ValueKind
from penstock.schema import ValueType as Type
from penstock.testing.postgres import wait_for

A, B = TableId(1), TableId(2)
LONG = Type(ValueKind.LONG)


def schema(table: TableId, version: int = 10) -> TableSchema:
    column = ColumnSchema("id", 1, LONG, 20, nullable=False, key_position=0)
    return TableSchema(table, TableName("public", f"t{table}"), (column,), version=Lsn(version))


@pytest.fixture
def writer(tmp_path: Path) -> JournalWriter:
    writer = JournalWriter(tmp_path / "journal")
    writer.claim(JournalOwner("slot", "1", "db"))
    writer.append(Lsn(10), start=Lsn(10))
    return writer


def flush(writer: JournalWriter, end: int, *tables: TableId, new: tuple[TableSchema, ...] = ()):
    segments = []
    for table in tables:
        path = writer.segment_path(table, f"{end}.parquet")
        rows = pa.table({"op": ["i"], "commit_lsn": [end], "tx_ordinal": [0]})
        chunk = Chunk(schema(table), rows, ChangeCounts(inserts=1), False, 0, (end, end), ())
        segments.append(write_segment(path, writer.root, [chunk]))
    return writer.append(Lsn(end), schemas=new, segments=tuple(segments))


def reopened(writer: JournalWriter) -> Journal:
    journal = Journal(writer.root)
    journal.refresh()
    return journal


def ends(journal: Journal, table: TableId, after: int = 0) -> list[int]:
    return [flush.end.value for flush in journal.pending(table, Lsn(after))]


def test_a_reader_follows_what_is_appended(writer: JournalWriter) -> None:
    journal = reopened(writer)
    assert (journal.start, journal.end) == (Lsn(10), Lsn(10))
    flush(writer, 20, A, new=(schema(A),))
    flush(writer, 30, A, B, new=(schema(B),))
    assert journal.refresh() == 2
    assert journal.end == Lsn(30)
    assert ends(journal, A) == [20, 30]
    assert ends(journal, A, after=20) == [30]
    assert journal.schema(B, Lsn(10)) == schema(B)


def test_a_journal_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "nothing")
    assert journal.refresh() == 0
    assert journal.empty


def test_a_number_is_given_once(writer: JournalWriter) -> None:
    other = JournalWriter(writer.root)
    other.refresh()
    flush(writer, 20, A)
    with pytest.raises(PenstockError, match="written by somebody else"):
        flush(other, 25, A)
    assert reopened(writer).end == Lsn(20)


def test_a_manifest_that_does_not_continue_is_refused(writer: JournalWriter) -> None:
    writer.append(Lsn(40), start=Lsn(30))
    with pytest.raises(PenstockError, match="starts at 0/1E"):
        reopened(writer)


def test_litter_goes_and_named_segments_stay(writer: JournalWriter) -> None:
    flush(writer, 20, A)
    named = set(writer.segments_directory.glob("*/*"))
    writer.segment_path(A, "litter.parquet").write_bytes(b"half")
    (writer.manifests_directory / ".0000000009.json.1.tmp").write_text("{")
    fresh = JournalWriter(writer.root)
    fresh.refresh()
    assert fresh.remove_litter() == 2
    assert set(writer.segments_directory.glob("*/*")) == named


def test_a_draft_that_the_disk_has_no_room_for_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("penstock.journal.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace(tmp_path / "checkpoint.json", "{}")
    assert not list(tmp_path.iterdir())


def test_what_a_table_has_passed_goes_and_others_stay(writer: JournalWriter) -> None:
    flush(writer, 20, A, B, new=(schema(A), schema(B)))
    flush(writer, 30, A)
    flush(writer, 40, B)
    journal = reopened(writer)
    journal.retire({A: Lsn(30)})
    for each in (journal, reopened(writer)):
        assert ends(each, A) == []
        assert ends(each, B) == [20, 40]
        assert not each.reaches_back_to(A, Lsn(20))
        assert each.reaches_back_to(A, Lsn(30))
        assert each.reaches_back_to(B, ZERO_LSN)
        assert each.first_cursor(A) == Lsn(30)
    assert len(list((writer.segments_directory / "1").iterdir())) == 0


def test_manifests_go_from_the_oldest_on_and_their_schemas_stay(writer: JournalWriter) -> None:
    flush(writer, 20, A, new=(schema(A),))
    flush(writer, 30, A)
    flush(writer, 40)
    journal = reopened(writer)
    journal.retire({A: Lsn(40)})
    again = reopened(writer)
    assert (again.start, again.end) == (Lsn(30), Lsn(40))
    assert again.latest_schemas()[A] == schema(A)
    assert len(list(writer.manifests_directory.iterdir())) == 1
    flush(writer, 50, A)
    assert again.refresh() == 1
    assert ends(again, A) == [50]


def test_manifests_that_hold_nothing_go_many_at_a_time(writer: JournalWriter) -> None:
    # A checkpoint names all schemas. With hundreds of tables and an idle source it would
    # be written every two seconds, for a file or two that hold nothing.
    journal = reopened(writer)
    most = checkpoints = 0
    for end in range(20, 1520, 10):
        flush(writer, end)
        journal.refresh()
        before = journal.start
        journal.retire({})
        checkpoints += journal.start > before
        most = max(most, len(list(writer.manifests_directory.iterdir())))
    assert checkpoints < 4
    assert most < 100
    assert reopened(writer).end == journal.end == Lsn(1510)


def test_a_writer_goes_on_after_everything_was_retired(writer: JournalWriter) -> None:
    flush(writer, 20, A, new=(schema(A),))
    journal = reopened(writer)
    flush(writer, 30, A)
    journal.refresh()
    journal.retire({A: Lsn(30)})
    restarted = JournalWriter(writer.root)
    restarted.refresh()
    restarted.remove_litter()
    flush(restarted, 40, A)
    assert ends(reopened(writer), A) == [40]


def test_nobody_waits_for_the_disk_while_something_is_retired(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(writer, 20, A)
    flush(writer, 30, A)
    journal = reopened(writer)
    seen: list[list[int]] = []

    def slow_disk(path: Path, text: str) -> None:
        flush(writer, 40, A)
        reader = Thread(target=lambda: (journal.refresh(), seen.append(ends(journal, A))))
        reader.start()
        wait_for(lambda: seen)
        replace(path, text)

    monkeypatch.setattr("penstock.journal.journal.replace", slow_disk)
    journal.retire({A: Lsn(20)})
    assert seen == [[20, 30, 40]]
    assert ends(journal, A) == ends(reopened(writer), A) == [30, 40]


def test_what_a_table_holds_back_costs_nothing_to_pass_over(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush(writer, 20, B)
    for end in range(30, 330):
        flush(writer, end, A)
    journal = reopened(writer)
    journal.retire({A: Lsn(329)})
    assert journal.held_back(B) == 301
    assert journal.held_back(B, after=Lsn(20)) == journal.held_back(A) == 0
    looked_at: list[int] = []
    tables = Manifest.tables.fget
    assert tables is not None

    def counted(manifest: Manifest) -> set[TableId]:
        looked_at.append(manifest.number)
        return tables(manifest)

    monkeypatch.setattr(Manifest, "tables", property(counted))
    journal.retire({A: Lsn(329)})
    assert len(looked_at) < 5
    assert ends(journal, B) == [20]


def test_retention_keeps_what_is_young(writer: JournalWriter) -> None:
    flush(writer, 20, A)
    journal = reopened(writer)
    assert journal.retire({A: Lsn(20)}, retention=timedelta(hours=1)) == 0
    assert ends(journal, A) == [20]


def test_a_clock_that_was_set_back_leaves_no_file_behind(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock(hours: int) -> None:
        present = now() + timedelta(hours=hours)
        monkeypatch.setattr("penstock.journal.writer.now", lambda: present)

    for end, hours in ((20, -3), (30, 24), (40, -2), (50, 0)):
        clock(hours)
        flush(writer, end, A)
    journal = reopened(writer)
    journal.retire({A: Lsn(50)}, retention=timedelta(hours=1))
    assert ends(journal, A) == [50]
    assert [path.name for path in writer.segments_directory.glob("*/*")] == ["50.parquet"]
    assert journal.start == Lsn(40)


def test_a_flush_from_the_future_is_as_old_as_now(
    writer: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = now() + timedelta(days=1)
    monkeypatch.setattr("penstock.journal.writer.now", lambda: later)
    flush(writer, 20, A)
    journal = reopened(writer)
    assert journal.retire({A: Lsn(20)}, retention=timedelta(hours=1)) == 0
    assert journal.retire({A: Lsn(20)}) > 0
    assert ends(journal, A) == []


def test_the_writer_keeps_no_index(writer: JournalWriter) -> None:
    for end in range(20, 60):
        flush(writer, end, A)
    assert writer.bytes == 0
    assert writer.end == Lsn(59)
