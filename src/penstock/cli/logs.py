"""What the commands log: lines on stderr for people, or JSON objects for machines.

Both carry the same: time, level, logger, message, and what the logging call put
into `extra`, as `key=value` behind the line or as members of the object. A record that
comes from another process has its stack as text (`exc_text`).
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from penstock.errors import cause

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def set_up_logging(log_format: LogFormat, level: LogLevel, *, debug: bool) -> None:
    """Send the logs of penstock to stderr, and of everybody else from warnings on."""
    handler = _StderrHandler()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter(debug))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("penstock").setLevel(level.upper())
    # py4j reports every lost connection while a session stops, which is no news.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


class _StderrHandler(logging.Handler):
    """Writes to what `sys.stderr` is at the time: a live view puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123Z info pipeline: table copied rows=200000`."""

    def __init__(self, stack_traces: bool) -> None:
        super().__init__()
        self._stack_traces = stack_traces

    def format(self, record: logging.LogRecord) -> str:
        logger = record.name.removeprefix("penstock.")
        parts = [f"{_time(record)} {record.levelname.lower()} {logger}: {record.getMessage()}"]
        parts += [f"{name}={value}" for name, value in _extra(record).items()]
        line = " ".join(parts)
        if record.exc_info and record.exc_info[1] is not None:
            if self._stack_traces:
                return f"{line}\n{self.formatException(record.exc_info)}"
            return f"{line} ({cause(record.exc_info[1])})"
        if record.exc_text and self._stack_traces:
            return f"{line}\n{record.exc_text.rstrip()}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry["error"] = cause(record.exc_info[1])
            entry["stack"] = "".join(traceback.format_exception(record.exc_info[1]))
        elif record.exc_text:
            entry["stack"] = record.exc_text
        return json.dumps(entry, default=str)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
