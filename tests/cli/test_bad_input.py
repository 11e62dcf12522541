"""Bad input: one clear error with the remedy, the right exit code, and nothing half-made.

Each case must be the same for `run`, which would make a slot, a journal and a
lake, and for `doctor`, which reports it as a finding.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import EmbeddedPostgres
from tests.cli.command import Outcome, Penstock, WriteConfig
from tests.conftest import Database

SHOP = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE PUBLICATION shop_pub FOR TABLE customers;
"""


@pytest.fixture
def shop(database: Database) -> Iterator[Database]:
    with database.connect() as connection:
        connection.execute(SHOP)
    yield database
    with database.connect() as connection:
        connection.execute("DROP ROLE IF EXISTS clerk")


@pytest.fixture(scope="module")
def tcp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that asks for passwords over TCP."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("tcp"), listen_tcp=True) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE teller LOGIN REPLICATION PASSWORD 'right'")
            connection.execute(SHOP)
        rules = server.data / "pg_hba.conf"
        rules.write_text("host all teller all scram-sha-256\n" + rules.read_text())
        with server.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        yield server


def expect_refusal(
    penstock: Penstock, outcome: Outcome, code: int, *, problem: str, remedy: str
) -> None:
    assert outcome.code == code, outcome.stderr
    assert len(outcome.errors) == 1, outcome.stderr
    assert problem in outcome.errors[0]
    assert len(outcome.hints) == 1
    assert remedy in outcome.hints[0]
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout == ""
    assert penstock.files() == set(), "something half-made was left behind"


def slots(database: Database) -> list[str]:
    with database.connect() as connection:
        query = "SELECT slot_name FROM pg_replication_slots WHERE database = %s"
        return [name for (name,) in connection.execute(query, [database.name])]


# The source


@pytest.mark.parametrize("command", ["run", "receive"])
def test_a_wrong_host(
    penstock: Penstock, write_config: WriteConfig, shop: Database, command: str
) -> None:
    config = write_config(shop.dsn, pg_connection={"host": "no-such-host.invalid"})
    expect_refusal(
        penstock, penstock(command, config), 3, problem="no-such-host.invalid", remedy="host"
    )


def test_a_wrong_port(penstock: Penstock, write_config: WriteConfig, shop: Database) -> None:
    config = write_config(shop.dsn, pg_connection={"host": "127.0.0.1", "port": 1})
    expect_refusal(penstock, penstock("run", config), 3, problem="port 1", remedy="port")


@pytest.mark.parametrize("command", ["run", "receive"])
def test_a_wrong_password(
    penstock: Penstock, write_config: WriteConfig, tcp_server: EmbeddedPostgres, command: str
) -> None:
    wrong = {"user": "teller", "password": "s3cret-but-wrong"}
    config = write_config(tcp_server.dsn(tcp=True), pg_connection=wrong)
    outcome = penstock(command, config)
    expect_refusal(penstock, outcome, 3, problem='role "teller"', remedy="password")
    assert "s3cret-but-wrong" not in outcome.stderr


@pytest.mark.parametrize("command", ["run", "receive"])
@pytest.mark.parametrize("password", ["s3cr@etpw", "s3cr/etpw"])
def test_a_password_that_is_not_encoded(
    penstock: Penstock, write_config: WriteConfig, command: str, password: str
) -> None:
    uri = f"postgresql://teller:{password}@127.0.0.1:1/shop"
    outcome = penstock(command, write_config("", pg_connection={"uri": uri}))
    expect_refusal(penstock, outcome, 2, problem="pg_connection.uri", remedy="percent-encoded")
    assert "s3cr" not in outcome.stderr
    assert "etpw" not in outcome.stderr


@pytest.mark.parametrize("command", ["run", "receive"])
def test_a_missing_publication(
    penstock: Penstock, write_config: WriteConfig, shop: Database, command: str
) -> None:
    config = write_config(shop.dsn, publication_name="ship_pub")
    expect_refusal(
        penstock,
        penstock(command, config),
        3,
        problem="publication ship_pub: does not exist",
        remedy='CREATE PUBLICATION "ship_pub"',
    )
    assert slots(shop) == []


