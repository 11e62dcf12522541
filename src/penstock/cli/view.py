"""How a running pipeline looks: each table's state, rows copied, changes applied, rate and lag.

A view is shown one status after the other, in the JSON form of
`PipelineStatus`, since the demo gets it from another process. On a terminal it is
a table that is drawn anew; elsewhere it is lines, log entries, or the JSON itself.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli.main import Progress

Status = Mapping[str, Any]

logger = logging.getLogger("penstock.progress")

STATE_STYLES = {
    "init": "dim",
    "data_sync": "yellow",
    "finished_copy": "yellow",
    "catchup": "cyan",
    "sync_done": "green",
    "ready": "green",
    "errored": "bold red",
}


def view_for(progress: Progress) -> View:
    """The view that `run` shows."""
    console = _Terminal(stderr=True)
    match progress:
        case Progress.LIVE:
            return LiveView(console)
        case Progress.AUTO if console.is_terminal:
            return LiveView(console)
        case Progress.JSON:
            return JsonView()
        case Progress.NONE:
            return View()
        case _:
            return LogView()


class View:
    """Shows nothing. A context manager, since some views take over the screen.

    `note` is a line of the caller's own, shown with the status.
    """

    note = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def show(self, status: Status) -> None:
        """Show this status."""

    def say(self, text: str) -> None:
        """Show a line that stays."""


class _Terminal(Console):
    """One whose end is an error of writing, and not of the whole process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class LiveView(View):
    """A table that is drawn anew, below what is said and logged meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # a terminal that is gone needs no tidying
            self._live.stop()

    def show(self, status: Status) -> None:
        parts: list[RenderableType] = [Text(self.note, style="bold")] if self.note else []
        self._live.update(Group(*parts, table_of(status)), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(Text(text))


class PlainView(View):
    """Lines: each change of a state as it happens, and the totals now and then."""

    def __init__(self, console: Console, interval: float = 5.0) -> None:
        self._console = console
        self._interval = interval
        self._states: dict[str, str] = {}
        self._next = 0.0

    def show(self, status: Status) -> None:
        for table in status["tables"]:
            if self._states.get(table["name"]) != table["state"]:
                self._states[table["name"]] = table["state"]
                reason = f": {table['error']['reason']}" if table["error"] else ""
                self.say(f"{table['name']} is {table['state']}{reason}")
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self.say(", ".join(filter(None, [self.note, summary_of(status["tables"])])))

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class LogView(View):
    """Log entries, while there is something to tell; the pipeline logs the states itself."""

    def __init__(self, interval: float = 10.0) -> None:
        self._interval = interval
        self._next = 0.0
        self._told: tuple[int, int] | None = None

    def show(self, status: Status) -> None:
        tables = status["tables"]
        copied, applied = _total(tables, "rows_copied"), _total(tables, "changes_applied")
        if time.monotonic() < self._next or self._told == (copied, applied):
            return
        self._next = time.monotonic() + self._interval
        self._told = (copied, applied)
        logger.info(
            "progress",
            extra={
                "tables": len(tables),
                "ready": _in_state(tables, "ready"),
                "errored": _in_state(tables, "errored"),
                "rows_copied": copied,
                "changes_applied": applied,
                "changes_per_second": _total(tables, "changes_per_second"),
                "lag_seconds": status["lag_seconds"],
            },
        )


class JsonView(View):
    """The status itself, one JSON object a line on stdout, for programs."""

    def show(self, status: Status) -> None:
        sys.stdout.write(json.dumps(status) + "\n")
        sys.stdout.flush()


def table_of(status: Status) -> Table:
    """The tables of a status as a table."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("table", min_width=18)
    shown.add_column("state", min_width=9)
    for name in ("rows copied", "changes applied", "rate", "lag"):
        shown.add_column(name, justify="right", min_width=10)
    for table in status["tables"]:
        state = table["state"]
        shown.add_row(
            Text(table["name"]),
            Text(state, style=STATE_STYLES.get(state, "")),
            _copied(table),
            f"{table['changes_applied']:,}",
            _rate(table),
            _lag(table),
        )
        if table["error"]:
            shown.add_row(Text(f"  {table['error']['reason']}", style="red"))
    shown.caption = Text(_caption(status), style="table.caption")
    shown.caption_justify = "left"
    return shown


def summary_of(tables: Sequence[Status]) -> str:
    """All tables in one line."""
    lag = max((table["lag_seconds"] for table in tables), default=0.0)
    return (
        f"{_in_state(tables, 'ready')} of {len(tables)} tables ready,"
        f" {_total(tables, 'rows_copied'):,} rows copied,"
        f" {_total(tables, 'changes_applied'):,} changes applied"
        f" ({_total(tables, 'changes_per_second'):,.0f}/s), lag {lag:.1f} s"
    )


def _copied(table: Status) -> str:
    rows, estimate = table["rows_copied"], table["estimated_rows"]
    if table["state"] == "data_sync" and estimate:
        return f"{rows:,} ({min(100, 100 * rows // estimate)} %)"
    return f"{rows:,}"


def _rate(table: Status) -> str:
    copying = table["state"] == "data_sync"
    rate = table["rows_per_second"] if copying else table["changes_per_second"]
    return f"{rate:,.0f}/s"


def _lag(table: Status) -> str:
    return "–" if table["position"] is None else f"{table['lag_seconds']:.1f} s"


def _caption(status: Status) -> str:
    receiver, journal = status["receiver"], status["journal"]
    reason = f" ({receiver['reason']})" if receiver["reason"] else ""
    return (
        f"receiver {receiver['state']}{reason}, journal {journal['bytes'] / 2**20:.1f} MiB"
        f" up to {journal['end'] or 'nothing yet'}, source at {status['source']['position'] or '?'}"
    )


def _in_state(tables: Sequence[Status], state: str) -> int:
    return sum(table["state"] == state for table in tables)


def _total(tables: Sequence[Status], name: str) -> Any:
    return sum(table[name] for table in tables)
