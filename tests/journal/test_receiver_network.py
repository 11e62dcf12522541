"""A receiver whose connection, server or slot is taken away: it comes back, or says why not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.receiver import Receiver
from penstock.pipeline.slot_recovery import recover_lost_slot
from penstock.postgres.replication import _SILENCE_S, ReplicationStream
from penstock.schema import Lsn
from penstock.states import Init, Ready, StoredState
from penstock.stores import MemoryStore
from penstock.stores.base import Worker
from penstock.testing.postgres import EmbeddedPostgres, wait_for
from tests.conftest import COMPLAINTS, Database
from tests.journal.conftest import Running, StartReceiver
from tests.proxy import Proxy


@contextmanager
def server_set(database: Database, **settings: str) -> Iterator[None]:
    """Settings of the whole server, for a while."""
    with database.connect() as connection:
        try:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
            connection.execute("SELECT pg_reload_conf()")
            yield
        finally:
            for name in settings:
                connection.execute(f"ALTER SYSTEM RESET {name}".encode())
            connection.execute("SELECT pg_reload_conf()")


class Clock:
    """What streams take for the time: `step` seconds pass with every read, and none else.

    So nobody is found silent because the machine was busy with something else.
    """

    time, sleep = staticmethod(time.time), staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.9  # a second would count as not listening
        self.answers = 0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, original = Clock(), ReplicationStream._note_silence

    def listen(self: ReplicationStream, *, silent: bool) -> None:
        clock.now += clock.step
        clock.answers += not silent
        original(self, silent=silent)

    monkeypatch.setattr(ReplicationStream, "_note_silence", listen)
    monkeypatch.setattr("penstock.postgres.replication.time", clock)
    return clock


def complaints(running: Running) -> str:
    return " ".join(str(e.get("reason")) for e in running.events if e["event"] == "reconnecting")


def through(proxy: Proxy, database: Database) -> PgConnection:
    return PgConnection(
        host="127.0.0.1",
        port=proxy.port,
        user="postgres",
        dbname=database.name,
        connect_timeout=120,
    )


def test_a_network_that_cuts_refuses_and_stalls(
    receiver: StartReceiver, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.postgres.replication._SILENCE_S", 5.0)
    monkeypatch.setattr("penstock.journal.receiver.sender_timeout", lambda _: 1.0)
    clock.step = 0.0
    with Proxy(database.server) as proxy:
        running = receiver(pg_connection=through(proxy, database))
        running.execute("CREATE TABLE t (id int PRIMARY KEY)")
        running.execute("INSERT INTO t VALUES (1)")
        running.catch_up()
        proxy.cut()
        running.execute("INSERT INTO t VALUES (2)")
        running.catch_up()
        proxy.refuse()
        running.execute("INSERT INTO t VALUES (3)")
        wait_for(lambda: len(running.events) > 3)
        proxy.resume()
        running.catch_up()
        proxy.stall()
        clock.step = 0.9
        running.execute("INSERT INTO t VALUES (4)")
        wait_for(lambda: "has not answered" in complaints(running))
        proxy.resume()
        assert [c["after"]["id"] for c in running.changes("t")] == [1, 2, 3, 4]


def test_a_silent_source_is_not_a_dead_one(
    receiver: StartReceiver, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing happens at the source for longer than a silence may last: it answers.

    It also says something unasked now and then, but not often.
    """
    monkeypatch.setattr("penstock.journal.receiver.sender_timeout", lambda _: 3.0)
    running = receiver()
    wait_for(lambda: (clock.now > _SILENCE_S + 1 and clock.answers > 12) or complaints(running))
    assert not complaints(running)


def test_sessions_that_the_server_ends_are_made_again(receiver: StartReceiver) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    for number in range(6):
        with running.connection.transaction():
            running.execute(
                f"INSERT INTO t SELECT {number} * 10000 + g, md5(g::text)"
                " FROM generate_series(1, 5000) g"
            )
        # The catalog's session, or the stream's, in the middle of it; then a new shape.
        wanted = "penstock_%_catalog" if number % 2 else "penstock_%_receiver"
        running.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE application_name LIKE '{wanted}' AND datname = current_database()"
        )
        running.execute(f"ALTER TABLE t ADD c{number} int DEFAULT {number}")
    journal = running.catch_up()
    assert len(running.changes("t")) == 30_000
    assert len(running.schema(journal, "t").columns) == 7


