"""What is done to publications in crash campaigns can be done, and is seen."""

from __future__ import annotations

import random

from tests.campaigns import workload
from tests.campaigns.hard_tables import TABLES
from tests.campaigns.migrations import Migrator
from tests.campaigns.publishing import Publisher, lose_slot, published
from tests.conftest import Database

REPUBLISHED = [table for table in TABLES if table.name in ("plain", "pairs", "parts")]


def test_tables_are_published_on_ever_other_terms(database: Database) -> None:
    chance = random.Random(1)
    publisher = Publisher(chance, workload.PUBLICATION, REPUBLISHED)
    migrator = Migrator(chance, REPUBLISHED[:2])
    seen = set()
    with database.connect() as connection:
        workload.create(connection, REPUBLISHED, rounds=5)
        for _ in range(40):
            publisher.change(connection)
            migrator.alter(connection)
            connection.execute("UPDATE plain SET a = 1")
            connection.execute("UPDATE parts SET v = 'x'")
            seen.add(tuple(published(connection, workload.PUBLICATION)))
    shown = {each for every in seen for each in every}
    assert any(each.row_filter for each in shown)
    assert any(each.columns == ("x", "v", "y") for each in shown)
    assert {len(every) for every in seen} == {1, 2, 3}


def test_a_slot_that_is_dropped_is_gone_and_one_that_is_gone_stays_so(database: Database) -> None:
    slot = f"{database.name}_lost"
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        for _ in range(2):
            lose_slot(database.dsn, slot)
            query = "SELECT FROM pg_replication_slots WHERE slot_name = %s"
            assert connection.execute(query, [slot]).fetchall() == []