def test_wal_level_not_logical(
    penstock: Penstock, write_config: WriteConfig, tmp_path: Path
) -> None:
    with EmbeddedPostgres(tmp_path / "pg", settings={"wal_level": "replica"}) as server:
        with server.connect() as connection:
            connection.execute(SHOP)
        config = write_config(server.dsn())
        expect_refusal(
            penstock,
            penstock("run", config),
            3,
            problem="wal_level: is replica",
            remedy="ALTER SYSTEM SET wal_level = 'logical';",
        )


@pytest.mark.parametrize("command", ["run", "receive"])
def test_no_right_to_replicate(
    penstock: Penstock, write_config: WriteConfig, shop: Database, command: str
) -> None:
    with shop.connect() as connection:
        connection.execute("CREATE ROLE clerk LOGIN; GRANT SELECT ON customers TO clerk")
    try:
        expect_refusal(
            penstock,
            penstock(command, write_config(shop.dsn, pg_connection={"user": "clerk"})),
            3,
            problem="has no right to replicate",
            remedy='ALTER ROLE "clerk" REPLICATION;',
        )
        assert slots(shop) == []
    finally:
        with shop.connect() as connection:
            connection.execute("DROP OWNED BY clerk")


@pytest.mark.parametrize("command", ["run", "receive"])
def test_a_slot_in_use(
    penstock: Penstock, write_config: WriteConfig, shop: Database, tmp_path: Path, command: str
) -> None:
    with shop.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('penstock_shop', 'pgoutput')")
    receiver = subprocess.Popen(
        [
            *[shop.server.bin("pg_recvlogical"), "-d", shop.dsn, "--slot", "penstock_shop"],
            *["--start", "-f", "/dev/null", "-o", "proto_version=1"],
            *["-o", "publication_names=shop_pub"],
        ]
    )
    try:
        with shop.connect() as connection:
            query = "SELECT active FROM pg_replication_slots WHERE slot_name = 'penstock_shop'"
            while connection.execute(query).fetchone() != (True,):
                assert receiver.poll() is None
        expect_refusal(
            penstock,
            penstock(command, write_config(shop.dsn)),
            3,
            problem="slot penstock_shop: is in use",
            remedy="pg_terminate_backend",
        )
    finally:
        receiver.terminate()
        receiver.wait()


@pytest.mark.parametrize("command", ["run", "receive"])
def test_a_table_without_a_key(
    penstock: Penstock, write_config: WriteConfig, shop: Database, command: str
) -> None:
    with shop.connect() as connection:
        connection.execute("CREATE TABLE notes (text text)")
        connection.execute("ALTER PUBLICATION shop_pub ADD TABLE notes")
    expect_refusal(
        penstock,
        penstock(command, write_config(shop.dsn)),
        3,
        problem="table public.notes: has no usable replica identity",
        remedy='ALTER TABLE "public"."notes" REPLICA IDENTITY FULL;',
    )
    assert slots(shop) == []


def test_several_things_at_once_are_one_error_that_lists_them(
    penstock: Penstock, write_config: WriteConfig, shop: Database
) -> None:
    with shop.connect() as connection:
        connection.execute("CREATE TABLE notes (text text); CREATE TABLE jots (text text)")
        connection.execute("ALTER PUBLICATION shop_pub ADD TABLE notes, jots")
    outcome = penstock("run", write_config(shop.dsn))
    assert outcome.code == 3
    assert len(outcome.errors) == 1
    assert "public.notes" in outcome.stderr
    assert "public.jots" in outcome.stderr
    assert slots(shop) == []


# This machine


