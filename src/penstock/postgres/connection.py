"""Sessions with Postgres, and what their failures mean.

Every session of ours prints values the same way. What shapes text output is
pinned through libpq's `options`, which the server applies before the first
statement, on replication connections too, and above whatever the role or the
database has set. Beside it stand the limits that would end a long copy half way,
and `row_security = off`, which turns a copy that a policy would silently shorten
into an error.

Nobody outside this room sees a `psycopg.Error`: `connect` and `translate` turn
it into a `PenstockError` whose kind says whether waiting can help. Once a
session exists the server's SQLSTATE decides; before, see `refusals`.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.postgres.connection_string import parsed
from penstock.postgres.refusals import reason, refused
from penstock.schema import Lsn, TableName

Session = psycopg.Connection[tuple[Any, ...]]

SESSION_SETTINGS = {
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
# A server that does not know a setting of `options` lets nobody in at all, so
# what is not as old as the oldest server goes by SET, once its version is known.
_LATER_SETTINGS = {
    "idle_session_timeout": (140000, "0"),
    "transaction_timeout": (170000, "0"),
}

# PGTZ and PGDATESTYLE in the environment travel beside `options` and beat it; a
# connection pooler may drop `options`. The server reports these three, so that
# looking at them costs nothing.
_REPORTED = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
}

_PROBES = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


_HANG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)
"""Unlike readable, it does not mean that there are only some words to be read."""


class WatchedSession(Session):
    """One that another thread can see waiting for the server, and can `abort`."""

    waiting_since: float | None = None

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """psycopg's own: every question goes through it."""
        self.waiting_since = time.monotonic()
        try:
            return super().wait(*arguments, **options)
        finally:
            self.waiting_since = None


