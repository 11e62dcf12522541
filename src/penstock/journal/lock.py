"""One receiver a journal on one machine.

The manifest numbers fence out a second receiver wherever it runs; this lock only
makes the usual mistake, two on one machine, a clear error instead of a race, and
lets a restarted receiver wait until the one before it is really gone.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.errors import ErrorKind, PenstockError
from penstock.journal.files import UNFIT

_NAME = "receiver.lock"
_PATIENCE_S = 15.0


class ReceiverLock:
    """Held while receiving; gone with the process."""

    def __init__(self, root: Path, stop: threading.Event) -> None:
        self._root = root
        self._stop = stop
        self._descriptor = -1

    def __enter__(self) -> Self:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._root / _NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise PenstockError(
                ErrorKind.JOURNAL,
                f"cannot write to the journal directory {self._root}: {error.strerror}",
                hint="create it and give this user the right to write there,"
                " or set journal.location",
            ) from error
        deadline = time.monotonic() + _PATIENCE_S
        while not self._try():
            if time.monotonic() > deadline:
                os.close(self._descriptor)
                raise PenstockError(
                    ErrorKind.JOURNAL,
                    f"another receiver fills the journal {self._root}",
                    hint="stop it, or give this pipeline a journal.location of its own",
                )
            if self._stop.wait(0.05):
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            os.close(self._descriptor)
            raise PenstockError(
                ErrorKind.JOURNAL,
                f"cannot lock {self._root / _NAME}: {error.strerror or error}",
                hint=UNFIT,
            ) from error
        return True
