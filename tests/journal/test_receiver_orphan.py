"""A receiver's process whose pipeline has died ends quietly, whatever it was doing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import Database
from tests.journal.conftest import StartReceiver


@pytest.fixture
def child(receiver: StartReceiver, database: Database) -> Iterator[subprocess.Popen[bytes]]:
    """A receiver process that has not read its configuration yet."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running = receiver()
    running.stop()
    with running.process(stderr=subprocess.PIPE) as process:
        yield process


def test_one_that_nobody_listens_to_ends_without_a_trace(child: subprocess.Popen[bytes]) -> None:
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait(60) == 0
    assert child.stderr is not None
    assert b"Traceback" not in child.stderr.read()


def test_one_whose_input_ends_stops(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    assert json.loads(child.stdout.readline())["event"] == "streaming"
    child.stdin.close()
    assert child.wait(60) == 0
