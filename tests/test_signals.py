"""Signals find their way, whatever they interrupt."""

from __future__ import annotations

import subprocess
import sys

HOLDS_THE_LOCK = """
import signal, sys, threading
from penstock.signals import SignalRelay

lock, came = threading.Lock(), threading.Event()

def act(number):
    with lock:
        print(number)
        came.set()

SignalRelay(act).install()
with lock:
    signal.raise_signal(signal.SIGTERM)
sys.exit(not came.wait(180))
"""


def test_acting_may_take_a_lock_that_the_interrupted_code_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_THE_LOCK], capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "15\n", "")
