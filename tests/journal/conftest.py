"""Receivers, in a thread or in a process of their own, and questions to ask of what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.journal.journal import Journal
from penstock.journal.receiver import Receiver
from penstock.pipeline.receiver_process import COMMAND, revealed
from penstock.schema import ZERO_LSN, Lsn, TableSchema
from penstock.testing.postgres import wait_for
from tests.campaigns.replay import journaled_changes, replay


@dataclass
class Running:
    """A receiver under test with its database and its journal."""

    config: PipelineConfig
    connection: psycopg.Connection[Any]
    events: list[dict[str, Any]] = field(default_factory=list)
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self.begin()
        wait_for(lambda: self.error is not None or not self.journal.empty)

    def begin(self) -> None:
        """Start it, whether or not it comes to its slot soon."""
        self._stop.clear()

        def run() -> None:
            try:
                Receiver(self.config, self.events.append).run(self._stop)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        wait_for(lambda: not self._slot_active())

    @contextmanager
    def process(
        self, failpoint: str = "", stderr: int | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """One in a process of its own, as a pipeline starts it."""
        child = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=os.environ | {"PENSTOCK_FAILPOINT": failpoint},
        )
        assert child.stdin is not None
        with child:
            try:
                child.stdin.write(json.dumps(revealed(self.config)).encode() + b"\n")
                child.stdin.flush()
                yield child
            finally:
                child.kill()

    def _slot_active(self) -> bool:
        row = self.connection.execute(
            "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [self.config.slot_name]
        ).fetchone()
        return row is not None and bool(row[0])

    @property
    def journal(self) -> Journal:
        journal = Journal(self.config.journal_path)
        journal.refresh()
        return journal

    def execute(self, statement: str) -> None:
        self.connection.execute(statement.encode())

    def now(self) -> Lsn:
        row = self.connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def catch_up(self) -> Journal:
        """Wait until everything committed so far is in the journal: a marker comes last."""
        self.execute("CREATE TABLE IF NOT EXISTS marker (id bigserial PRIMARY KEY)")
        row = self.connection.execute("INSERT INTO marker DEFAULT VALUES RETURNING id").fetchone()
        assert row is not None
        journal = Journal(self.config.journal_path)

        def there() -> bool:
            journal.refresh()
            if self.error is not None:
                raise self.error
            markers = [s for s in journal.latest_schemas().values() if s.name.name == "marker"]
            return any(
                segment.key_max == row[0]
                for schema in markers
                for flush in journal.pending(schema.id, ZERO_LSN)
                for segment in flush.segments
            )

        wait_for(there)
        return journal

    def schema(self, journal: Journal, name: str) -> TableSchema:
        return next(s for s in journal.latest_schemas().values() if s.name.name == name)

    def changes(self, name: str) -> list[dict[str, Any]]:
        journal = self.catch_up()
        return journaled_changes(journal, self.schema(journal, name).id)

    def assert_replay_equals_source(self, name: str) -> None:
        journal = self.catch_up()
        schema = self.schema(journal, name)
        replayed = replay(journal, schema)
        with psycopg.connect(self.connection.info.dsn, row_factory=psycopg.rows.dict_row) as c:
            rows = c.execute(f"SELECT * FROM {schema.name.quoted}".encode()).fetchall()
        key = [column.name for column in schema.key]
        assert replayed == {tuple(row[k] for k in key): row for row in rows}


StartReceiver = Callable[..., Running]


@pytest.fixture
def receiver(database: Any, tmp_path: Path) -> Iterator[StartReceiver]:
    """Starts a receiver on publication `pub` (all tables) with the settings given."""
    started: list[Running] = []

    def start(**settings: Any) -> Running:
        connection = database.connect()
        connection.execute("SET TimeZone TO UTC")
        exists = connection.execute("SELECT FROM pg_publication WHERE pubname = 'pub'").fetchone()
        if exists is None:
            connection.execute("CREATE PUBLICATION pub FOR ALL TABLES")
        settings.setdefault("journal", JournalConfig(location=str(tmp_path / "journal")))
        settings.setdefault("pg_connection", PgConnection(uri=database.dsn))
        config = PipelineConfig(id=database.name, publication_name="pub", **settings)
        running = Running(config, connection)
        started.append(running)
        running.start()
        return running

    yield start
    for running in started:
        running.stop()
        running.connection.close()
