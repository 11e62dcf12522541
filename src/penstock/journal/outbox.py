"""What a receiver tells the pipeline that started it: events, one JSON object a line.

What is logged is such an event too; how it looks, and where it goes, is the parent's affair.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any

_FAREWELL_S = 10.0
"""How long a process that ends waits for its parent to hear the rest."""
_BACKLOG = 1000
"""How many lines may wait for the parent before what is logged is left out."""
_TEXT_LIMIT, _STACK_LIMIT, _ITEM_LIMIT = 4000, 20_000, 100


class Outbox:
    """Lines on their way to the parent, and the thread that writes them.

    A parent that does not read (it is stopped, or its own output is) fills the pipe. Only
    this thread waits then: if the one that receives did, the server would give us up.
    """

    def __init__(self, pipe: int, on_gone: Callable[[], None]) -> None:
        self._pipe = pipe
        self._on_gone = on_gone
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        return self._lines.qsize()

    def put(self, event: dict[str, Any]) -> None:
        self._lines.put(json.dumps(event).encode() + b"\n")

    def close(self, timeout: float = _FAREWELL_S) -> None:
        """Return when all is written, or nobody seems to read it."""
        self._lines.put(None)
        self._thread.join(timeout)

    def _write(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                while line:
                    line = line[os.write(self._pipe, line) :]
        except OSError:
            self._on_gone()  # nobody listens any more


class LogEvents(logging.Handler):
    """Hands each record to the parent, which logs it: name, level, message, extra, stack."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._outbox.backlog >= _BACKLOG:
            self._left_out += 1
            return
        try:
            self._outbox.put(self._event(record))
        except Exception:
            self.handleError(record)

    def _event(self, record: logging.LogRecord) -> dict[str, Any]:
        known = vars(logging.makeLogRecord({}))
        extra = {name: _plain(value) for name, value in vars(record).items() if name not in known}
        event = {
            "event": "log",
            "logger": record.name,
            "level": record.levelno,
            "message": _plain(record.getMessage()),
            "extra": extra,
        }
        if record.exc_info and (error := record.exc_info[1]) is not None:
            extra["error"] = _plain((str(error).strip() or type(error).__name__).splitlines()[0])
            event["stack"] = "".join(traceback.format_exception(error))[-_STACK_LIMIT:]
        if self._left_out:
            extra["left_out"], self._left_out = self._left_out, 0
        return event


def _plain(value: Any) -> Any:
    """As JSON can hold it, and no longer than anybody reads."""
    match value:
        case None | bool() | int() | float():
            return value
        case list() | tuple():
            return [_plain(each) for each in value[:_ITEM_LIMIT]]
        case _:
            return str(value)[:_TEXT_LIMIT]
