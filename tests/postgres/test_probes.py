"""Whether a dead network would be noticed: what the sockets of our sessions are set to."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock.config import PgConnection
from penstock.postgres.connection import connect
from penstock.stores.database import Database
from penstock.testing import EmbeddedPostgres
from tests.proxy import Proxy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets name them differently")

OURS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


def set_to(session: psycopg.Connection[tuple[object, ...]]) -> dict[str, int]:
    with socket.socket(fileno=os.dup(session.pgconn.socket)) as one:
        return {name: one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in OURS}


@pytest.fixture
def uri(server: EmbeddedPostgres) -> Iterator[str]:
    """The server's, through TCP."""
    with Proxy(server) as proxy:
        yield f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"


@pytest.mark.parametrize("replication", [False, True])
def test_every_session_is_probed(uri: str, replication: bool) -> None:
    with connect(PgConnection(uri=uri), "test", replication=replication) as session:
        assert set_to(session) == OURS


def test_the_stores_session_is_probed(uri: str) -> None:
    with closing(Database(uri)) as database, database.read("sockets") as connection:
        assert set_to(connection.connection.driver_connection) == OURS
    with (
        closing(Database(f"{uri}?keepalives_idle=7")) as database,
        database.read("sockets") as connection,
    ):
        found = set_to(connection.connection.driver_connection)
    assert (found["TCP_KEEPIDLE"], found["TCP_USER_TIMEOUT"]) == (7, 0)


def test_what_the_user_says_of_it_is_all_that_is_set(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = uri.rpartition(":")[2].partition("/")[0]
    services = tmp_path / "services"
    services.write_text(f"[shop]\nhost=127.0.0.1\nport={port}\nuser=postgres\nkeepalives_idle=7\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))

    def idle_and_timeout(given: PgConnection) -> tuple[int, int]:
        with connect(given, "test") as session:
            found = set_to(session)
        return found["TCP_KEEPIDLE"], found["TCP_USER_TIMEOUT"]

    assert idle_and_timeout(PgConnection(uri=f"{uri}?keepalives_idle=7")) == (7, 0)
    assert idle_and_timeout(PgConnection(uri=uri, keepalives_idle=7)) == (7, 0)
    assert idle_and_timeout(PgConnection(uri=f"{uri}?tcp_user_timeout=9000"))[1] == 9000
    assert idle_and_timeout(PgConnection(uri=uri, keepalives=0))[1] == 0
    assert idle_and_timeout(PgConnection(service="shop", dbname="postgres")) == (7, 0)
    monkeypatch.setenv("PGSERVICE", "shop")
    assert idle_and_timeout(PgConnection(dbname="postgres")) == (7, 0)


def test_a_socket_of_the_same_machine_needs_none(server: EmbeddedPostgres) -> None:
    with connect(PgConnection(uri=server.dsn()), "test") as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
