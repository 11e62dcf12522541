"""Several sessions of one database, driven by a schedule instead of by threads.

What each session does, and in which order their transactions begin and end, is a list, so
that what has failed can be done again, and with less. A statement that would wait for another
session's lock gives up at once, and so does one that Postgres refuses: it is undone alone,
and leaves an aborted subtransaction in the WAL.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from hypothesis import strategies as st

Chance = random.Random
Connection = psycopg.Connection[Any]


@dataclass(frozen=True)
class Step:
    """What a session does next; `seed` decides everything that `verb` leaves open."""

    session: int
    verb: str
    seed: int

    def __repr__(self) -> str:
        return f"Step({self.session}, {self.verb!r}, {self.seed})"


def steps(verbs: Mapping[str, int], sessions: int, longest: int) -> st.SearchStrategy[list[Step]]:
    """Schedules; `verbs` says how often each comes beside the others.

    A number is all that is drawn, and it makes the schedule: hypothesis likes to repeat
    itself, which makes for a good many statements that do nothing.
    """
    return st.integers(0, 2**62).map(lambda n: made_of(n, verbs, sessions, longest))


def made_of(number: int, verbs: Mapping[str, int], sessions: int, longest: int) -> list[Step]:
    chance = Chance(number)
    length = chance.randint(longest // 3, longest)
    chosen = chance.choices(list(verbs), list(verbs.values()), k=length)
    return [Step(chance.randrange(sessions), verb, chance.randrange(2**32)) for verb in chosen]


class Session:
    """One connection, its transaction and its savepoints."""

    def __init__(self, dsn: str) -> None:
        self.connection: Connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute("SET lock_timeout = '2ms'")
        self._savepoints = 0

    @property
    def idle(self) -> bool:
        return self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def begin(self) -> None:
        if self.idle:
            self.connection.execute("BEGIN")
            self._savepoints = 0

    def end(self, how: str) -> None:
        if not self.idle:
            self.connection.execute(how.encode())

    def savepoint(self) -> None:
        if not self.idle:
            self._savepoints += 1
            self.connection.execute(f"SAVEPOINT s{self._savepoints}".encode())

    def leave_savepoint(self, how: str) -> None:
        if not self.idle and self._savepoints:
            self.connection.execute(f"{how} SAVEPOINT s{self._savepoints}".encode())
            self._savepoints -= 1

    def attempt(self, statement: str) -> str | None:
        """Run it; None when it was done, else why it was not."""
        try:
            if self.idle:
                self.connection.execute(statement.encode())
            else:
                with self.connection.transaction():
                    self.connection.execute(statement.encode())
        except psycopg.Error as error:
            return str(error).splitlines()[0]
        return None

    def fetch(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """What the catalog says, in this session's transaction if it has one."""
        return self.connection.execute(query.encode(), parameters).fetchall()


@contextmanager
def opened(dsn: str, count: int) -> Iterator[list[Session]]:
    sessions = [Session(dsn) for _ in range(count)]
    try:
        yield sessions
    finally:
        for session in sessions:
            session.connection.close()


class Schedule:
    """Runs the steps that every schedule has; `statements` has those of the others.

    `log` has what was run, for who reads a failure.
    """

    def __init__(self, sessions: list[Session], log: list[str]) -> None:
        self.sessions = sessions
        self.log = log

    def run(self, step: Step) -> None:
        session, number = self.sessions[step.session], step.session
        match step.verb:
            case "begin":
                session.begin()
            case "commit":
                session.end("COMMIT")
            case "rollback":
                session.end("ROLLBACK")
            case "savepoint":
                session.savepoint()
            case "rollback to":
                session.leave_savepoint("ROLLBACK TO")
            case "release":
                session.leave_savepoint("RELEASE")
            case "receive" | "settle" | "restart":
                pass  # for who watches the pipeline
            case verb:
                for statement in self.statements(session, verb, Chance(step.seed)):
                    refused = session.attempt(statement)
                    self.log.append(
                        f"{number}: {statement}" + (f" -- {refused}" if refused else "")
                    )
                return
        self.log.append(f"{number}: {step.verb}")

    def statements(self, session: Session, verb: str, chance: Chance) -> Iterator[str]:
        raise NotImplementedError

    def commit_all(self) -> None:
        for number, session in enumerate(self.sessions):
            if not session.idle:
                session.end("COMMIT")
                self.log.append(f"{number}: commit")
