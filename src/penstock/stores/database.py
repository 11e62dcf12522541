"""Where a `SqlStore` keeps its tables: an SQLite file or a Postgres database.

A `Database` turns the URL a user gave into short transactions, and whatever goes
wrong in one into a `PenstockError` with a hint. It is the only place that knows
how the two dialects differ in connecting, locking and durability:

- A commit that returned survives SIGKILL and loss of power. SQLite runs in WAL
  mode (readers and the writer do not wait for each other) with `synchronous =
  FULL`; on Postgres a role's `synchronous_commit = off` is overruled.
- A writing transaction takes its lock when it begins, so that it reads what it
  is about to change, and two processes follow each other instead of failing.

A Postgres URL (or libpq's `key=value` form) goes to libpq as it is, so everything
libpq knows works (sockets, several hosts, service files), and no part of
SQLAlchemy ever holds the password.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool
from tenacity import retry, retry_if_exception, stop_after_delay, wait_random

from penstock.errors import ErrorKind, PenstockError, named_cause
from penstock.postgres.connection import probes
from penstock.stores.tables import POSTGRES_SCHEMA

LOCK_TIMEOUT_SECONDS = 30
_POSTGRES_SCHEMES = ("postgresql+psycopg", "postgresql", "postgres")
_SECRETS = ("password", "sslpassword")


class Database:
    """`place` names it for people, without secrets. Nothing is opened before it is used.

    One connection serves the whole store, because a store does one thing at a
    time; it is made again when it breaks.
    """

    def __init__(self, url: str) -> None:
        self._secrets: list[SecretStr] = []
        scheme, separator, rest = url.partition("://")
        scheme = scheme.lower()
        if scheme in _POSTGRES_SCHEMES:
            authority, _, path = rest.partition("?")[0].partition("/")
            if "@" in path or authority.count("@") > 1:
                # libpq would take a part of the password for a host and tell it to everybody.
                raise _invalid_postgres_url()
            self._engine = self._postgres(f"postgresql://{rest}")
        elif not separator and "=" in url:
            self._engine = self._postgres(url)
        elif scheme in ("sqlite", "sqlite+pysqlite"):
            self._engine = self._sqlite(url)
        else:
            raise PenstockError(
                ErrorKind.CONFIG,
                "the store's URL is neither SQLite nor Postgres",
                hint="write sqlite:///penstock.db or postgresql://user@host/dbname",
            )
        self.is_postgres = self._engine.dialect.name == "postgresql"

    def close(self) -> None:
        self._engine.dispose()

    def exists(self) -> bool:
        """Whether there is a place to look into. Only a file can be missing altogether."""
        try:
            return self.is_postgres or self._file is None or self._file.exists()
        except PermissionError:
            return True  # opening it will tell what is wrong

    def require_creatable(self) -> None:
        """Raise if the file does not exist and cannot be created; leaves no trace."""
        directory = (self._file or Path()).absolute().parent
        if not directory.is_dir():
            raise PenstockError(
                ErrorKind.STORE,
                f"the store {self.place} cannot be created: there is no directory {directory}",
                hint=f"create {directory}, or change store.url",
            )
        try:
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise PenstockError(
                ErrorKind.STORE,
                f"the store {self.place} cannot be created: {error.strerror or error}",
                hint=f"make {directory} writable for this user, or change store.url",
            ) from error

    @contextmanager
    def read(self, what: str) -> Iterator[Connection]:
        """A transaction that takes no lock: it waits for no writer, and none waits for it."""
        with self._told(f"cannot read {what} from"), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def write(self, what: str) -> Iterator[Connection]:
        """A transaction that is durable when the block has ended, or never happened."""
        with (
            self._told(f"cannot write {what} to"),
            self._engine.connect().execution_options(begin="BEGIN IMMEDIATE") as connection,
            connection.begin(),
        ):
            if self.is_postgres:
                connection.execute(_SAFE_COMMIT)
            yield connection

    @contextmanager
    def decoding(self, what: str, pipeline_id: str) -> Iterator[None]:
        """While what was read is made sense of."""
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            raise PenstockError(
                ErrorKind.STORE,
                f"{what} of pipeline {pipeline_id} in the store {self.place} "
                f"cannot be understood: {named_cause(error)}",
                hint="it was changed by hand or written by a newer release; "
                "restore the store, or upgrade penstock",
            ) from error

    def _sqlite(self, url: str) -> Engine:
        try:
            given = make_url(url)
        except ArgumentError:
            given = None
        if given is None or given.query or given.host:
            raise PenstockError(
                ErrorKind.CONFIG,
                f"{url} is not the URL of an SQLite file",
                hint="write sqlite:///relative/path.db or sqlite:////absolute/path.db, and no more",
            )
        in_memory = given.database in (None, "", ":memory:")
        # Absolute from the start: a later chdir must not lead to another file.
        self._file = None if in_memory else Path(given.database or "").absolute()
        self.place = f"sqlite:///{self._file or ':memory:'}"
        engine = create_engine(
            URL.create("sqlite", database=str(self._file or ":memory:")),
            hide_parameters=True,
            **({"poolclass": StaticPool} if in_memory else _POOL_OF_ONE),
            connect_args={"timeout": LOCK_TIMEOUT_SECONDS, "check_same_thread": False},
        )

        @event.listens_for(engine, "connect")
        def _configure(connection: sqlite3.Connection, _: Any) -> None:
            connection.isolation_level = None  # sqlite3 must not begin transactions by itself
            _switch_to_wal(connection)
            connection.execute("PRAGMA synchronous = FULL")

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            options = connection.get_execution_options()
            connection.exec_driver_sql(options.get("begin", "BEGIN"))

        return engine

    def _postgres(self, conninfo: str) -> Engine:
        self._file = None
        try:
            parameters = conninfo_to_dict(conninfo)
        except psycopg.Error:
            # libpq quotes the part it stumbled over, which may be the password.
            raise _invalid_postgres_url() from None
        if not str(parameters.get("port", 5432)).replace(",", "").isdecimal():
            raise _invalid_postgres_url()
        self._secrets = [
            SecretStr(str(parameters[name])) for name in _SECRETS if parameters.get(name)
        ]
        self.place = "postgresql://{user}{host}{port}/{dbname}".format(
            user=f"{parameters['user']}@" if parameters.get("user") else "",
            host=parameters.get("host", ""),
            port=f":{parameters['port']}" if parameters.get("port") else "",
            dbname=parameters.get("dbname", ""),
        )
        engine = create_engine(
            "postgresql+psycopg://",
            hide_parameters=True,
            **_POOL_OF_ONE,
            pool_pre_ping=True,
            connect_args={
                "application_name": "penstock store",
                "prepare_threshold": None,  # a pooler may hand each transaction another server
                **({} if "connect_timeout" in parameters else {"connect_timeout": 10}),
                **probes(parameters),
            },
            execution_options={"schema_translate_map": {None: POSTGRES_SCHEMA}},
        )

        @event.listens_for(engine, "do_connect")
        def _connect(_: Any, __: Any, arguments: list[Any], ___: Any) -> None:
            arguments[:] = [conninfo]

        return engine

    @contextmanager
    def _told(self, trouble: str) -> Iterator[None]:
        """Whatever the driver raises inside, as one error with a hint and no secret."""
        try:
            yield
        except DBAPIError as error:
            told = "; ".join(line.strip() for line in str(error.orig).splitlines() if line.strip())
            for secret in self._secrets:
                told = told.replace(secret.get_secret_value(), "***")
            raise PenstockError(
                ErrorKind.STORE,
                f"{trouble} the store {self.place}: {told}",
                hint=self._hint(told),
            ) from error

    def _hint(self, told: str) -> str:
        if self._file is not None:
            with suppress(PermissionError):
                if not self._file.parent.is_dir():
                    return f"create the directory {self._file.parent}, or change the store's URL"
                if self._file.is_dir():
                    return f"{self._file} is a directory; the store's URL must name a file"
        return next(
            (hint for sign, hint in _HINTS.items() if sign in told),
            "look at the database's own log"
            if self.is_postgres
            else f"check that the file and its directory can be written: {self._file}",
        )


_POOL_OF_ONE: dict[str, Any] = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0}

# Both last for the transaction only.
_SAFE_COMMIT = text(
    f"SELECT set_config('lock_timeout', '{LOCK_TIMEOUT_SECONDS}s', true),"
    " CASE current_setting('synchronous_commit') WHEN 'off'"
    " THEN set_config('synchronous_commit', 'on', true) END"
)

_LOCKED = (
    f"another process has held the store's lock for {LOCK_TIMEOUT_SECONDS} s; stop it, or try again"
)
_HINTS = {
    "database is locked": _LOCKED,
    "lock timeout": _LOCKED,
    "file is not a database": "the store's URL names a file that is not an SQLite database;"
    " move it away or name another",
    "readonly database": "make the store's file and its directory writable",
    "disk is full": "make room on the disk that holds the store",
    "password authentication failed": "mend the user or the password in the store's URL",
    "no password supplied": "put the password into the store's URL, PGPASSWORD or ~/.pgpass",
    "does not exist": "create it, or change the store's URL",
    "permission denied": f"let the store's role create its schema: GRANT CREATE ON DATABASE ... TO"
    f" ..., or create it beforehand: CREATE SCHEMA {POSTGRES_SCHEMA} AUTHORIZATION ...",
    "connection": "check that the store's Postgres runs and can be reached from here",
}


def _is_busy(error: BaseException) -> bool:
    name = getattr(error, "sqlite_errorname", "")
    return isinstance(error, sqlite3.OperationalError) and name.startswith("SQLITE_BUSY")


@retry(
    retry=retry_if_exception(_is_busy),
    stop=stop_after_delay(LOCK_TIMEOUT_SECONDS),
    wait=wait_random(0.005, 0.05),
    reraise=True,
)
def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # When two processes make this switch in a new file at once, SQLite tells one
    # of them that it is busy, at once and whatever its timeout is.
    connection.execute("PRAGMA journal_mode = WAL")


def _invalid_postgres_url() -> PenstockError:
    return PenstockError(
        ErrorKind.CONFIG,
        "the store's Postgres URL is not valid",
        hint="write postgresql://user:password@host:5432/dbname, with special characters "
        "of the password percent-encoded (@ is %40, / is %2F)",
    )
