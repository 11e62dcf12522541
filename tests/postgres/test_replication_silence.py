"""What counts as silence of the server, on a line that is slow and not dead."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from threading import Event, Semaphore

import pytest

from penstock.config import PgConnection
from penstock.postgres.libpq import CopyBuffer
from penstock.postgres.replication import ReplicationStream
from penstock.schema import Lsn
from penstock.testing import EmbeddedPostgres
from tests.proxy import Proxy

SLOT = "penstock_silence_test"
SILENCE_S = 2.0
PIECE = 64
ROW = 10_000_000


class Trickle(Proxy):
    """Once `slow` is set, the server's bytes come in small pieces, as they are let through."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        super().__init__(server)
        self.slow = Event()
        self.pieces = Semaphore(0)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if source.family == socket.AF_UNIX:
                self._let_through(source, target)
        super()._pump(source, target)

    def _let_through(self, source: socket.socket, target: socket.socket) -> None:
        while not self.slow.is_set() and (piece := source.recv(PIECE)):
            target.sendall(piece)
        while self.slow.is_set() and (piece := source.recv(PIECE)):
            self.pieces.acquire()
            target.sendall(piece)


@pytest.fixture
def position(server: EmbeddedPostgres) -> Iterator[Lsn]:
    """Where a slot begins that has one large row to send."""
    server.create_database("silence")
    with server.connect("silence") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
        connection.execute("CREATE PUBLICATION pub FOR TABLE t")
        row = connection.execute(
            "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT]
        ).fetchone()
        assert row is not None
        connection.execute("INSERT INTO t SELECT 1, repeat('x', %s)", [ROW])
    yield Lsn.parse(row[0])
    server.drop_database("silence")


def test_a_row_may_take_longer_than_any_silence(
    server: EmbeddedPostgres, position: Lsn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.postgres.replication._SILENCE_S", SILENCE_S)
    frames = CopyBuffer(ROW // 10, 1000)
    with Trickle(server) as proxy:
        reached = PgConnection(host="127.0.0.1", port=proxy.port, user="postgres", dbname="silence")
        stream = ReplicationStream(reached, "test")
        try:
            proxy.slow.set()
            proxy.pieces.release(4)  # the answer to the command that starts the stream
            stream.start(SLOT, "pub", position, 0.1)
            enough = time.monotonic() + 3 * SILENCE_S
            while time.monotonic() < enough:
                proxy.pieces.release()
                stream.tick()
                stream.read(frames, 0.1)
            assert frames.size < ROW, "the row is still on its way"
            proxy.slow.clear()
            proxy.pieces.release()
            while frames.size < ROW:
                frames.clear()
                stream.read(frames, 0.1)
        finally:
            proxy.cut()
            stream.close()
            proxy.slow.clear()
            proxy.pieces.release()
