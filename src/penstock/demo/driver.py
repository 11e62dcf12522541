"""The demo's pipeline: a driver process that can be killed, and what all its lives have done.

What a driver counted is lost with it when it is killed, so the counts of earlier
lives are kept here and added to those of the newest status.
"""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

from penstock.errors import ErrorKind, PenstockError
from penstock.testing.driver import DriverProcess, Status

_COUNTED = ("rows_copied", "changes_applied")


class Driver:
    """The pipeline that the file `config` describes; `log` takes what it logs."""

    def __init__(self, config: Path, log: Path) -> None:
        self._process = DriverProcess(config, log)
        self._log = log
        self._earlier: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        """Let running writes finish and see everything gone."""
        self._process.stop()

    def kill_receiver(self) -> bool:
        """SIGKILL the receiver, if there is one just now; the driver starts another."""
        return self._process.kill_receiver()

    def kill(self) -> None:
        """SIGKILL the driver and everything that it started."""
        if self._process.alive:
            self._process.kill_family()
        for table in self._process.status["tables"] if self._process.status else ():
            for name in _COUNTED:
                self._earlier[table["name"], name] += table[name]

    @property
    def status(self) -> Status | None:
        """The newest status of this life, with the counts of all of them."""
        if self._process.status is None:
            return None
        status = copy.deepcopy(self._process.status)
        for table in status["tables"]:
            for name in _COUNTED:
                table[name] += self._earlier[table["name"], name]
        return status

    def require_running(self) -> None:
        """Raise what it printed last if it has ended."""
        code = self._process.exit_code
        if code is not None:
            lines = self._log.read_text(errors="replace").splitlines()
            told = [line for line in lines if line.startswith("error: ")] or lines[-1:]
            reason = told[-1].removeprefix("error: ") if told else "without a word"
            raise PenstockError(
                ErrorKind.INTERNAL,
                f"the pipeline ended with exit code {code}: {reason}",
                hint=f"its log is {self._log}",
            )
