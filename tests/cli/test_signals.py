"""A second signal stops at once, whoever reads what the first one had to say."""

from __future__ import annotations

import subprocess
import sys

import pytest

TWICE = """
import os, signal, sys
from penstock.cli.signals import StopRequest

readable, writable = os.pipe()
if sys.argv[1] == "full":
    os.set_blocking(writable, False)
    try:
        while True:
            os.write(writable, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writable, True)
elif sys.argv[1] == "closed":
    os.close(readable)
os.dup2(writable, 2)

stop = StopRequest("stopping")
stop.install()
signal.raise_signal(signal.SIGTERM)
stop.asked.wait()
if sys.argv[1] == "read":
    print(os.read(readable, 1000).decode(), end="", flush=True)
signal.raise_signal(signal.SIGTERM)
signal.pause()
"""


@pytest.mark.parametrize(
    ("stderr", "said"),
    [("read", "stopping; once more to stop at once\n"), ("closed", ""), ("full", "")],
)
def test_two_signals(stderr: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE, stderr], stdout=subprocess.PIPE, text=True, timeout=180
    )
    assert (done.returncode, done.stdout) == (128 + 15, said)
