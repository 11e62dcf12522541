"""The server that is measured against, and what is done to it."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.measure import timed
from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.schema import Lsn
from penstock.testing import EmbeddedPostgres
from penstock.testing.postgres import wait_for

COLUMNS = (
    "id bigint PRIMARY KEY, a int, b int, d double precision, n numeric(12,2),"
    " s text, ts timestamptz, f boolean"
)
ROWS = (
    "SELECT g, g %% 1000, (g * 7) %% 100000, g * 0.37, (g %% 1000000) / 100.0,"
    " lpad(g::text, 20, 'x'), now(), g %% 2 = 0"
    " FROM generate_series(%s::bigint, %s::bigint) g"
)


@dataclass(frozen=True)
class Source:
    """One database of the server, with tables that are published: `t`, or several."""

    server: EmbeddedPostgres
    name: str
    directory: Path
    tables: tuple[str, ...] = ("t",)

    def connect(self) -> psycopg.Connection[Any]:
        return self.server.connect(self.name)

    @property
    def connection(self) -> PgConnection:
        return PgConnection(uri=self.server.dsn(self.name))

    def config(self, **settings: Any) -> PipelineConfig:
        return PipelineConfig(
            id=self.name,
            publication_name="pub",
            pg_connection=self.connection,
            journal=JournalConfig(location=str(self.directory / "journal")),
            **settings,
        )

    def position(self) -> Lsn:
        with self.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def fill(self, rows: int, start: int = 0, table: str = "t") -> None:
        """Rows in one statement, vacuumed, as a table that has been there for a while."""
        with self.connect() as connection:
            connection.execute(f"INSERT INTO {table} {ROWS}".encode(), [start, start + rows - 1])
            connection.execute(f"VACUUM ANALYZE {table}".encode())

    def insert(self, rows: int, per_transaction: int = 1000) -> int:
        """How many changes that was."""
        with self.connect() as connection:
            for start in range(0, rows, per_transaction):
                connection.execute(f"INSERT INTO t {ROWS}", [start, start + per_transaction - 1])
        return rows

    def mixed_changes(self, rows: str = ROWS) -> int:
        """500k inserts, 300k updates, 100k deletes on 500k keys, mixed: 900k changes.

        Updates and deletes strike live keys, in transactions of up to 1,000 changes.
        Several tables take their turns.
        """
        numbers = random.Random(7)
        live: dict[str, list[int]] = {table: [] for table in self.tables}
        changes = 0
        with self.connect() as connection:
            for low in range(0, 500_000 // len(live), 1000):
                for table, keys in live.items():
                    connection.execute(f"INSERT INTO {table} {rows}".encode(), [low, low + 999])
                    keys.extend(range(low, low + 1000))
                    update = f"UPDATE {table} SET a = a + 1, s = s || 'u', ts = now()"
                    changed = connection.execute(
                        f"{update} WHERE id = ANY(%s)".encode(), [numbers.sample(keys, 600)]
                    )
                    doomed = [_pop(keys, numbers.randrange(len(keys))) for _ in range(200)]
                    gone = connection.execute(
                        f"DELETE FROM {table} WHERE id = ANY(%s)".encode(), [doomed]
                    )
                    changes += 1000 + changed.rowcount + gone.rowcount
        return changes

    def reference_slot(self) -> None:
        with self.connect() as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('reference','pgoutput')")

    def drain_reference(self) -> float:
        """How long `pg_recvlogical` takes to write the slot to a file."""
        target = self.directory / "reference.out"
        command = [
            str(self.server.bin("pg_recvlogical")),
            *("-h", self.server.host, "-p", str(self.server.port), "-U", "postgres"),
            *("-d", self.name, "-S", "reference", "--start", "--no-loop", "-f", str(target)),
            *("-o", "proto_version=1", "-o", "publication_names=pub"),
            *("--endpos", str(self.position())),
        ]
        with timed() as timing:
            subprocess.run(command, check=True)
        target.unlink()
        return timing.seconds


def _pop(numbers: list[int], place: int) -> int:
    """Take one out without keeping the order."""
    numbers[place], numbers[-1] = numbers[-1], numbers[place]
    return numbers.pop()


@contextmanager
def fresh_source(
    server: EmbeddedPostgres,
    directory: Path,
    name: str,
    tables: tuple[str, ...] = ("t",),
    columns: str = COLUMNS,
) -> Iterator[Source]:
    """A new database, dropped afterwards with everything that was made for it."""
    place = directory / name
    place.mkdir()
    server.create_database(name)
    try:
        source = Source(server, name, place, tables)
        with source.connect() as connection:
            for table in tables:
                connection.execute(f"CREATE TABLE {table} ({columns})".encode())
            connection.execute(f"CREATE PUBLICATION pub FOR TABLE {', '.join(tables)}".encode())
        yield source
    finally:
        _drop(server, name)
        shutil.rmtree(place)


def _drop(server: EmbeddedPostgres, name: str) -> None:
    with server.connect("postgres") as connection:

        def idle() -> bool:
            row = connection.execute(
                "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active", [name]
            ).fetchone()
            return row == (0,)

        wait_for(idle)
    server.drop_database(name)
