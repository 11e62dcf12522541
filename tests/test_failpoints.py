"""Failpoints, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from penstock.testing.postgres import wait_for

PROGRAM = """
from penstock.failpoints import failpoint
for number in range(1, 5):
    print(number, flush=True)
    failpoint("here")
    failpoint("there")
"""


def start(failpoints: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PENSTOCK_FAILPOINT": failpoints},
    )


@pytest.mark.parametrize(
    ("failpoints", "reached"),
    [
        ("here", 1),
        ("there:3", 3),
        ("here:4,there:2", 2),
        ("elsewhere,here:2", 2),
    ],
)
def test_a_process_dies_at_the_passage_it_is_told(failpoints: str, reached: int) -> None:
    process = start(failpoints)
    output, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert output.split() == [str(number) for number in range(1, reached + 1)]


@pytest.mark.parametrize("failpoints", ["", "elsewhere", "here:9"])
def test_a_process_lives_where_no_failpoint_is_armed(failpoints: str) -> None:
    process = start(failpoints)
    output, _ = process.communicate()
    assert process.returncode == 0
    assert len(output.split()) == 4


def test_a_stopped_process_goes_on_when_it_is_told_and_stops_once() -> None:
    process = start("here:2:stop")
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate()
    assert process.returncode == 0
    assert len(output.split()) == 4