@pytest.mark.parametrize("command", ["run", "receive"])
def test_an_unwritable_journal_directory(
    penstock: Penstock, write_config: WriteConfig, shop: Database, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").touch()
    config = write_config(shop.dsn, journal={"location": str(tmp_path / "file" / "journal")})
    expect_refusal(
        penstock,
        penstock(command, config),
        4,
        problem="the journal directory",
        remedy="journal.location",
    )
    assert slots(shop) == []


def test_an_unwritable_lake(
    penstock: Penstock, write_config: WriteConfig, shop: Database, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    config = write_config(shop.dsn, destination={"root": str(tmp_path / "file" / "lake")})
    expect_refusal(
        penstock,
        penstock("run", config),
        4,
        problem="the lake directory",
        remedy="destination.root",
    )
    assert slots(shop) == []


@pytest.mark.parametrize("root", ["journal", "./journal/lake"])
def test_a_lake_in_the_journal(
    penstock: Penstock, write_config: WriteConfig, shop: Database, root: str
) -> None:
    outcome = penstock("run", write_config(shop.dsn, destination={"root": root}))
    expect_refusal(penstock, outcome, 2, problem="in the journal's", remedy="destination.root")
    assert slots(shop) == []


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite:///no/such/directory/store.db", "no directory"),
        ("postgresql://nobody@127.0.0.1:1/none", "127.0.0.1:1"),
    ],
)
def test_a_store_that_cannot_be_reached(
    penstock: Penstock, write_config: WriteConfig, shop: Database, url: str, problem: str
) -> None:
    config = write_config(shop.dsn, store={"url": url})
    outcome = penstock("run", config)
    assert outcome.code == 4
    assert len(outcome.errors) == len(outcome.hints) == 1
    assert problem in outcome.errors[0]
    assert penstock.files() == set()
    assert slots(shop) == []


@pytest.mark.parametrize("java_home", [None, "/nowhere"])
def test_no_java(
    penstock: Penstock,
    write_config: WriteConfig,
    shop: Database,
    tmp_path: Path,
    java_home: str | None,
) -> None:
    env = {"PATH": str(tmp_path), "JAVA_HOME": java_home or ""}
    outcome = penstock("run", write_config(shop.dsn), env=env)
    expect_refusal(penstock, outcome, 2, problem="no Java", remedy="JDK")
    assert slots(shop) == []


# The configuration


@pytest.mark.parametrize("command", ["receive", "status", "doctor"])
def test_every_command_refuses_a_configuration_that_is_not_there(
    penstock: Penstock, command: str
) -> None:
    outcome = penstock(command, "none.yaml")
    expect_refusal(penstock, outcome, 2, problem="cannot read none.yaml", remedy="penstock init")


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        (None, "cannot read", "penstock init"),
        ("", "holds no settings", "penstock init"),
        ("id: shop\n\tbatch: x\n", "is not valid YAML: line 2", "mend that line"),
        ("id: [shop\n", "is not valid YAML", "mend that line"),
        ("id: shop", "publication_name is missing", "penstock init --stdout"),
        (
            "id: shop\npublication_name: p\npg_connection: {}\nbatch: {max_fil_ms: 3}\n",
            "unknown key batch.max_fil_ms: did you mean max_fill_ms?",
            "penstock init --stdout",
        ),
        (
            "id: shop\npublication_name: p\npg_conection: {}\n",
            "unknown key pg_conection: did you mean pg_connection?",
            "penstock init --stdout",
        ),
        (
            "id: shop\npublication_name: p\npg_connection: {password: '${NO_SUCH_NAME}'}\n",
            "${NO_SUCH_NAME}, which is not set",
            "export NO_SUCH_NAME",
        ),
        ("id: shop\non: x\n", "line 2, column 1: YAML takes the key on", "put it in quotes"),
    ],
)
def test_a_broken_configuration(
    penstock: Penstock, text: str | None, problem: str, remedy: str
) -> None:
    path = penstock.directory / "penstock.yaml"
    if text is not None:
        path.write_text(text)
    outcome = penstock("run", path)
    expect_refusal(penstock, outcome, 2, problem=problem, remedy=remedy)
