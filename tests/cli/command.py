"""The `penstock` command as users run it: in a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import termios
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

COMMAND = [sys.executable, "-m", "penstock"]


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]

    @property
    def hints(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("hint: ")]

    def json(self) -> Any:
        return json.loads(self.stdout)


class Penstock:
    """Runs commands in a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(
        self, *arguments: str | Path, timeout: float = 120, env: dict[str, str] | None = None
    ) -> Outcome:
        result = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.directory,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Outcome(result.returncode, result.stdout, result.stderr)

    def files(self) -> set[str]:
        """What is in the directory, the configuration aside."""
        found = {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}
        return found - {"penstock.yaml"}


WriteConfig = Callable[..., Path]


class Running:
    """A command that is under way, and every process that came of it."""

    def __init__(
        self, directory: Path, *arguments: str | Path, terminal: int | None = None
    ) -> None:
        self._mark = f"PENSTOCK_TEST_{uuid.uuid4().hex}"
        on_terminal: dict[str, Any] = {}
        if terminal is not None:
            # Of its own session, the terminal is its own too: Ctrl-C there is a SIGINT here.
            acquire = functools.partial(fcntl.ioctl, terminal, termios.TIOCSCTTY, 0)
            on_terminal = {"start_new_session": True, "preexec_fn": acquire}
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            cwd=directory,
            env={**os.environ, self._mark: "1", "COLUMNS": "100", "TERM": "xterm"},
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE if terminal is None else terminal,
            text=True,
            **on_terminal,
        )
        self._printed: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._said: list[str] = []
        self._listeners = [
            threading.Thread(target=listen, daemon=True)
            for listen in (self._take_stdout, self._take_stderr)
        ]
        for listener in self._listeners:
            listener.start()

    def _take_stdout(self) -> None:
        for line in self.process.stdout or ():
            self._printed.put(line)
        self._printed.put(None)

    def _take_stderr(self) -> None:
        self._said.extend(self.process.stderr or ())

    def lines(self) -> Iterator[str]:
        """What it prints from here on, line by line, as it comes."""
        while (line := self._printed.get(timeout=300)) is not None:
            yield line

    def wait(self, timeout: float = 120) -> int:
        """Its exit code."""
        code = self.process.wait(timeout)
        for listener in self._listeners:
            listener.join(timeout)
        return code

    @property
    def stderr(self) -> str:
        return "".join(self._said)

    def _family(self) -> Iterator[psutil.Process]:
        """Processes that inherited its environment and are still there."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and self._mark in process.environ():
                    yield process

    def survivors(self) -> list[str]:
        """What is left of it and of all that it started."""
        found = []
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                found.append(" ".join(process.cmdline())[:100])
        return found

    def signal_all(self, number: signal.Signals) -> None:
        """Signal it and all that it started, as service managers do."""
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def end(self) -> None:
        """Whatever happened to the test, leave nothing behind."""
        self.signal_all(signal.SIGKILL)
        self.process.wait()
