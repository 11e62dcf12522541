"""A driver's lives are told apart."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import driver
from penstock.testing.postgres import wait_for

TELL_AND_WAIT = "import sys; print(sys.argv[1], flush=True); sys.stdin.read()"


def test_a_late_status_of_one_life_is_not_the_next_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lives = iter(['{"life": 1}', "not yet"])
    reading, late, read = threading.Event(), threading.Event(), threading.Event()
    popen, loads = subprocess.Popen, driver.json.loads

    def begin(_: list[str], **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TELL_AND_WAIT, next(lives)]
        return popen(command, **options | {"stdin": subprocess.PIPE})

    def load(line: str) -> Any:
        if "not yet" in line:
            read.set()
        status = loads(line)
        reading.set()
        late.wait()
        return status

    monkeypatch.setattr(driver.subprocess, "Popen", begin)
    monkeypatch.setattr(driver.json, "loads", load)
    process = driver.DriverProcess(tmp_path / "config", tmp_path / "log")
    process.start()
    assert reading.wait(180)
    first = next(thread for thread in threading.enumerate() if thread.name.endswith("(_read)"))
    process.kill_family()
    process.start()
    try:
        assert read.wait(180)
        late.set()
        wait_for(lambda: not first.is_alive())
        assert process.status is None
    finally:
        process.kill_family()
