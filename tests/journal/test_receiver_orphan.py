"""A receiver process whose pipeline has died goes quietly, whatever it was doing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


@pytest.fixture
def orphan(receiver: Any, database: Any) -> subprocess.Popen[bytes]:
    """A receiver process that has not read its configuration yet."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running = receiver()
    running.stop()
    config = running.config.model_dump(mode="json")
    config["pg_connection"] = running.config.pg_connection.parameters()
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock.journal.receiver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(config).encode() + b"\n")
    child.stdin.flush()
    return child


def test_a_receiver_that_nobody_listens_to_ends_without_a_trace(
    orphan: subprocess.Popen[bytes],
) -> None:
    assert orphan.stdout is not None
    orphan.stdout.close()
    assert orphan.wait(60) == 0
    assert orphan.stderr is not None
    assert b"Traceback" not in orphan.stderr.read()


def test_a_receiver_whose_input_ends_stops(orphan: subprocess.Popen[bytes]) -> None:
    assert orphan.stdin is not None
    assert orphan.stdout is not None
    assert json.loads(orphan.stdout.readline())["event"] == "streaming"
    orphan.stdin.close()
    assert orphan.wait(60) == 0