def connect(
    connection: PgConnection,
    purpose: str,
    *,
    replication: bool = False,
    autocommit: bool = True,
) -> WatchedSession:
    """Open a session named `penstock_<purpose>` with the pinned settings.

    A replication session speaks the walsender's language: the replication
    commands and plain SQL without parameters, always in autocommit.
    """
    conninfo = _conninfo(connection, purpose, replication=replication)
    try:
        session = WatchedSession.connect(conninfo, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise refused(error, conninfo) from error
    try:
        _pin_the_rest(session)
        session.autocommit = autocommit or replication
    except psycopg.Error as error:
        session.close()
        raise translate(error, "setting up the session") from error
    except BaseException:
        session.close()
        raise
    return session


def abort(session: Session) -> None:
    """End a session that another thread waits in: there the connection is lost."""
    with contextlib.suppress(OSError, psycopg.Error):
        duplicate = socket.socket(fileno=os.dup(session.pgconn.socket))
        with duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


def hung_up(session: Session) -> bool:
    """Whether the server has ended a session, which another thread may be using."""
    poll = select.poll()
    try:
        poll.register(session.pgconn.socket, _HANG_UP)
    except psycopg.Error:
        return True
    return bool(poll.poll(0))


def probes(given: Mapping[str, Any]) -> dict[str, int]:
    """What to add to a connection's parameters to notice in a minute, not in two hours, that
    the network is dead. Nothing where the user says anything of it: they work together, and one
    of ours could undo one of theirs. A service file may say it, and would be overruled."""
    told = given.keys() & {"keepalives", "service", *_PROBES} or "PGSERVICE" in os.environ
    return {} if told else _PROBES


@contextmanager
def translated(doing: str, table: TableName | None = None) -> Iterator[None]:
    """Turn what psycopg raises inside into a `PenstockError`; see `translate`."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, doing, table) from error


def server_version(session: Session) -> int:
    """As libpq numbers it: 160004 for 16.4."""
    return session.info.server_version


def system_identifier(session: Session) -> str:
    """The cluster's identity, which a restored or promoted copy shares and a new one does not."""
    return str(_value(session, "SELECT system_identifier FROM pg_control_system()"))


def in_recovery(session: Session) -> bool:
    """Whether the server is a standby."""
    return bool(_value(session, "SELECT pg_is_in_recovery()"))


def current_wal_lsn(session: Session) -> Lsn:
    """Where the next WAL record will be put: after everything that anyone has done so far."""
    return Lsn.parse(str(_value(session, "SELECT pg_current_wal_insert_lsn()::text")))


def current_flush_lsn(session: Session) -> Lsn:
    """Up to where the WAL is on the server's disk, which is as far as a slot can read."""
    return Lsn.parse(str(_value(session, "SELECT pg_current_wal_flush_lsn()::text")))


def current_timeline(session: Session) -> int:
    """The timeline that the server writes: another one after each promotion."""
    name = _value(session, "SELECT pg_walfile_name(pg_current_wal_flush_lsn())")
    return int(str(name)[:8], 16)


def _value(session: Session, query: str) -> Any:
    with translated("reading from the server"):
        row = session.execute(query.encode()).fetchone()
    assert row is not None, "these queries have one row"
    return row[0]


def _conninfo(connection: PgConnection, purpose: str, *, replication: bool) -> str:
    parameters = connection.parameters()
    in_uri = parsed(parameters.pop("uri", ""))
    if "connect_timeout" in in_uri and "connect_timeout" not in connection.model_fields_set:
        del parameters["connect_timeout"]
    given = in_uri | parameters
    wanted = given.get("options") or os.environ.get("PGOPTIONS")
    pinned = " ".join(f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
    ours = {
        # The last one counts, so what the user wants in addition comes first.
        "options": f"{wanted} {pinned}" if wanted else pinned,
        "application_name": f"penstock_{purpose}"[:63],
        "client_encoding": "UTF8",
        # Of a string made for another program it would turn every session into a walsender's.
        "replication": "database" if replication else None,
    }
    return make_conninfo(**given | probes(given) | ours)


def _pin_the_rest(session: Session) -> None:
    status = session.pgconn.parameter_status
    wrong = {
        name: SESSION_SETTINGS[name]
        for name, expected in _REPORTED.items()
        if status(name.encode()) != expected.encode()
    }
    version = session.info.server_version
    wrong |= {k: v for k, (since, v) in _LATER_SETTINGS.items() if version >= since}
    if wrong:
        session.execute("; ".join(f"SET {k} = {v}" for k, v in wrong.items()).encode())


def take_text_as_it_is(session: Session) -> None:
    """Let a database in SQL_ASCII send text that is not UTF-8.

    It knows of no encoding and would end the stream, for all tables, at the first such
    value. Decoding finds them, and one table stops. For sessions that receive rows only:
    psycopg does not know either what text is then.
    """
    if session.pgconn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        session.pgconn.exec_(b"SET client_encoding = 'SQL_ASCII'")


def translate(error: psycopg.Error, doing: str, table: TableName | None = None) -> PenstockError:
    """What a failed statement means, by its SQLSTATE.

    `doing` says what we were about, as in "reading the publication". DETAIL is
    left out on purpose: that is where Postgres prints row values.
    """
    state = error.sqlstate or ""
    said = shorten(error.diag.message_primary or reason(str(error)))
    kind, hint = _meaning(error, state, said.lower())
    code = f" (SQLSTATE {state})" if state else ""
    return PenstockError(kind, f"{doing} failed: {said}{code}", hint=hint, table=table)


_WAIT = "nothing to do if it passes: it is tried again"
_DAMAGE = "look at the server's log and at its disk; what is damaged has to be restored there"
_BAD_ROWS = (
    "mend the rows at the source, or the publication's row filter if that fails for them; a text"
    " has to have an equivalent in the encoding UTF-8. Then `penstock retry` the table"
)


def _meaning(error: psycopg.Error, state: str, said: str) -> tuple[ErrorKind, str]:
    match state[:2], state:
        case _, "42501":
            return ErrorKind.SOURCE_PRIVILEGE, "`penstock doctor` prints the GRANT that is missing"
        case _, "42P01" | "3F000" | "42703":
            return (
                ErrorKind.SOURCE_SCHEMA,
                "the table has changed or is gone; compare it with the publication",
            )
        case _, "55006":
            return ErrorKind.SOURCE_CONNECTION, "stop the other process that holds it, or wait"
        case _, "53400":
            return ErrorKind.SOURCE_CONFIGURATION, "`penstock doctor` names the setting to raise"
        case _, "58P01":
            return ErrorKind.SOURCE_SLOT, "the WAL that the slot needs is gone: copy again"
        case _, "3D000" | "57P04":
            return ErrorKind.SOURCE_CONFIGURATION, "check pg_connection.dbname"
        case _, "42704" | "42710" | "55000" if "slot" in said:
            return ErrorKind.SOURCE_SLOT, "`penstock doctor` shows what the slot's state is"
        case _, "22023" | "42704" | "55000" | "72000" if "snapshot" in said:
            return ErrorKind.SOURCE_SNAPSHOT, "the copy starts again with a new snapshot"
        case _, "42704" | "55000" | "0A000":
            return ErrorKind.SOURCE_CONFIGURATION, "`penstock doctor` names what is missing"
        case _, "XX000":
            # So a catalog function says that a relation was dropped under it.
            return ErrorKind.SOURCE_SNAPSHOT, _WAIT
        case _, "XX001" | "XX002":
            return ErrorKind.SOURCE_CONFIGURATION, _DAMAGE
        case _, "58030":
            return ErrorKind.SOURCE_CONNECTION, f"{_DAMAGE}; meanwhile it is tried again"
        case "22", _:
            return ErrorKind.DATA_DECODE, _BAD_ROWS
        case (("08" | "40" | "53" | "57"), _):
            return ErrorKind.SOURCE_CONNECTION, _WAIT
        case _, "55P03" | "25P03" | "25P04":
            return ErrorKind.SOURCE_CONNECTION, _WAIT
        case "28", _:
            return ErrorKind.SOURCE_AUTHENTICATION, "check user and password of pg_connection"
        case "", _ if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return ErrorKind.SOURCE_CONNECTION, _WAIT
        case _:
            return ErrorKind.INTERNAL, "this should not happen: please report it with the log"


# Where WAL records end.
#
# `pg_current_wal_insert_lsn()` tells where the next record begins. At the very end
# of a page that is behind the next page's header, 24 bytes further (40 where a
# segment begins) than where the last record ended. What is flushed, sent and
# acknowledged are ends of records, so on an idle server no position of the stream
# would ever reach such a beginning; somebody who waits for it would wait until the
# next thing happens.

_SHORT_HEADER, _LONG_HEADER = 24, 40

_SIZES = """
    SELECT current_setting('wal_block_size')::bigint, setting::bigint
    FROM pg_settings WHERE name = 'wal_segment_size'
"""


def end_of_record(session: Session, next_record: Lsn) -> Lsn:
    """Where the record before the one that would begin at `next_record` ended."""
    with translated("reading the server's WAL settings"):
        row = session.execute(_SIZES).fetchone()
    assert row is not None
    return _end_of_record(next_record, block=row[0], segment=row[1])


def _end_of_record(next_record: Lsn, *, block: int, segment: int) -> Lsn:
    # No record ends right behind a header: there would have to be some of it there.
    position = next_record.value
    if position % segment == _LONG_HEADER:
        return Lsn(position - _LONG_HEADER)
    if position % block == _SHORT_HEADER and position % segment != _SHORT_HEADER:
        return Lsn(position - _SHORT_HEADER)
    return next_record


# Questions to Postgres that end when nobody wants the answer any more.
#
# Whoever waits in libpq, for a lock that somebody has or for the first row that a filter lets
# through, does not see that it is to stop. So a thread beside it looks for that, and asks
# the server to cancel. To hang up would not do: a server that waits for a lock does not notice
# that its client is gone, and would keep its place in the queue, and its snapshot, until then.

_REACH_SECONDS = 5.0
_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 1.0


def cancel(session: Session) -> None:
    """Ask the server to end what another thread waits for; nothing if it cannot be reached."""
    with suppress(psycopg.Error):
        session.cancel_safe(timeout=_REACH_SECONDS)


@contextmanager
def cancelled_when(unwanted: Callable[[], bool], session: Session) -> Iterator[None]:
    """Cancel what the session is at, and what it is at afterwards, once `unwanted` holds.

    Inside the block statements fail then as any that is cancelled. It asks from a thread, and
    again until the block is left: a request that comes between two statements has no effect.
    """
    over = Event()

    def watch() -> None:
        pause = _POLL_SECONDS
        while not over.wait(pause):
            if unwanted():
                pause = _AGAIN_SECONDS
                cancel(session)

    watcher = Thread(target=watch, name="cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
