"""Processes that write to a journal killed at every durable step, and new ones after them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from penstock.pipeline.receiver_process import revealed
from penstock.pipeline.slot_recovery import recover_lost_slot
from penstock.stores import MemoryStore

RECOVERY = """
import json, sys
from penstock.config import PipelineConfig
from penstock.journal.journal import Journal
from penstock.pipeline.slot_recovery import recover_lost_slot
from penstock.stores import MemoryStore

config = PipelineConfig(**json.load(sys.stdin))
journal, store = Journal(config.journal_path), MemoryStore()
journal.refresh()
store.open(config.id)
recover_lost_slot(config, store, journal)
"""


def run_until_killed(
    running: Any, failpoint: str, meanwhile: Callable[[int], None] = lambda number: None
) -> None:
    """Start a receiver process that dies at `failpoint`; call `meanwhile` until it has."""
    number = 0
    with running.process(failpoint) as child:
        while child.poll() is None:
            number += 1
            meanwhile(number)
        assert child.returncode == -signal.SIGKILL


@pytest.fixture
def stopped(receiver: Any, database: Any) -> Any:
    """A receiver with a table `t` that has run and stopped."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    running = receiver()
    running.stop()
    return running


@pytest.mark.parametrize("failpoint", ["journal_claimed", "slot_created", "journal_begun"])
def test_a_first_start_that_was_killed_is_repeated(stopped: Any, failpoint: str) -> None:
    stopped.execute(f"SELECT pg_drop_replication_slot('{stopped.config.slot_name}')")
    shutil.rmtree(stopped.config.journal_path)
    run_until_killed(stopped, failpoint)
    stopped.start()
    stopped.execute("INSERT INTO t VALUES (1, 'x')")
    assert [change["after"]["id"] for change in stopped.changes("t")] == [1]


@pytest.mark.parametrize("failpoint", ["segment_written:3", "manifest_created:2", "acknowledged:2"])
def test_a_killed_receiver_loses_nothing_and_repeats_nothing(
    stopped: Any, database: Any, failpoint: str
) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:

        def work(number: int) -> None:
            connection.execute("INSERT INTO t VALUES (%s, 'x')", [number])
            connection.execute("UPDATE t SET v = 'y' WHERE id = %s", [number // 2])

        run_until_killed(stopped, failpoint, work)
    stopped.start()
    stopped.assert_replay_equals_source("t")
    positions = [(c["commit_lsn"], c["tx_ordinal"]) for c in stopped.changes("t")]
    assert len(positions) == len(set(positions)), "a change is there twice"


def test_a_journal_begins_anew_also_when_its_discarding_was_killed(stopped: Any) -> None:
    running = stopped
    running.config = running.config.model_copy(update={"invalidated_slot_behavior": "recreate"})
    running.start()
    store = MemoryStore()
    store.open(running.config.id)
    steps = ("states_reset", "directory_discarded:1", "directory_discarded:2", "journal_discarded")
    for number, step in enumerate(steps):
        running.execute(f"INSERT INTO t VALUES ({number}, 'lost')")
        running.catch_up()
        running.stop()
        running.execute(f"SELECT pg_drop_replication_slot('{running.config.slot_name}')")
        child = subprocess.run(
            [sys.executable, "-c", RECOVERY],
            input=json.dumps(revealed(running.config)).encode(),
            env=os.environ | {"PENSTOCK_FAILPOINT": step},
            check=False,
        )
        assert child.returncode == -signal.SIGKILL
        assert recover_lost_slot(running.config, store, running.journal)
        running.start()
        running.execute(f"INSERT INTO t VALUES ({number + 100}, 'x')")
        assert [change["after"]["id"] for change in running.changes("t")] == [number + 100], step
