"""A catalog connection that the network loses in silence, while the stream's own is well."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config import PgConnection
from penstock.postgres.connection import Session, connect
from penstock.testing.postgres import wait_for
from tests.conftest import Database
from tests.journal.conftest import StartReceiver
from tests.journal.test_receiver_network import complaints, through
from tests.proxy import Proxy

GIVEN_UP = "has not answered a question to the catalog for 1 s"


def test_a_catalog_that_no_longer_answers_is_asked_anew(
    receiver: StartReceiver, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.journal.receiver._ANSWER_S", 1.0)
    with Proxy(database.server) as proxy:

        def through_proxy(_: PgConnection, purpose: str, **options: Any) -> Session:
            return connect(through(proxy, database), purpose, **options)

        monkeypatch.setattr("penstock.journal.receiver.connect", through_proxy)
        running = receiver()
        try:
            running.execute("CREATE TABLE t (id int PRIMARY KEY)")
            running.execute("INSERT INTO t VALUES (1)")
            running.catch_up()
            proxy.stall()
            running.execute("CREATE TABLE u (id int PRIMARY KEY)")
            running.execute("INSERT INTO u VALUES (1)")
            wait_for(lambda: GIVEN_UP in complaints(running), "it says something")
            proxy.resume()
            assert [c["after"]["id"] for c in running.changes("u")] == [1]
            assert [c["after"]["id"] for c in running.changes("t")] == [1]
        finally:
            proxy.resume()
            running.stop()
