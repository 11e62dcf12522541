"""Writers that are hard on tables that are hard to replicate (see `hard_tables`).

Unlike the demo's shoppers, these writers live through crashes of the server.
The seed fixes what each writer tries; what two writers do to the same row is
settled by Postgres.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import psycopg

from penstock.schema import TableName
from tests.campaigns.hard_tables import (
    LARGE,
    SCHEMA,
    STATEMENTS,
    TABLES,
    TRUNCATES,
    Chance,
    Statement,
)
from tests.campaigns.migrations import Migrator
from tests.campaigns.publishing import Publisher

PUBLICATION = "crash_pub"

# A row that somebody else moves to another partition cannot be locked, for one.
_UNDONE = (
    psycopg.IntegrityError,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)

_MIGRATION_PAUSE = 300
_PUBLISHING_PAUSE = 80
_TRUNCATE_SHARE = 1 / 400
_LARGE_SHARE = 1 / 100
_ROLLBACK_SHARE = 0.1
_SAVEPOINT_SHARE = 0.4


def create(
    connection: psycopg.Connection[Any],
    published: Sequence[TableName] = TABLES,
    rounds: int = 60,
) -> None:
    """Create all tables, change each so many times, and publish some of them."""
    connection.execute(SCHEMA.encode())
    names = ", ".join(table.quoted for table in published)
    connection.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {names}"
        " WITH (publish_via_partition_root = true)".encode()
    )
    chance = Chance(0)
    for statements in STATEMENTS.values():
        for _ in range(rounds):
            _attempt(connection, statements[0], chance)


class Workload:
    """Writers that change the tables until `stop`; a context manager that does both.

    `migrated` are tables that change their shape meanwhile, `republished` such that are
    published on other terms. `counts` says how many transactions were committed, rolled
    back by choice, undone by a conflict, and lost with the server; and how many changed
    a table's shape, or how it is published.
    """

    def __init__(
        self,
        dsn: str,
        *,
        writers: int = 3,
        pause: float = 0.06,
        seed: int = 0,
        migrated: Sequence[TableName] = (),
        republished: Sequence[TableName] = (),
    ) -> None:
        self._dsn = dsn
        self._pause = pause
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._failure: Exception | None = None
        self.counts: Counter[str] = Counter()
        tasks = [partial(self._write, chance=Chance(f"{seed}/{n}")) for n in range(writers)]
        if migrated:
            migrator = Migrator(Chance(f"{seed}/migrator"), migrated)
            tasks.append(
                partial(self._alter, migrator.alter, pause=_MIGRATION_PAUSE, outcome="altered")
            )
        if republished:
            publisher = Publisher(Chance(f"{seed}/publisher"), PUBLICATION, republished)
            tasks.append(
                partial(
                    self._alter, publisher.change, pause=_PUBLISHING_PAUSE, outcome="republished"
                )
            )
        self._threads = [
            threading.Thread(target=self._run, args=(task,), daemon=True) for task in tasks
        ]

    def start(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Let running transactions end, and return when all have. Raises what a writer raised."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        """Raise what a writer raised, if one did."""
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self, task: Callable[[psycopg.Connection[Any]], None]) -> None:
        try:
            while not self._stop.wait(self._pause):
                try:
                    with psycopg.connect(self._dsn, autocommit=True) as connection:
                        task(connection)
                except (psycopg.OperationalError, psycopg.Rollback):
                    # With the server, which will be back. A rollback that the lost
                    # connection could not do comes out as it was raised.
                    self._count("lost")
        except Exception as error:
            self._failure = error

    def _write(self, connection: psycopg.Connection[Any], chance: Chance) -> None:
        while not self._stop.wait(self._pause * 2 * chance.random()):
            self._count(_transaction(connection, chance))

    def _alter(
        self,
        alter: Callable[[psycopg.Connection[Any]], None],
        connection: psycopg.Connection[Any],
        *,
        pause: float,
        outcome: str,
    ) -> None:
        while not self._stop.wait(pause * self._pause):
            try:
                alter(connection)
            except _UNDONE:
                self._count("undone")
            else:
                self._count(outcome)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.counts[outcome] += 1


def _transaction(connection: psycopg.Connection[Any], chance: Chance) -> str:
    outcome = "rolled back"
    try:
        with connection.transaction() as transaction:
            if chance.random() < _TRUNCATE_SHARE:
                connection.execute(f"TRUNCATE {chance.choice(TRUNCATES)}".encode())
            for _ in range(chance.choice([1, 1, 2, 3, 6])):
                _step(connection, chance)
            if chance.random() < _ROLLBACK_SHARE:
                raise psycopg.Rollback(transaction)
            outcome = "committed"
    except _UNDONE:
        outcome = "undone"
    return outcome


def _step(connection: psycopg.Connection[Any], chance: Chance) -> None:
    large = chance.random() < _LARGE_SHARE
    statements = LARGE if large else STATEMENTS[chance.choice(list(STATEMENTS))]
    statement = chance.choices(statements, [each.weight for each in statements])[0]
    if chance.random() >= _SAVEPOINT_SHARE:
        connection.execute(statement.sql.encode(), statement.draw(chance))
    else:
        _attempt(connection, statement, chance, chance.random() < _SAVEPOINT_SHARE)


def _attempt(
    connection: psycopg.Connection[Any],
    statement: Statement,
    chance: Chance,
    rolled_back: bool = False,
) -> None:
    """Within a savepoint, or a transaction of its own: a conflict undoes only this."""
    try:
        with connection.transaction() as savepoint:
            connection.execute(statement.sql.encode(), statement.draw(chance))
            if rolled_back:
                raise psycopg.Rollback(savepoint)
    except psycopg.IntegrityError:
        pass
