"""A slot takes as long to make as the longest transaction: receivers that wait for theirs."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.receiver import Receiver
from penstock.postgres.connection import connect
from penstock.postgres.replication import ReplicationStream
from penstock.postgres.slots import SlotInfo, slot_info, waited_for
from penstock.testing.postgres import wait_for
from tests.conftest import Database
from tests.journal.conftest import Running


@pytest.fixture
def running(database: Database, tmp_path: Path) -> Iterator[Running]:
    """A receiver that has not been started, with a table `t`."""
    connection = database.connect()
    connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    config = PipelineConfig(
        id=database.name,
        publication_name="pub",
        pg_connection=PgConnection(uri=database.dsn),
        journal=JournalConfig(location=str(tmp_path / "journal")),
    )
    running = Running(config, connection)
    yield running
    running.stop()
    connection.close()


@pytest.fixture
def writer(running: Running) -> Iterator[psycopg.Connection[Any]]:
    """A session that is idle in a transaction in which it has written."""
    with psycopg.connect(running.connection.info.dsn) as connection:
        connection.execute("INSERT INTO t VALUES (0)")
        yield connection
        connection.rollback()


def slot(running: Running) -> SlotInfo | None:
    return slot_info(running.connection, running.config.slot_name)


def is_being_made(running: Running) -> bool:
    """Whether the server has come to where it waits for the writer."""
    made = slot(running)
    waits = waited_for(running.connection, running.config.slot_name)
    return made is not None and made.being_made and bool(waits)


@contextmanager
def waiting_process(running: Running) -> Iterator[subprocess.Popen[bytes]]:
    """A receiver's process that waits for its slot."""
    with running.process() as child:
        wait_for(lambda: is_being_made(running) or child.poll() is not None)
        assert child.returncode is None, "it did not come to its slot"
        yield child


@contextmanager
def receiver_thread(running: Running) -> Iterator[None]:
    """A receiver that need not have come to its slot when this begins."""
    running.begin()
    try:
        yield
    finally:
        running.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_a_receiver_that_waits_for_its_slot(
    running: Running, writer: psycopg.Connection[Any], number: signal.Signals
) -> None:
    with waiting_process(running) as child:
        child.send_signal(number)
        wait_for(lambda: child.poll() is not None, "the receiver ignores the signal")
        assert child.stdout is not None
        assert (child.returncode, child.stdout.read()) == (0, b"")
    assert slot(running) is None, "the server goes on with the slot"
    writer.commit()
    running.start()
    running.execute("INSERT INTO t VALUES (1)")
    assert [change["after"]["id"] for change in running.changes("t")] == [1]


