"""`penstock demo`: a shop of its own, replicated live, and compared row by row at the end.

Postgres and the shop's customers live in this process, the pipeline in another
(`Driver`), as it would in earnest. The lake is read, at the end, by a third party:
a fresh Spark session that knows only where the tables are.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psycopg
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.main import ExitCode
from penstock.cli.signals import end_children
from penstock.cli.view import LiveView, PlainView, View
from penstock.demo import shop
from penstock.demo.driver import Driver
from penstock.demo.shoppers import Workload
from penstock.destinations import DeltaDestination
from penstock.destinations.delta.session import SPARK_SETTINGS
from penstock.directories import require_writable
from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn, TableName
from penstock.spark.session import SHORT_LIVED, check_java
from penstock.spark.temporary_session import temporary_session
from penstock.testing import EmbeddedPostgres
from penstock.testing.comparison import Comparison, compare
from penstock.testing.driver import Status

_MARKER = ".penstock-demo"
_REFRESH_S = 0.25
_START_S = 600.0
_CATCH_UP_S = 300.0
_TABLES = [TableName("public", name) for name in shop.TABLES]


def run_demo(*, seconds: float, kill: bool, lake: Path) -> ExitCode:
    """Run the demo; OK only if every table equals Postgres at the end."""
    console = Console()
    check_java()
    place = Place.prepare(lake)
    try:
        with _tidy_on_signals(), ExitStack() as stack:
            try:
                comparisons = Demo(console, place, stack).run(seconds, kill=kill)
            except BaseException:
                _ignore_signals()  # nothing shall disturb the tidying
                raise
    except _Stopped as stopped:
        console.print("stopped; nothing is left running")
        return ExitCode(128 + stopped.number)
    finally:
        end_children()
    _report(console, place, comparisons)
    return ExitCode.OK if all(each.equal for each in comparisons) else ExitCode.FAILED


@dataclass(frozen=True)
class Place:
    """The demo's directory: the lake, and beside its tables what a pipeline needs."""

    lake: Path

    @classmethod
    def prepare(cls, lake: Path) -> Self:
        """An empty directory. What an earlier demo left is removed, and nothing else."""
        lake = lake.absolute()
        require_writable(lake, "lake directory", "--lake", ErrorKind.DESTINATION_REJECTED)
        if lake.is_dir() and any(lake.iterdir()):
            if not (lake / _MARKER).exists():
                raise PenstockError(
                    ErrorKind.CONFIG,
                    f"{lake} has files that no demo made",
                    hint="move them away, or name another directory with --lake",
                )
            shutil.rmtree(lake)
        place = cls(lake)
        place.workings.mkdir(parents=True)
        (lake / _MARKER).touch()
        return place

    @property
    def workings(self) -> Path:
        return self.lake / ".penstock"

    @property
    def journal(self) -> Path:
        return self.workings / "journal"

    @property
    def log(self) -> Path:
        return self.workings / "pipeline.log"

    def write_config(self, server: EmbeddedPostgres) -> Path:
        config = {
            "id": "demo",
            "publication_name": shop.PUBLICATION,
            "pg_connection": {"host": server.host, "dbname": shop.DATABASE, "user": "postgres"},
            "destination": {"type": "delta", "root": str(self.lake)},
            "store": {"url": f"sqlite:///{self.workings / 'store.db'}"},
            "journal": {"location": str(self.journal)},
            "spark": {"config": dict(SHORT_LIVED)},
        }
        path = self.workings / "penstock.yaml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path


