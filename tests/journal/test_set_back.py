"""A source that has lost some of its past is refused; one that was restarted has lost none."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import MIB, JournalConfig, PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.journal import Journal
from penstock.journal.receiver import Receiver
from penstock.journal.source import set_back_to
from penstock.journal.writer import JournalWriter
from penstock.pipeline.slot_recovery import recover_lost_slot
from penstock.postgres.connection import current_wal_lsn
from penstock.postgres.slots import slot_info
from penstock.schema import Lsn
from penstock.stores import MemoryStore
from penstock.testing.postgres import EmbeddedPostgres, wait_for
from tests.journal.conftest import Running, StartReceiver

PAGE, SEGMENT = 8192, 16 * MIB
PAGE_HEAD, SEGMENT_HEAD, SHUTDOWN = 24, 40, 120


@pytest.fixture
def ahead(receiver: StartReceiver) -> Running:
    """A receiver that was stopped; its journal has more than the server, as if that was set back
    to a snapshot of its disk."""
    running = receiver()
    running.catch_up()
    running.stop()
    journal = JournalWriter(running.config.journal_path)
    journal.refresh()
    journal.append(Lsn(running.now().value + 1 * MIB))
    return running


def test_a_source_that_was_set_back_is_an_error_and_nothing_is_acknowledged(ahead: Running) -> None:
    name, end = ahead.config.slot_name, ahead.journal.end
    before = slot_info(ahead.connection, name)
    with pytest.raises(PenstockError, match=rf"set back: .* up to {end}") as caught:
        Receiver(ahead.config).run(threading.Event())
    assert caught.value.kind is ErrorKind.SOURCE_SLOT
    assert "invalidated_slot_behavior: recreate" in str(caught.value.hint)
    assert slot_info(ahead.connection, name) == before


def test_it_stays_one_when_its_wal_has_passed_the_journals_end(ahead: Running) -> None:
    for _ in range(2):
        with pytest.raises(PenstockError, match="was set back"):
            Receiver(ahead.config).run(threading.Event())
        while ahead.now() <= ahead.journal.end:
            ahead.execute("SELECT pg_logical_emit_message(true, 'p', 'x')")
            ahead.execute("SELECT pg_switch_wal()")


def test_everything_begins_anew_where_that_is_wanted(ahead: Running) -> None:
    store = MemoryStore()
    store.open(ahead.config.id)
    assert not recover_lost_slot(ahead.config, store, ahead.journal)
    recreating = ahead.config.model_copy(update={"invalidated_slot_behavior": "recreate"})
    journal = Journal(ahead.config.journal_path)
    assert recover_lost_slot(recreating, store, journal)
    assert journal.empty
    ahead.start()
    ahead.execute("CREATE TABLE t (id int PRIMARY KEY)")
    ahead.execute("INSERT INTO t VALUES (1)")
    assert [change["after"]["id"] for change in ahead.changes("t")] == [1]


def test_a_journal_of_another_timeline_is_not_judged(ahead: Running) -> None:
    """A primary of before a promotion, which came back, is refused but takes nothing with it."""
    (ahead.config.journal_path / "timeline.json").write_text('{"timeline": 2}')
    assert set_back_to(ahead.journal, ahead.connection) is None
    store = MemoryStore()
    store.open(ahead.config.id)
    recreating = ahead.config.model_copy(update={"invalidated_slot_behavior": "recreate"})
    assert not recover_lost_slot(recreating, store, ahead.journal)


def test_a_source_that_was_never_asked_for_its_timeline_is_judged_too(ahead: Running) -> None:
    """The first receiver may have died before it asked. Whoever copies asks the journal next."""
    (ahead.config.journal_path / "timeline.json").unlink()
    with pytest.raises(PenstockError, match="was set back"):
        Receiver(ahead.config).run(threading.Event())
    known = ahead.journal.source_history()
    assert (known.timeline, known.set_back_to is None) == (None, False)


def write_up_to(session: psycopg.Connection[Any], place: int) -> None:
    """Write until the next record would begin at that place of a page."""
    for _ in range(300):
        left = (place - current_wal_lsn(session).value) % PAGE
        # 57 bytes are around the text, and 24 at the head of a page.
        length = left - 57 - (24 if place == PAGE_HEAD else 0) if 300 < left < 1500 else 600
        session.execute("SELECT pg_logical_emit_message(false, 'p', repeat('x', %s))", [length])
        if current_wal_lsn(session).value % PAGE == place:
            return
    raise AssertionError("no record happened to end there")


def test_a_restarted_server_has_all_that_it_sent(tmp_path: Path) -> None:
    """Also where its last record ends with a page, or left the rest of a segment empty."""
    settings = {"autovacuum": "off", "fsync": "off"}
    with EmbeddedPostgres(tmp_path / "own", settings=settings, listen_tcp=True) as server:
        session = server.connect()
        session.execute("CREATE PUBLICATION pub FOR ALL TABLES")
        config = PipelineConfig(
            id="own",
            publication_name="pub",
            pg_connection=PgConnection(uri=server.dsn(tcp=True)),
            journal=JournalConfig(location=str(tmp_path / "journal")),
        )
        running = Running(config, session)

        def receive_all() -> Lsn:
            running.start()
            try:
                wait_for(lambda: current_wal_lsn(running.connection) <= received())
            finally:
                running.stop()
            assert running.error is None
            return running.journal.end

        def received() -> Lsn:
            """Where the record behind what was received would begin."""
            end = running.journal.end.value
            return Lsn(end + (0 if end % PAGE else PAGE_HEAD if end % SEGMENT else SEGMENT_HEAD))

        def come_back() -> None:
            server.start()
            running.connection = server.connect()
            assert set_back_to(running.journal, running.connection) is None

        def fill_a_page() -> Lsn:
            write_up_to(running.connection, PAGE_HEAD)
            return receive_all()

        def fill_a_page_with_the_shutdown() -> Lsn:
            """It writes the last record, and a clean start adds nothing to it."""
            write_up_to(running.connection, PAGE - SHUTDOWN)
            server.stop()
            come_back()
            return receive_all()

        def leave_a_segment() -> Lsn:
            running.execute("SELECT pg_switch_wal()")
            return receive_all()

        receive_all()
        for attempt in (fill_a_page, fill_a_page_with_the_shutdown, leave_a_segment):
            # The server may write something by itself just then, but not each time.
            assert any(attempt().value % PAGE == 0 for _ in range(5)), attempt
            server.kill()
            come_back()
