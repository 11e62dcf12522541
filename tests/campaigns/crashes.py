"""A crash campaign: a pipeline that is killed again and again, and loses nothing.

A server of its own, tables that are hard to replicate, writers that never rest
(`workload`), a real driver process (`driver`), and a plan of kills (`kills`). One
life of a driver follows the other at once, while what is left of the last may
still be going down.

Between lives the journal is followed (`archive`); at the end, or whenever
asked, the writers rest, the pipeline catches up, and every table is compared
with the source.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.destinations import DeltaDestination
from penstock.journal.scribe import warm_up as compile_kernels
from penstock.schema import Lsn, TableName
from penstock.testing.comparison import Comparison
from penstock.testing.driver import CONFIG, DriverProcess, write_config
from penstock.testing.postgres import EmbeddedPostgres, wait_for
from tests.campaigns import workload
from tests.campaigns.archive import JournalArchive
from tests.campaigns.hard_tables import TABLES
from tests.campaigns.kills import Kill, Life, SlotLoss, Victim
from tests.campaigns.outcome import compare_published, follows_publication
from tests.campaigns.publishing import lose_slot
from tests.campaigns.workload import PUBLICATION, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DATABASE = "crash"
_PIPELINE = "crash"
_SLOT = f"penstock_{_PIPELINE}"
_LIMIT_S = 400.0
_MOMENT = (3, 120)
_SERVER_SETTINGS = {"deadlock_timeout": "100ms"}


class CampaignFailed(Exception):
    """What went wrong; a note says with which seed, and where to look."""


class _LifeOver(Exception):
    """The driver came to its own failpoint before the others' time had come."""


