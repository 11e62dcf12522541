"""The demo's pipeline: `penstock run` in a process of its own, so that it can be killed.

Its standard output is a status twice a second, as JSON. What it counted is lost
with it when it is killed, so the counts of earlier lives are kept here and added.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from penstock.errors import ErrorKind, PenstockError

Status = dict[str, Any]

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 60.0
_COUNTED = ("rows_copied", "changes_applied")


class Driver:
    """A pipeline from a configuration file. `log` takes what it writes to standard error."""

    def __init__(self, config: Path, log: Path) -> None:
        self._config = config
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._earlier: Counter[tuple[str, str]] = Counter()
        self._status: Status | None = None

    def start(self) -> None:
        """Start it, again if need be. Statuses come once it runs."""
        self._earlier = self._earlier + self._counts
        self._counts = Counter()
        self._status = None
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [
                    *[sys.executable, "-m", "penstock.cli.main"],
                    *["run", str(self._config), "--progress", "json"],
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops us
                preexec_fn=_death_request(os.getpid()),  # noqa: PLW1509
            )
        self._reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._reader.start()

    @property
    def status(self) -> Status | None:
        """The newest status of this life, with the counts of all of them."""
        return self._status

    def require_running(self) -> None:
        """Raise what it printed last if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").splitlines()
            told = [line for line in lines if line.startswith("error: ")] or lines[-1:]
            reason = told[-1].removeprefix("error: ") if told else "without a word"
            raise PenstockError(
                ErrorKind.INTERNAL,
                f"the pipeline ended with exit code {self._process.returncode}: {reason}",
                hint=f"its log is {self._log}",
            )

    def kill_receiver(self) -> int | None:
        """SIGKILL the receiver, if it runs; its process id."""
        pid = self._status["receiver"]["pid"] if self._status else None
        if isinstance(pid, int):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return pid
        return None

    def kill(self) -> None:
        """SIGKILL the driver and everything that it started: receiver, JVM, Python workers."""
        if self._process is None:
            return
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            driver = psutil.Process(self._process.pid)
            driver.suspend()  # so that it starts nothing that the list would lack
            family = [driver, *driver.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family, _STOP_SECONDS)
        self._join()

    def stop(self) -> None:
        """Let running writes finish and see it gone; kill it if it takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._join()

    def _join(self) -> None:
        if self._reader is not None:
            self._reader.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with contextlib.suppress(ValueError):  # cut off by a kill
                    self._status = self._take(json.loads(line))

    def _take(self, status: Status) -> Status:
        for table in status["tables"]:
            for name in _COUNTED:
                key = (table["name"], name)
                self._counts[key] = table[name]
                table[name] += self._earlier[key]
        return status


def _death_request(owner: int) -> Callable[[], None] | None:
    """What the child calls before exec, so that it does not outlive a demo that is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def request() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != owner:
            os._exit(1)

    return request