class Demo:
    """One run. What it starts is stopped by `stack`, in the right order."""

    def __init__(self, console: Console, place: Place, stack: ExitStack) -> None:
        self._console = console
        self._place = place
        self._stack = stack
        self._shown: Status | None = None

    def run(self, seconds: float, *, kill: bool) -> list[Comparison]:
        server = self._start_postgres()
        connection = self._stack.enter_context(server.connect(shop.DATABASE))
        self._fill(connection)
        self._say("starting the pipeline (Spark fetches Delta's jars the first time)")
        driver = Driver(self._place.write_config(server), self._place.log)
        workload = Workload(server.dsn(shop.DATABASE))
        self._stack.enter_context(workload)
        self._stack.callback(driver.kill)
        driver.start()
        view = LiveView(self._console) if self._console.is_terminal else PlainView(self._console)
        with view:
            self._await_start(driver, view)
            self._watch(driver, view, workload, seconds, kill=kill)
            workload.stop()
            self._catch_up(driver, view, _end_of_wal(connection))
        counts = workload.counts
        self._say(
            f"the shop made {counts['committed'] + counts['truncated']:,} transactions"
            f" ({counts['truncated']} with a TRUNCATE) and rolled back {counts['rolled back']:,}"
        )
        driver.stop()
        self._say("comparing every row with Postgres")
        return list(self._compare(connection))

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _start_postgres(self) -> EmbeddedPostgres:
        self._say("starting a Postgres of its own")
        directory = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True)
        )
        server = EmbeddedPostgres(Path(directory) / "postgres")
        self._stack.callback(server.stop, "immediate")
        server.start()
        server.create_database(shop.DATABASE)
        return server

    def _fill(self, connection: psycopg.Connection[Any]) -> None:
        started = time.monotonic()
        shop.create(connection)
        rows = shop.fill(connection)
        self._say(f"filled the shop with {rows:,} rows in {time.monotonic() - started:.1f} s")

    def _await_start(self, driver: Driver, view: View) -> None:
        deadline = time.monotonic() + _START_S
        while driver.status is None:
            self._pause(driver, deadline, "the pipeline did not start")
        self._show(driver, view, "")

    def _watch(
        self, driver: Driver, view: View, workload: Workload, seconds: float, *, kill: bool
    ) -> None:
        started = time.monotonic()
        deaths = [(seconds / 3, "receiver"), (seconds * 2 / 3, "driver")] if kill else []
        while True:
            elapsed = time.monotonic() - started
            # A driver that was killed must be back before the end.
            if elapsed >= seconds and not deaths and driver.status is not None:
                return
            if deaths and elapsed >= deaths[0][0] and _kill(driver, deaths[0][1]):
                view.say(f"killed the {deaths.pop(0)[1]} (SIGKILL)")
            done = workload.counts["committed"] + workload.counts["truncated"]
            note = f"{min(elapsed, seconds):.0f} of {seconds:g} s, {done:,} transactions"
            self._show(driver, view, note)
            self._pause(driver, started + seconds + _START_S, "the pipeline did not start again")

    def _catch_up(self, driver: Driver, view: View, end: Lsn) -> None:
        deadline = time.monotonic() + _CATCH_UP_S
        while not (driver.status and _has_reached(driver.status, end)):
            self._show(driver, view, "the shop is closed, catching up")
            self._pause(driver, deadline, f"the pipeline did not catch up in {_CATCH_UP_S:g} s")
        self._show(driver, view, "the shop is closed, caught up")

    def _show(self, driver: Driver, view: View, note: str) -> None:
        self._shown = driver.status or self._shown
        if self._shown is not None:
            view.note = note
            view.show(self._shown)

    def _pause(self, driver: Driver, deadline: float, complaint: str) -> None:
        driver.require_running()
        if time.monotonic() > deadline:
            raise PenstockError(ErrorKind.INTERNAL, complaint, hint=f"its log is {self._place.log}")
        time.sleep(_REFRESH_S)

    def _compare(self, connection: psycopg.Connection[Any]) -> Iterator[Comparison]:
        spark = self._stack.enter_context(
            temporary_session("penstock-demo", config=SPARK_SETTINGS | SHORT_LIVED)
        )
        _handle_signals()  # Spark has put its own handler in place of ours
        lake = DeltaDestination(self._place.lake)
        for table in _TABLES:
            yield compare(connection, table, spark.read.format("delta").load(lake.path(table)))


def _kill(driver: Driver, victim: str) -> bool:
    """Whether there was somebody to kill."""
    if victim == "receiver":
        return driver.kill_receiver()
    driver.kill()
    driver.start()
    return True


def _end_of_wal(connection: psycopg.Connection[Any]) -> Lsn:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def _has_reached(status: Status, end: Lsn) -> bool:
    for table in status["tables"]:
        error = table["error"]
        if error and error["retry"] != "timed":
            raise PenstockError(
                ErrorKind.INTERNAL,
                f"{table['name']} is errored: {error['reason']}",
                hint=error["solution"],
            )
    return bool(status["tables"]) and all(
        table["state"] == "ready" and table["position"] and Lsn.parse(table["position"]) >= end
        for table in status["tables"]
    )


def _report(console: Console, place: Place, comparisons: list[Comparison]) -> None:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("table")
    for name in ("Postgres", "Delta", "missing", "surplus", "different"):
        shown.add_column(name, justify="right")
    shown.add_column("")
    for each in comparisons:
        shown.add_row(
            Text(str(each.table)),
            *(f"{count:,}" for count in (each.source_rows, each.mirror_rows)),
            *(f"{count:,}" for count in (each.missing, each.surplus, each.different)),
            "[green]equal[/green]" if each.equal else "[bold red]NOT EQUAL[/bold red]",
        )
    console.print()
    console.print(shown)
    for each in comparisons:
        for example in each.examples:
            console.print(Text(f"  {each.table}: {example}"))
    equal = all(each.equal for each in comparisons)
    verdict = "every table equals Postgres" if equal else "NOT all tables equal Postgres"
    console.print(f"\n[bold]{verdict}[/bold]\n")
    for name, path in (("lake", place.lake), ("journal", place.journal), ("log", place.log)):
        console.print(Text(f"{name:<8} {_short(path)}"), soft_wrap=True)
    console.print("\nlook into it:\n")
    console.print(Text(f"  {_query(place)}\n"), soft_wrap=True)


def _query(place: Place) -> str:
    table = DeltaDestination(place.lake).path(TableName("public", "orders"))
    query = f"SELECT status, count(*), sum(total) FROM delta.`{table}` GROUP BY status"
    program = (
        "from penstock.destinations.delta.session import SPARK_SETTINGS;"
        " from penstock.spark.session import build_session;"
        f' build_session(config=SPARK_SETTINGS).sql("{query}").show()'
    )
    return f"{_short(Path(sys.executable))} -c {shlex.quote(program)}"


def _short(path: Path) -> str:
    """Relative where that is shorter. Not resolved: an environment's Python is a link."""
    return min(os.path.relpath(path), str(path), key=len)


class _Stopped(BaseException):
    """A signal came. Raised where the demo is, so that it tidies up on its way out.

    (Once more where that was a place that swallows exceptions, such as a finalizer.)
    """

    def __init__(self, number: int) -> None:
        self.number = number


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _handle_signals() -> None:
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise _Stopped(number)

    for each in _SIGNALS:
        signal.signal(each, stop)


def _ignore_signals() -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)


@contextmanager
def _tidy_on_signals() -> Iterator[None]:
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    _handle_signals()
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
