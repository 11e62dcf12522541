"""A child process that does not outlive its owner, however that one dies.

This is done by the kernel, on Linux: the child asks to be signalled when its
parent goes (`PR_SET_PDEATHSIG`). The kernel means by "parent" the *thread* that
started the process. So each child gets a thread that starts it and then waits for
it, and which therefore lives exactly as long as it does. Elsewhere only the
interpreter's own exit can end it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class User:
    """The system user that a child runs as when we are root."""

    uid: int
    gid: int


def identity(user: User | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user.uid, "group": user.gid, "extra_groups": []}


class OwnedProcess:
    """A child process that ends with its owner, and the thread that waits for it."""

    def __init__(self, arguments: list[str], cwd: Path, user: User | None, output: Any) -> None:
        self._started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run,
            args=(arguments, cwd, user, output),
            name="embedded-postgres",
            daemon=True,
        )
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Whether the process has ended within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, arguments: list[str], cwd: Path, user: User | None, output: Any) -> None:
        try:
            self._process = subprocess.Popen(
                arguments,
                cwd=cwd,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the owner, which then stops us
                # It runs after the change of user, which would clear the request.
                preexec_fn=_death_request(os.getpid()),  # noqa: PLW1509
                **identity(user),
            )
        except BaseException as error:
            self._error = error
            return
        finally:
            self._started.set()
        self._process.wait()


def _death_request(owner: int) -> Callable[[], None] | None:
    """What a child calls before exec to be shut down when its owner dies."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: a forked child should do little

    def request() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
        if os.getppid() != owner:  # it died before the request was made
            os._exit(1)

    return request


def environment() -> dict[str, str]:
    """Ours, without the variables that would turn the server to another one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs, and is not just waiting for its end to be noticed."""
    # Orphans are reaped by process 1, which in a container may be in no hurry.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
