"""A journal that two processes have to do with at once."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.writer import JournalWriter
from penstock.postgres.replication import ReplicationStream
from penstock.schema import Lsn, TableId
from penstock.testing.postgres import wait_for
from tests.journal.conftest import Running, StartReceiver


class Overtaken(JournalWriter):
    """A receiver's journal; while it reads for the first time, the pipeline retires."""

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        pipeline = Journal(self.root)
        pipeline.refresh()
        pipeline.retire({})


def test_a_receiver_that_starts_while_the_pipeline_retires_finds_the_end(tmp_path: Path) -> None:
    # It would take the journal for empty, remove every segment as litter, and write
    # numbers that have been used already.
    writer = JournalWriter(tmp_path / "journal")
    writer.claim(JournalOwner("slot", "1", "db"))
    writer.append(Lsn(10), start=Lsn(10))
    for end in range(20, 1020, 10):
        writer.append(Lsn(end))
    receiver = Overtaken(writer.root)
    receiver.refresh()
    assert receiver.end == Lsn(1010)
    assert receiver.append(Lsn(1020)).number == 102


def test_only_who_holds_the_slot_removes_litter(
    receiver: StartReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a volume without locks a second receiver may start beside one that is alive."""
    monkeypatch.setattr("penstock.journal.receiver.ReceiverLock", lambda *_: nullcontext())
    first = receiver()
    first.catch_up()
    written = JournalWriter(first.config.journal_path).segment_path(TableId(1), "1-a.parquet")
    written.touch()  # and its manifest comes next
    second = Running(first.config, first.connection)
    second.begin()
    try:
        wait_for(lambda: second.events or second.error)
        assert "another process uses the slot" in second.events[0]["reason"]
        assert written.exists()
        first._stop.set()
        wait_for(lambda: not written.exists() or second.error)
        second.catch_up()
    finally:
        first._stop.set()
        second.stop()


def test_a_journal_that_grew_before_the_slot_was_held_is_read_again(
    receiver: StartReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the segments that it grew by would be taken for litter."""
    running = receiver()
    running.catch_up()
    running.stop()
    start = ReplicationStream.start
    rivals: list[JournalWriter] = []

    def start_after_a_rival(self: ReplicationStream, *arguments: Any) -> None:
        if not rivals:
            rivals.append(JournalWriter(running.config.journal_path))
            rivals[0].refresh()
            rivals[0].append(Lsn(rivals[0].end.value + 8))
        start(self, *arguments)

    monkeypatch.setattr(ReplicationStream, "start", start_after_a_rival)
    running.execute("SELECT pg_logical_emit_message(true, 'p', 'x')")
    running.begin()
    running.catch_up()
    assert any("another receiver wrote" in event.get("reason", "") for event in running.events)