@pytest.fixture
def poisoned(database: Database) -> Database:
    """A database whose publication cannot tell whether it has a row with the id 0."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE marker (id bigserial PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE marker, TABLE t WHERE (100 / id > 5)")
    return database


@pytest.mark.since(15)
def test_a_change_that_the_server_cannot_send_is_an_error(
    poisoned: Database, receiver: StartReceiver
) -> None:
    running = receiver()
    running.execute("INSERT INTO t VALUES (1), (90)")
    assert [c["after"]["id"] for c in running.changes("t")] == [1]
    running.execute("INSERT INTO t VALUES (2)")
    before = running.now()
    running.execute("INSERT INTO t VALUES (0)")
    wait_for(lambda: running.error is not None)
    error = running.error
    assert isinstance(error, PenstockError)
    assert error.kind is ErrorKind.DATA_DECODE
    assert "division by zero" in error.message
    assert "associated LSN" in error.message
    assert str(error.position) in error.message
    assert running.config.slot_name in str(error.hint)
    assert running.journal.end >= before
    assert not complaints(running)


@pytest.mark.since(15)
def test_trouble_at_one_place_for_an_unknown_reason_is_an_error_in_the_end(
    poisoned: Database, receiver: StartReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.postgres.replication._DATA_CLASS", "unknown")
    monkeypatch.setattr("penstock.journal.receiver._STUCK_LIMIT", 3)
    running = receiver()
    running.execute("INSERT INTO t VALUES (0)")
    wait_for(lambda: running.error is not None)
    assert isinstance(running.error, PenstockError)
    assert running.error.kind is ErrorKind.DATA_DECODE
    assert "division by zero" in running.error.message
    assert complaints(running).count("division by zero") >= 2


def test_a_lost_connection_is_never_given_up(
    receiver: StartReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.journal.receiver._STUCK_LIMIT", 2)
    running = receiver()
    for number in range(1, 4):
        wait_for(lambda number=number: streams(running) == number)
        running.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            f" WHERE slot_name = '{running.config.slot_name}'"
        )
    running.catch_up()


def streams(running: Running) -> int:
    return sum(event["event"] == "streaming" for event in running.events)


def test_a_slot_in_use_is_waited_for(receiver: StartReceiver) -> None:
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    end = running.catch_up().end
    running.stop()
    other = ReplicationStream(running.config.pg_connection, "other")
    other.start(running.config.slot_name, "pub", end, 0)
    running.start()
    wait_for(lambda: "another process uses the slot" in complaints(running))
    other.close()
    running.execute("INSERT INTO t VALUES (1)")
    assert [c["after"]["id"] for c in running.changes("t")] == [1]


def test_a_server_that_restarts_and_crashes(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "own", listen_tcp=True) as server:
        connection = PgConnection(uri=server.dsn(tcp=True))
        running = _alone(server, connection, tmp_path)
        try:
            running.start()
            running.execute("CREATE TABLE t (id int PRIMARY KEY)")
            running.execute("INSERT INTO t VALUES (1)")
            running.catch_up()
            running.connection.close()
            server.stop()
            server.start()
            running.connection = server.connect()
            running.execute("INSERT INTO t VALUES (2)")
            running.catch_up()
            server.kill()
            server.restart_after_crash()
            running.connection = server.connect()
            running.execute("INSERT INTO t VALUES (3)")
            assert [c["after"]["id"] for c in running.changes("t")] == [1, 2, 3]
        finally:
            running.stop()


def _alone(server: EmbeddedPostgres, connection: PgConnection, root: Path) -> Running:
    """A receiver for a server of its own."""
    session = server.connect()
    session.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    journal = JournalConfig(location=str(root / "journal"))
    config = PipelineConfig(
        id="own", publication_name="pub", pg_connection=connection, journal=journal
    )
    return Running(config, session)


@pytest.mark.since(18)
def test_a_slot_that_was_idle_for_too_long_is_an_error(
    receiver: StartReceiver, database: Database
) -> None:
    running = receiver()
    running.stop()
    with server_set(database, idle_replication_slot_timeout="1s"):

        def lost() -> bool:
            running.execute("CHECKPOINT")
            row = running.connection.execute(
                "SELECT invalidation_reason FROM pg_replication_slots WHERE slot_name = %s",
                [running.config.slot_name],
            ).fetchone()
            return row == ("idle_timeout",)

        wait_for(lost)
    with pytest.raises(PenstockError, match="is lost: idle_timeout") as caught:
        Receiver(running.config).run(threading.Event())
    assert caught.value.kind is ErrorKind.SOURCE_SLOT


def test_the_journal_of_another_pipeline_is_refused_and_kept(
    receiver: StartReceiver, database: Database
) -> None:
    running = receiver()
    running.stop()
    stranger = running.config.model_copy(
        update={"id": f"{database.name}_x", "invalidated_slot_behavior": "recreate"}
    )
    assert not recover_lost_slot(stranger, MemoryStore(), running.journal)
    assert not running.journal.empty, "it is not theirs to discard"
    owner = f"belongs to slot {running.config.slot_name}"
    with pytest.raises(PenstockError, match=owner) as caught:
        Receiver(stranger).run(threading.Event())
    assert caught.value.kind is ErrorKind.JOURNAL
    slots = running.connection.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", [stranger.slot_name]
    ).fetchone()
    assert slots == (0,)


def test_the_server_has_nothing_to_complain_about(
    receiver: StartReceiver, database: Database
) -> None:
    before = len(database.logged())
    running = receiver()
    running.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running.execute("INSERT INTO t VALUES (1)")
    running.catch_up()
    running.stop()
    running.start()
    running.execute("INSERT INTO t VALUES (2)")
    running.catch_up()
    running.stop()
    written = database.logged()[before:]
    assert not [line for line in written if any(word in line for word in COMPLAINTS)]


def test_cursors_of_a_journal_that_was_removed_are_forgotten(receiver: StartReceiver) -> None:
    """The new one, which `penstock receive` may have begun, lacks what came before it."""
    running = receiver()
    journal = running.catch_up()
    began, table = journal.began, running.schema(journal, "marker").id
    running.catch_up()
    running.stop()
    journal.refresh()
    journal.retire({table: journal.end})
    assert journal.start > began
    assert running.journal.began == began

    def state_of_a_table_at(cursor: Lsn) -> StoredState | None:
        store = MemoryStore()
        store.open("x")
        store.update_table_state(table, Ready("1-a"))
        store.upsert_replication_progress(Worker.apply(table), cursor)
        assert not recover_lost_slot(running.config, store, running.journal)
        return store.get_table_state(table)

    assert state_of_a_table_at(began) == Ready("1-a")
    assert state_of_a_table_at(Lsn(began.value - 8)) == Init()