class Campaign:
    """Everything that a campaign needs, started on entry and stopped on exit.

    The writers change all tables of the workload; `tables` are those that are
    published, `migrated` those of them that change their shape meanwhile, and
    `republished` those that are published on other terms. `recreate` has a slot that is
    lost made again. `tell` gets a line for everything that happens. On success the
    directory is removed, on failure the exception says where it is.
    """

    def __init__(
        self,
        seed: int,
        tell: Callable[[str], None] = print,
        tables: Sequence[TableName] = TABLES,
        migrated: Sequence[TableName] = (),
        republished: Sequence[TableName] = (),
        recreate: bool = False,
    ) -> None:
        self.seed = seed
        self._migrated = migrated
        self._republished = republished
        self._recreate = recreate
        self.tables = tables
        self.chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.transactions: Counter[str] = Counter()
        self.slot_losses: Counter[SlotLoss] = Counter()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-crash-"))
        self._tell = tell
        self._began = time.monotonic()
        self._server = EmbeddedPostgres(self.directory / "postgres", settings=_SERVER_SETTINGS)
        self._driver = DriverProcess(self.directory / CONFIG, self.directory / "driver.log")
        self._archive: JournalArchive | None = None
        self._workload: Workload | None = None
        self._deaths = 0
        self._pending: Kill | None = None
        self._outside: TableName | None = None

    def __enter__(self) -> Self:
        try:
            # Once, and not in each process that is killed while it compiles them.
            compile_kernels()
            self._server.start()
            self._server.create_database(_DATABASE)
            with self._server.connect(_DATABASE) as connection:
                workload.create(connection, self.tables)
            dsn = self._server.dsn(_DATABASE)
            write_config(self.directory, _PIPELINE, dsn, PUBLICATION, recreate=self._recreate)
            self._archive = JournalArchive(
                self.directory / "journal", self.directory / "archive", dsn, _SLOT
            ).start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._driver.alive:
                self._driver.kill_family()
            if self._archive is not None:
                self._archive.stop()
            if self._workload is not None:
                self._workload.stop()
        finally:
            self._server.stop("immediate")
            if error is None:
                shutil.rmtree(self.directory)
            else:
                error.add_note(f"seed {self.seed}; everything is left in {self.directory}")

    # Killing.

    def live(self, life: Life) -> None:
        """Live through one life, to its end."""
        if self._driver.alive:
            self._driver.stop()  # it has lived on through a comparison
        self._work()
        before = self._driver.mark
        stops = (kill for kill in life.kills if kill.victim is Victim.POSTGRES and kill.failpoint)
        self._pending = next(stops, None)
        if life.slot_loss is SlotLoss.DOWN:
            self._lose_slot(life.slot_loss)
        self._begin(life.failpoints)
        if before:
            # No receiver, no JVM and no worker outlives its driver for long.
            self._driver.wait_until_gone(before)
        try:
            self._rejoin(self._outside or life.rejoin)
            if life.slot_loss is SlotLoss.RUNNING:
                self._wait_for_moment()
                self._lose_slot(life.slot_loss)
            for kill in life.kills:
                self._perform(kill, last=kill is life.kills[-1])
        except _LifeOver:
            self._note_death(life.kills[-1])
        self._note_repeated_deaths(life)
        if self._driver.alive:
            raise CampaignFailed(f"the driver lived on after {life.kills[-1]}")

    def _begin(self, failpoints: str) -> None:
        self._say(f"a driver starts, with {failpoints or 'nothing'} armed")
        self._deaths = 0
        self._driver.start(failpoints)

    def _lose_slot(self, when: SlotLoss) -> None:
        lose_slot(self._server.dsn(_DATABASE), _SLOT)
        self.slot_losses[when] += 1
        self._say(f"the slot was dropped, {when}")

    def _perform(self, kill: Kill, *, last: bool) -> None:
        match kill.victim:
            case Victim.RECEIVER:
                self._kill_receiver(kill)
            case Victim.POSTGRES:
                self._kill_postgres(kill)
            case Victim.DRIVER | Victim.MACHINE:
                assert last, "a life ends with its driver"
                self._kill_driver(kill)

    def _kill_receiver(self, kill: Kill) -> None:
        if kill.failpoint is None:
            self._wait_for_moment()
            self._wait(self._driver.kill_receiver, "a receiver to kill")
        self._wait(lambda: self._driver.receiver_deaths > self._deaths, f"the death of the {kill}")
        self._deaths += 1
        self._note(kill)

    def _note_repeated_deaths(self, life: Life) -> None:
        """A receiver that dies at a failpoint dies there again after each restart."""
        again = [kill for kill in life.kills if kill.victim is Victim.RECEIVER and kill.failpoint]
        if again and self._driver.receiver_deaths > self._deaths:
            self._note(again[-1], self._driver.receiver_deaths - self._deaths)

    def _kill_postgres(self, kill: Kill) -> None:
        if kill.failpoint is None:
            self._wait_for_moment()
            self._crash_postgres(kill)
        else:
            self._wait(lambda: self._pending is not kill, f"a stop for {kill}")

    def _crash_postgres(self, kill: Kill) -> None:
        self._server.kill()
        self._server.restart_after_crash()
        self._note(kill)

    def _attend_stopped(self) -> None:
        """Let a process go on that has stopped at a failpoint, after Postgres's death there.

        Whatever else is waited for: that may need the process. One that is started
        again stops again, for nothing.
        """
        stopped = self._driver.stopped()
        if stopped is not None:
            if self._pending is not None:
                self._crash_postgres(self._pending)
                self._pending = None
            os.kill(stopped, signal.SIGCONT)

    def _kill_driver(self, kill: Kill) -> None:
        if kill.failpoint is not None:
            with suppress(_LifeOver):
                what = f"the death of the {kill}"
                self._wait(lambda: kill.starting and self._driver.status, what)
                self._driver.kill()
                kill = Kill(kill.victim)
        else:
            self._wait_for_moment()
            if kill.victim is Victim.MACHINE:
                self._driver.kill_family()
            else:
                self._driver.kill()
        self._note_death(kill)

    def _note_death(self, kill: Kill) -> None:
        if self._driver.exit_code != -signal.SIGKILL:
            raise CampaignFailed(
                f"the driver ended by itself, with {self._driver.exit_code}, before {kill}"
            )
        self._note(kill)

    def _note(self, kill: Kill, times: int = 1) -> None:
        self.kills[str(kill)] += times
        self._say(f"{kill} ({self.kills.total()} kills)")

    # Moments.

    def _wait_for_moment(self) -> None:
        """Until the driver runs and the writers have done some more."""
        self._wait(lambda: self._driver.status, "the driver's first status")
        assert self._workload is not None
        counts = self._workload.counts
        wanted = counts["committed"] + self.chance.randint(*_MOMENT)
        self._wait(lambda: counts["committed"] >= wanted, "the writers")

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        """For something that the driver's death makes impossible."""

        def done() -> bool:
            self._attend_stopped()
            return bool(condition()) or not self._driver.alive

        wait_for(done, f"waited in vain for {what}", _LIMIT_S)
        self._require_no_standstill()
        if not self._driver.alive:
            raise _LifeOver

    def _require_no_standstill(self) -> None:
        for table in (self._driver.status or {"tables": []})["tables"]:
            error = table["error"]
            if error is not None and error["retry"] != "timed":
                raise CampaignFailed(f"{table['name']} became errored: {error['reason']}")

    def _rejoin(self, table: TableName | None) -> None:
        """Take a table out of the publication, and put it back when it is forgotten.

        Not sooner, even if that takes another life: a table that comes back before
        anybody has seen it leave has lost changes without a trace.
        """
        if table is None:
            return

        def known() -> bool:
            status = self._driver.status
            return status is None or any(t["name"] == str(table) for t in status["tables"])

        def publish(action: str) -> None:
            # In a connection of its own: Postgres may die while one waits in between.
            with self._server.connect(_DATABASE) as connection:
                statement = f"ALTER PUBLICATION {PUBLICATION} {action} TABLE {table.quoted}"
                connection.execute(statement.encode())

        if self._outside is None:
            publish("DROP")
            self._outside = table
        self._wait(lambda: not known(), f"{table} to leave")
        publish("ADD")
        self._outside = None
        self._say(f"{table} left the publication and came back")

    # Comparing.

    def verify(self, spark: SparkSession) -> list[Comparison]:
        """Let the pipeline catch up, and compare. Raises when anything is amiss."""
        self._rest()
        if not self._driver.alive:
            self._begin("")
        self._rejoin(self._outside)
        position = self._mark_position()
        self._catch_up(position)
        with self._server.connect(_DATABASE) as connection:
            found, problems = compare_published(
                connection, PUBLICATION, spark, DeltaDestination(self.directory / "lake")
            )
        for each in found:
            self._say(f"{each.table}: {each.source_rows} rows, {'' if each.equal else 'NOT '}equal")
        assert self._archive is not None
        problems += self._archive.judge()
        problems += [f"{path} was left" for path in (self.directory / "journal/copies").glob("*")]
        if problems:
            raise CampaignFailed("; ".join(problems))
        return found

    @property
    def changes(self) -> Counter[str]:
        """What the journal has held, by operation, as far as it was judged."""
        return self._archive.changes if self._archive else Counter()

    def _work(self) -> None:
        if self._workload is None:
            seed = self.chance.randrange(2**32)
            self._workload = Workload(
                self._server.dsn(_DATABASE),
                seed=seed,
                migrated=self._migrated,
                republished=self._republished,
            ).start()

    def _rest(self) -> None:
        if self._workload is not None:
            resting, self._workload = self._workload, None
            resting.stop()
            self.transactions += resting.counts

    def _mark_position(self) -> Lsn:
        """Where the source is. A change after it brings the journal past it."""
        with self._server.connect(_DATABASE) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            connection.execute("INSERT INTO plain (b) VALUES ('the end')")
        assert row is not None
        return Lsn.parse(row[0])

    def _catch_up(self, position: Lsn) -> None:
        def caught_up() -> bool:
            status = self._driver.status
            self._require_no_standstill()
            return status is not None and all(
                table["state"] == "ready"
                and table["position"]
                and Lsn.parse(table["position"]) > position
                for table in status["tables"]
            )

        try:
            what = f"every table to reach {position}"
            self._wait(lambda: caught_up() and self._follows_publication(), what)
            for _ in range(2):
                # The first may be older than the terms that were found to be followed.
                self._driver.forget_status()
                self._wait(caught_up, what)
        except _LifeOver:
            code = self._driver.exit_code
            raise CampaignFailed(f"the driver ended with {code} while it caught up") from None

    def _follows_publication(self) -> bool:
        """Whether the pipeline has those tables that are published, on the terms of now."""
        status = self._driver.status or {"tables": []}
        with self._server.connect(_DATABASE) as connection:
            return follows_publication(
                {table["name"] for table in status["tables"]},
                connection,
                PUBLICATION,
                self.directory / "journal",
            )

    def _say(self, what: str) -> None:
        self._tell(f"{time.monotonic() - self._began:7.1f} s  {what}")
