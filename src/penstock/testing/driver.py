"""A pipeline that can be killed: `penstock run` in a process of its own.

Its standard output is a status twice a second. Everything that it starts (the
JVM, the receiver, Spark's Python workers) inherits a mark in its environment, so
that what is left of a life can be found after its driver has died, whoever
adopted it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from penstock.spark.session import INTERPRETED
from penstock.testing.owned_process import is_alive
from penstock.testing.postgres import wait_for

Status = dict[str, Any]

CONFIG = "pipeline.yaml"
SPARK_SETTINGS = INTERPRETED | {"spark.driver.memory": "1g"}

_MARK = "PENSTOCK_TEST_LIFE"
_GONE_S = 60.0
_RETAINED_S = 30.0


def write_config(
    directory: Path, pipeline: str, dsn: str, publication: str, *, recreate: bool
) -> None:
    """Configure a pipeline that has everything of its own in `directory`.

    `recreate` has a slot that is lost made again.
    """
    config = {
        "id": pipeline,
        "publication_name": publication,
        "pg_connection": {"uri": dsn},
        # Large, so that a backlog takes few batches, which are slow in a young JVM.
        "batch": {"max_fill_ms": 1500, "max_bytes": 8 * 1024 * 1024},
        "journal": {
            "location": str(directory / "journal"),
            "retention_hours": _RETAINED_S / 3600,
        },
        "table_error_retry_delay_ms": 200,
        "invalidated_slot_behavior": "recreate" if recreate else "error",
        "store": {"url": f"sqlite:///{directory}/store.db"},
        "destination": {"root": str(directory / "lake")},
        "spark": {"master": "local[2]", "config": SPARK_SETTINGS},
    }
    (directory / CONFIG).write_text(yaml.safe_dump(config))


class DriverProcess:
    """One life after the other of the pipeline that the file `config` describes."""

    def __init__(self, config: Path, log: Path) -> None:
        self._config = config
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._mark = ""
        self._log_begin = 0
        self._told: deque[Status] = deque(maxlen=1)

    def start(self, failpoints: str = "") -> None:
        """Begin a life; a status comes when it has come so far."""
        self._mark = uuid.uuid4().hex
        self._told = deque(maxlen=1)  # of this life: a reader of the one before has its own
        with self._log.open("a") as log:
            print(f"--- a life with the failpoints {failpoints or '(none)'}", file=log, flush=True)
            self._log_begin = log.tell()
            self._process = process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "penstock"),
                    *("run", str(self._config), "--progress", "json"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"PENSTOCK_FAILPOINT": failpoints, _MARK: self._mark},
                start_new_session=True,
            )
        threading.Thread(target=_read, args=(process, self._told), daemon=True).start()

    @property
    def status(self) -> Status | None:
        """The last that came in this life."""
        return self._told[-1] if self._told else None

    def forget_status(self) -> None:
        """Have none until the next one comes."""
        self._told.clear()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How this life ended; None while it lasts, or before the first."""
        return self._process.poll() if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self.exit_code is None

    @property
    def receiver_pid(self) -> int | None:
        return self.status["receiver"]["pid"] if self.status else None

    @property
    def receiver_deaths(self) -> int:
        """How often the receiver has died in this life, by what the driver logged."""
        with self._log.open("rb") as log:
            log.seek(self._log_begin)
            return log.read().count(b"receiver died")

    def kill(self) -> None:
        """SIGKILL the driver alone; its children must notice by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_family(self) -> None:
        """SIGKILL the driver and everything it started, as a machine that goes down does."""
        family = list(self.family())
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()  # so that none of them sees another one's end
        for process in {*family, *self.family()}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.wait_until_gone()

    def stop(self) -> None:
        """Shut it down as a user does, and by force if that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            self.kill_family()
        self.wait_until_gone()

    def family(self, mark: str | None = None) -> Iterator[psutil.Process]:
        """What runs of this life, or of the one with that mark."""
        mark = mark or self._mark
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == mark:
                    yield process

    @property
    def mark(self) -> str:
        """Names this life, for `wait_until_gone` in a later one."""
        return self._mark

    def wait_until_gone(self, mark: str | None = None) -> None:
        """Return when nothing of a life runs any more; TimeoutError if something does not end."""
        if self._process is not None and mark in (None, self._mark):
            self._process.wait()

        def gone() -> bool:
            return not any(map(is_alive, self.family(mark)))

        try:
            wait_for(gone, limit=_GONE_S)
        except TimeoutError:
            left = [f"{p.pid} {p.name()}" for p in self.family(mark)]
            raise TimeoutError(f"outlived their driver: {', '.join(left)}") from None

    def stopped(self) -> int | None:
        """The process, driver or receiver, that has stopped at a failpoint."""
        for pid in (self.pid, self.receiver_pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                if pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    return pid
        return None

    def kill_receiver(self) -> bool:
        """SIGKILL the receiver, if one streams just now.

        One that dies again and again before it does is a failure that a pipeline gives up on.
        """
        pid = self.receiver_pid
        if pid is None or self.status is None or self.status["receiver"]["state"] != "streaming":
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def _read(process: subprocess.Popen[str], told: deque[Status]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # cut off by a kill
                told.append(json.loads(line))
