"""A journal that is read by one process while another one retires it."""

from __future__ import annotations

from pathlib import Path

from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.writer import JournalWriter
from penstock.schema import Lsn


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
