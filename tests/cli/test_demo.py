"""`penstock demo`, from its first line to its last process."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.cli.command import Penstock, Running

Start = Callable[..., Running]


def finish(running: Running, timeout: float = 400) -> str:
    output = "".join(running.lines())
    assert running.wait(timeout) == 0, output + running.stderr
    return output


@pytest.mark.campaign
def test_the_demo_survives_kills_and_ends_with_equal_tables_and_a_query_that_works(
    penstock: Penstock, start: Start
) -> None:
    # A lake of an earlier demo is emptied.
    earlier = penstock.directory / "mine" / "public" / "old"
    earlier.mkdir(parents=True)
    (penstock.directory / "mine" / ".penstock-demo").touch()
    running = start("demo", "--seconds", "5", "--kill", "--lake", "mine")
    output = finish(running)
    assert running.survivors() == []
    assert running.stderr == ""
    assert not earlier.exists()
    assert "filled the shop with 200,000 rows" in output
    assert "killed the receiver (SIGKILL)" in output
    assert "killed the driver (SIGKILL)" in output
    for table in ("customers", "products", "orders", "order_lines", "carts"):
        assert re.search(rf"public\.{table} .* 0 +0 +0 +equal", output), output
        assert (penstock.directory / "mine" / "public" / table / "_delta_log").is_dir()
    assert "every table equals Postgres" in output
    assert "mine/.penstock/journal" in output

    query = output.split("look into it:")[1].strip()
    result = subprocess.run(
        query, shell=True, cwd=penstock.directory, capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert "shipped" in result.stdout


def test_ctrl_c_before_anything_is_copied_leaves_nothing_running(start: Start) -> None:
    running = start("demo", "--seconds", "600")
    assert any("filled the shop" in line for line in running.lines())
    running.process.send_signal(signal.SIGINT)
    running.process.send_signal(signal.SIGINT)  # impatience does no harm
    output = "".join(running.lines())
    assert running.wait() == 130, output + running.stderr
    assert "nothing is left running" in output
    assert running.survivors() == []
    assert "Traceback" not in running.stderr


def test_a_directory_that_no_demo_made_is_left_alone(penstock: Penstock) -> None:
    mine = penstock.directory / "demo-lake" / "mine"
    mine.mkdir(parents=True)
    outcome = penstock("demo")
    assert outcome.code == 2
    assert "has files that no demo made" in outcome.errors[0]
    assert "--lake" in outcome.hints[0]
    assert mine.exists()


def test_a_lake_that_cannot_be_written(penstock: Penstock) -> None:
    (penstock.directory / "file").touch()
    outcome = penstock("demo", "--lake", "file/lake")
    assert outcome.code == 4
    assert len(outcome.errors) == len(outcome.hints) == 1


def test_the_demo_without_java(penstock: Penstock) -> None:
    outcome = penstock("demo", env={"PATH": "", "JAVA_HOME": ""})
    assert outcome.code == 2
    assert "no Java" in outcome.errors[0]
    assert penstock.files() == set()


def test_on_a_terminal_the_demo_draws_a_live_table_until_ctrl_c(start: Start) -> None:
    terminal, end = pty.openpty()
    running = start("demo", "--seconds", "600", terminal=end)
    os.close(end)
    seen = b""
    while b"data_sync" not in seen:
        seen += os.read(terminal, 65536)
    assert b"changes applied" in seen
    assert b"\x1b[" in seen
    os.write(terminal, b"\x03")
    while running.process.poll() is None:
        seen += _read(terminal)
    assert running.wait() == 130
    assert b"nothing is left running" in seen
    assert b"Traceback" not in seen
    assert running.survivors() == []


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


IN_A_FINALIZER = """
import signal, weakref
from penstock.demo.demo import _Stopped, _tidy_on_signals

class Anything:
    pass

try:
    with _tidy_on_signals():
        anything = Anything()
        watching = weakref.ref(anything, lambda _: signal.raise_signal(signal.SIGINT))
        del anything
        print("goes on")
        signal.raise_signal(signal.SIGINT)
except _Stopped:
    print("stopped")
"""


def test_a_signal_that_is_swallowed_is_not_the_last() -> None:
    """Python drops what is raised in a finalizer, and py4j has one for each object."""
    done = subprocess.run([sys.executable, "-c", IN_A_FINALIZER], capture_output=True, text=True)
    assert done.stdout == "goes on\nstopped\n"
