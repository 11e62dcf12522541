"""Exported snapshots: shared, and matched to the stream by transaction."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import psycopg
import pytest

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.connection import Session, connect
from penstock.postgres.slots import drop_slot
from penstock.postgres.snapshot import ExportedSnapshot
from penstock.schema import Lsn
from penstock.states import VisibleXids
from penstock.testing.postgres import wait_for

WRITERS = 6
SNAPSHOTS = 40


@pytest.fixture(autouse=True)
def _table(session: Session) -> None:
    session.execute("CREATE TABLE public.things (id bigint PRIMARY KEY)")


def count(session: Session) -> int:
    row = session.execute("SELECT count(*) FROM public.things").fetchone()
    assert row is not None
    return int(row[0])


def test_other_sessions_see_what_it_sees(source: PgConnection, session: Session) -> None:
    session.execute("INSERT INTO public.things VALUES (1)")
    with ExportedSnapshot(source) as snapshot:
        session.execute("INSERT INTO public.things VALUES (2)")
        assert count(snapshot.connection) == 1
        with connect(source, "test") as task:
            task.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            task.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.id}'")
            assert count(task) == 1
    assert count(session) == 2
    assert snapshot.connection.closed


def test_it_writes_nothing(source: PgConnection) -> None:
    with ExportedSnapshot(source) as snapshot, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        snapshot.connection.execute("INSERT INTO public.things VALUES (1)")


def test_it_is_gone_after_the_block(source: PgConnection, session: Session) -> None:
    with ExportedSnapshot(source) as snapshot:
        pass
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(psycopg.Error):
        session.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.id}'")


def test_a_running_transaction_is_not_visible(source: PgConnection, session: Session) -> None:
    with connect(source, "test", autocommit=False) as running:
        running.execute("INSERT INTO public.things VALUES (1)")
        row = running.execute("SELECT pg_current_xact_id()::text::bigint % 4294967296").fetchone()
        assert row is not None
        with ExportedSnapshot(source) as snapshot:
            assert not snapshot.visible.contains(row[0])
        running.commit()
    with ExportedSnapshot(source) as snapshot:
        assert snapshot.visible.contains(row[0])


def test_a_standby_is_refused(source: PgConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.postgres.snapshot.in_recovery", lambda _: True)
    with pytest.raises(PenstockError, match="not supported yet") as caught:
        ExportedSnapshot(source).__enter__()
    assert caught.value.kind is ErrorKind.SOURCE_SNAPSHOT


@dataclass(frozen=True)
class Sight:
    """What one snapshot saw."""

    visible: VisibleXids
    barrier: Lsn
    ids: frozenset[int]


@dataclass(frozen=True)
class Change:
    xid: int
    commit: Lsn
    id: int


def test_the_visible_transactions_are_exactly_what_a_copy_contains(
    source: PgConnection, session: Session
) -> None:
    """Under concurrent writers, with savepoints and rollbacks."""
    session.execute("CREATE PUBLICATION pub FOR TABLE public.things")
    session.execute("CREATE SEQUENCE public.ids")
    session.execute("SELECT pg_create_logical_replication_slot('sight_slot', 'pgoutput')")
    sights: list[Sight] = []

    def looked_enough() -> bool:
        sights.append(look(source))
        first, last = sights[0].ids, sights[-1].ids
        return len(sights) >= SNAPSHOTS and len(last) > SNAPSHOTS and last > first

    stop = threading.Event()
    writers = [threading.Thread(target=write, args=(source, n, stop)) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        wait_for(looked_enough)
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    changes = list(stream(session))
    drop_slot(session, "sight_slot")
    assert len(changes) > SNAPSHOTS
    assert {change.id for change in changes} >= sights[-1].ids > sights[0].ids
    for sight in sights:
        seen = [change for change in changes if sight.visible.contains(change.xid)]
        assert {change.id for change in seen} == sight.ids
        assert all(change.commit < sight.barrier for change in seen)


def look(source: PgConnection) -> Sight:
    with ExportedSnapshot(source) as snapshot:
        rows = snapshot.connection.execute("SELECT id FROM public.things")
        return Sight(snapshot.visible, snapshot.barrier, frozenset(id_ for (id_,) in rows))


def write(source: PgConnection, number: int, stop: threading.Event) -> None:
    random = Random(number)
    insert = "INSERT INTO public.things SELECT nextval('public.ids')"
    with connect(source, "test", autocommit=False) as session:
        while not stop.is_set():
            session.execute(insert)
            session.execute("SAVEPOINT s")
            session.execute(insert)
            if random.random() < 0.3:
                session.execute("ROLLBACK TO s")
            session.execute(insert)
            if random.random() < 0.2:
                session.rollback()
            else:
                session.commit()


def stream(session: Session) -> Iterator[Change]:
    """The inserted ids, from pgoutput's messages: Begin, Insert of one text column."""
    rows = session.execute("""
        SELECT data FROM pg_logical_slot_get_binary_changes('sight_slot', NULL, NULL,
            'proto_version', '1', 'publication_names', 'pub')
    """)
    for (data,) in rows:
        if data[:1] == b"B":
            commit, _, xid = struct.unpack("!qqI", data[1:])
        elif data[:1] == b"I":
            (length,) = struct.unpack("!I", data[9:13])
            yield Change(xid, Lsn(commit), int(data[13 : 13 + length]))