def test_a_receiver_says_whom_it_waits_for(
    running: Running,
    writer: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("penstock.journal.source._FIRST_WORD_S", 0.0)
    monkeypatch.setattr("penstock.journal.source._NEXT_WORD_S", 0.0)

    def said() -> list[dict[str, Any]]:
        return [vars(r) for r in caplog.records if "running transactions" in r.getMessage()]

    with caplog.at_level(logging.INFO), receiver_thread(running):
        expected = [writer.info.backend_pid]
        wait_for(lambda: [x for x in said() if x["waiting_for_pids"] == expected])
        assert said()[-1]["slot"] == running.config.slot_name
        writer.commit()
        wait_for(lambda: not running.journal.empty)
    assert running.error is None
    assert [event["event"] for event in running.events] == ["streaming"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_slot_that_a_killed_receiver_has_left_half_made_is_used_when_it_is_there(
    running: Running, writer: psycopg.Connection[Any], end: str
) -> None:
    with waiting_process(running) as child:
        child.kill()
        child.wait()
    assert is_being_made(running), "a server that waits does not notice"
    with receiver_thread(running):
        wait_for(lambda: running.events or running.error)
        assert running.error is None
        assert is_being_made(running)
        assert running.journal.empty
        reason = running.events[0]["reason"]
        assert "is still being made and waits for running transactions" in reason
        assert str(writer.info.backend_pid) in reason
        getattr(writer, end)()
        running.execute("INSERT INTO t VALUES (1)")
        wait_for(lambda: running.error or not running.journal.empty)
        running.execute("INSERT INTO t VALUES (2)")
        ids = [change["after"]["id"] for change in running.changes("t")]
    # What was committed before the slot began comes by the copy.
    assert ids in ([2], [1, 2])
    made = slot(running)
    assert made is not None
    assert not made.being_made


def test_a_slot_that_is_half_made_and_then_given_up_is_made_anew(
    running: Running, writer: psycopg.Connection[Any]
) -> None:
    with waiting_process(running) as child:
        child.kill()
    with receiver_thread(running):
        wait_for(lambda: running.events or running.error)
        half_made = slot(running)
        assert half_made is not None
        running.execute(f"SELECT pg_terminate_backend({half_made.active_pid})")
        writer.commit()
        wait_for(lambda: running.error or not running.journal.empty)
        running.execute("INSERT INTO t VALUES (1)")
        assert [change["after"]["id"] for change in running.changes("t")] == [1]


def test_a_slot_that_is_no_logical_one_is_not_called_lost(running: Running) -> None:
    running.start()
    running.stop()
    name = running.config.slot_name
    for path in running.journal.manifests_directory.iterdir():
        path.unlink()
    running.execute(f"SELECT pg_drop_replication_slot('{name}')")
    running.execute(f"SELECT pg_create_physical_replication_slot('{name}')")
    try:
        with pytest.raises(PenstockError, match="is not one that changes") as caught:
            Receiver(running.config).run(threading.Event())
        assert caught.value.kind is ErrorKind.SOURCE_SLOT
    finally:
        running.execute(f"SELECT pg_drop_replication_slot('{name}')")


# The command itself


@pytest.fixture
def create(running: Running) -> Iterator[Callable[[Callable[[], bool]], object]]:
    with closing(ReplicationStream(running.config.pg_connection, "test")) as stream:
        yield lambda go_on: stream.create_slot(running.config.slot_name, go_on)


def test_a_slot_that_is_there_when_it_is_given_up_is_there(
    running: Running,
    writer: psycopg.Connection[Any],
    create: Callable[[Callable[[], bool]], object],
) -> None:
    def end_too_late() -> bool:
        wait_for(lambda: is_being_made(running))
        writer.commit()
        wait_for(lambda: (made := slot(running)) is not None and not made.active)
        return False

    point = create(end_too_late)
    made = slot(running)
    assert made is not None
    assert point == made.confirmed_flush_lsn is not None


@pytest.mark.usefixtures("writer")
def test_whatever_ends_the_wait_ends_the_making(
    running: Running, create: Callable[[Callable[[], bool]], object]
) -> None:
    def fail() -> bool:
        wait_for(lambda: is_being_made(running))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create(fail)
    assert slot(running) is None


@pytest.mark.usefixtures("writer")
def test_a_server_that_ends_the_making_may_be_asked_again(
    running: Running, create: Callable[[Callable[[], bool]], object]
) -> None:
    def terminate() -> bool:
        wait_for(lambda: is_being_made(running))
        made = slot(running)
        assert made is not None
        running.execute(f"SELECT pg_terminate_backend({made.active_pid}, 5000)")
        return True

    with pytest.raises(PenstockError, match="creating the replication slot") as caught:
        create(terminate)
    assert caught.value.kind is ErrorKind.SOURCE_CONNECTION


def test_a_slot_that_cannot_be_made_says_why(
    running: Running, create: Callable[[Callable[[], bool]], object]
) -> None:
    with closing(connect(running.config.pg_connection, "other")) as session:
        name = running.config.slot_name
        session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    with pytest.raises(PenstockError, match="already exists") as caught:
        create(lambda: True)
    assert caught.value.kind is ErrorKind.SOURCE_SLOT
