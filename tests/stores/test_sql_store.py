"""`SqlStore` keeps the store contract in both databases, and what is particular to SQL."""

from __future__ import annotations

import os
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, inspect, text

from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn, TableId
from penstock.states import DataSync, Init, Ready
from penstock.stores import SqlStore, Worker
from penstock.stores import sql as sql_module
from penstock.stores import tables as tables_module
from penstock.stores.database import Database
from penstock.stores.tables import METADATA, MIGRATIONS, POSTGRES_SCHEMA
from penstock.testing import EmbeddedPostgres
from penstock.testing.store_contract import MakeStore, StoreContract
from penstock.testing.store_contract.foundation import (
    CUSTOMERS,
    LAST_LSN,
    ORDERS,
    applied,
    table_schema,
)


class TestSqlStoreOnSqlite(StoreContract):
    @pytest.fixture
    def make_store(self, sqlite_url: str) -> MakeStore:
        return lambda: SqlStore(sqlite_url)


class TestSqlStoreOnPostgres(StoreContract):
    @pytest.fixture
    def make_store(self, postgres_url: str) -> MakeStore:
        return lambda: SqlStore(postgres_url)


@contextmanager
def opened(url: str, pipeline_id: str = "shop", *, create: bool = True) -> Iterator[SqlStore]:
    store = SqlStore(url, create=create)
    store.open(pipeline_id)
    try:
        yield store
    finally:
        store.close()


def execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run statements beside the store, as somebody with a database shell would."""
    database = Database(url)
    try:
        with database.write("a test") as connection:
            if database.is_postgres:
                connection.execute(text(f"SET LOCAL search_path TO {POSTGRES_SCHEMA}, public"))
            for statement in statements:
                result = connection.exec_driver_sql(statement)
            return [tuple(row) for row in result] if result.returns_rows else []
    finally:
        database.close()


# Opening


def test_pipelines_are_open_at_once_on_one_storage(url: str) -> None:
    with opened(url, "shop") as shop, opened(url, "crm") as crm:
        shop.update_table_state(ORDERS, Init())
        crm.update_table_state(ORDERS, DataSync())
        shop.upsert_replication_progress(Worker.apply(ORDERS), Lsn(9))
        assert crm.upsert_replication_progress(Worker.apply(ORDERS), Lsn(3)) == Lsn(3)
        assert shop.load_table_states() == crm.load_table_states() == 1
        assert shop.get_table_state(ORDERS) == Init()
        assert crm.get_table_state(ORDERS) == DataSync()


def test_opening_fills_the_cache(url: str) -> None:
    with opened(url) as store:
        store.update_table_state(ORDERS, Init())
        store.upsert_replication_progress(Worker.apply(ORDERS), Lsn(9))
        store.store_destination_table_metadata(ORDERS, applied())
        store.store_table_schema(table_schema())
    with opened(url) as store:
        assert store.get_table_states() == {ORDERS: Init()}
        assert store.get_replication_progress(Worker.apply(ORDERS)) == Lsn(9)
        assert store.get_destination_table_metadata(ORDERS) == applied()
        assert store.get_table_schemas() == [table_schema()]


def test_a_schema_version_that_another_object_stored_is_found_without_loading(url: str) -> None:
    with opened(url) as reader, opened(url) as writer:
        writer.store_table_schema(table_schema())
        assert reader.get_table_schema(ORDERS, LAST_LSN) == table_schema()


def test_a_store_that_is_not_open_neither_answers_nor_writes(sqlite_url: str) -> None:
    store = SqlStore(sqlite_url)
    calls = [
        store.get_table_states,
        store.load_table_states,
        lambda: store.update_table_state(ORDERS, Init()),
        lambda: store.rollback_table_state(ORDERS),
    ]
    for call in calls:
        with pytest.raises(PenstockError, match="not open") as raised:
            call()
        assert raised.value.kind is ErrorKind.INVALID_STATE


def test_a_store_speaks_for_one_pipeline_at_a_time(sqlite_url: str) -> None:
    with (
        opened(sqlite_url, "shop") as store,
        pytest.raises(PenstockError, match="open for pipeline shop, not crm"),
    ):
        store.open("crm")


def test_a_closed_store_can_be_opened_again(url: str) -> None:
    with opened(url) as store:
        store.update_table_state(ORDERS, Init())
        store.close()
        store.open("shop")
        assert store.get_table_state(ORDERS) == Init()


def test_who_comes_to_look_creates_nothing(tmp_path: Path, url: str) -> None:
    with (
        pytest.raises(PenstockError, match="there is no store at") as raised,
        opened(url, create=False),
    ):
        pass
    assert raised.value.hint
    assert list(tmp_path.iterdir()) == []
    with opened(url) as store:
        store.update_table_state(ORDERS, Init())
    with opened(url, create=False) as store:
        assert store.get_table_states() == {ORDERS: Init()}


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqlStore("sqlite:///store.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.open("shop")
    store.close()
    assert (tmp_path / "store.db").exists()


def test_a_path_may_hold_what_a_url_may_not(tmp_path: Path) -> None:
    (tmp_path / "50% off #1").mkdir()
    with opened(f"sqlite:///{tmp_path}/50% off #1/störe 1.db") as store:
        store.update_table_state(ORDERS, Init())
    assert (tmp_path / "50% off #1" / "störe 1.db").exists()


def test_a_store_in_sqlites_memory_serves_all_threads() -> None:
    with opened("sqlite://") as store:
        writer = threading.Thread(target=lambda: store.update_table_state(ORDERS, Init()))
        writer.start()
        writer.join()
        assert store.load_table_states() == 1


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+psycopg"])
def test_postgres_goes_by_several_schemes(postgres_url: str, scheme: str) -> None:
    with opened(postgres_url.replace("postgresql", scheme, 1)) as store:
        assert store.get_table_states() == {}


def test_postgres_may_be_named_in_libpqs_own_form(
    server: EmbeddedPostgres, store_database: str, postgres_url: str
) -> None:
    with opened(server.dsn(store_database)) as store:
        store.update_table_state(ORDERS, Init())
    with opened(postgres_url, create=False) as store:
        assert store.get_table_state(ORDERS) == Init()


# The tables' versions


def test_the_migrated_tables_are_those_the_queries_use(url: str) -> None:
    with opened(url):
        pass
    database = Database(url)
    with database.read("the tables") as connection:
        schema = POSTGRES_SCHEMA if database.is_postgres else None
        inspector = inspect(connection)
        assert set(inspector.get_table_names(schema=schema)) == set(METADATA.tables)
        for name, table in METADATA.tables.items():
            columns = inspector.get_columns(name, schema=schema)
            assert {c["name"]: c["nullable"] for c in columns} == {
                c.name: c.nullable for c in table.columns
            }
            key = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
            assert key == [column.name for column in table.primary_key]
    database.close()


def add_migrations(monkeypatch: pytest.MonkeyPatch, *migrations: tuple[str, ...]) -> None:
    for module in (tables_module, sql_module):
        monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, *migrations))


def test_an_older_store_is_migrated_and_keeps_its_records(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(url) as store:
        store.update_table_states({ORDERS: Init(), CUSTOMERS: Ready("c")})
    add_migrations(
        monkeypatch,
        ("ALTER TABLE table_states ADD COLUMN note TEXT",),
        ("UPDATE table_states SET note = 'second'", "CREATE TABLE later (x {lsn})"),
    )
    with (
        pytest.raises(PenstockError, match=f"has version {len(MIGRATIONS)}, not yet"),
        opened(url, create=False),
    ):
        pass
    for _ in range(2):
        with opened(url) as store:
            assert store.get_table_states() == {ORDERS: Init(), CUSTOMERS: Ready("c")}
    assert execute(url, "SELECT version FROM store_version") == [(len(MIGRATIONS) + 2,)]
    assert execute(url, "SELECT DISTINCT note FROM table_states") == [("second",)]


def test_a_migration_that_fails_leaves_the_old_version_whole(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(url) as store:
        store.update_table_state(ORDERS, Init())
    with monkeypatch.context() as patch:
        add_migrations(patch, ("CREATE TABLE half_made (x TEXT)",), ("CREATE NONSENSE",))
        with pytest.raises(PenstockError, match="cannot write the tables") as raised, opened(url):
            pass
        assert raised.value.kind is ErrorKind.STORE
    with opened(url) as store:
        assert store.get_table_state(ORDERS) == Init()
    execute(url, "CREATE TABLE half_made (x TEXT)")


def test_a_store_of_a_newer_release_is_refused_and_left_alone(url: str) -> None:
    with opened(url):
        pass
    execute(url, "UPDATE store_version SET version = 99")
    for create in (True, False):
        with pytest.raises(PenstockError, match="version 99") as raised, opened(url, create=create):
            pass
        assert raised.value.kind is ErrorKind.STORE
        assert "upgrade" in (raised.value.hint or "")
    assert execute(url, "SELECT version FROM store_version") == [(99,)]


def test_a_state_that_cannot_be_understood_is_an_error_that_says_so(url: str) -> None:
    with opened(url) as store:
        store.update_table_state(ORDERS, Init())
    for nonsense in ("{", '{"state": "levitating"}', '{"state": "ready"}'):
        execute(url, f"UPDATE table_states SET state = '{nonsense}'")
        with pytest.raises(PenstockError, match="a table state of pipeline shop") as raised:
            SqlStore(url).open("shop")
        assert raised.value.kind is ErrorKind.STORE


# Failures


def fail_on_orders(url: str, table: str, when: str) -> None:
    """Make the database refuse to insert into or delete from `table` for ORDERS."""
    row = "NEW" if when == "INSERT" else "OLD"
    condition = f"WHEN ({row}.table_oid = {ORDERS.oid})"
    if url.startswith("sqlite"):
        execute(
            url,
            f"CREATE TRIGGER refuse BEFORE {when} ON {table} {condition}"
            " BEGIN SELECT RAISE(ABORT, 'refused by test'); END",
        )
    else:
        execute(
            url,
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'refused by test'; END $$",
            f"CREATE TRIGGER refuse BEFORE {when} ON {table} FOR EACH ROW {condition}"
            " EXECUTE FUNCTION refuse()",
        )


def test_a_failed_update_leaves_storage_and_cache_as_they_were(url: str) -> None:
    with opened(url) as store:
        store.update_table_state(CUSTOMERS, Init())
        fail_on_orders(url, "table_states", "INSERT")
        with pytest.raises(PenstockError, match="refused by test") as raised:
            store.update_table_states({CUSTOMERS: DataSync(), ORDERS: Init()})
        assert raised.value.kind is ErrorKind.STORE
        assert store.get_table_states() == {CUSTOMERS: Init()}
        store.load_table_states()
        assert store.get_table_states() == {CUSTOMERS: Init()}
        store.update_table_state(CUSTOMERS, DataSync())
        assert store.rollback_table_state(CUSTOMERS) == Init()


def test_a_failed_lifecycle_operation_leaves_storage_and_cache_as_they_were(url: str) -> None:
    with opened(url) as store:
        store.update_table_state(ORDERS, DataSync())
        store.store_table_schema(table_schema())
        store.store_destination_table_metadata(ORDERS, applied())
        store.upsert_replication_progress(Worker.apply(ORDERS), Lsn(9))
        fail_on_orders(url, "replication_progress", "DELETE")
        operations = [
            lambda: store.prepare_table_state_for_copy(ORDERS),
            lambda: store.delete_table_state(ORDERS),
            store.reset_table_states_for_resync,
            lambda: store.delete_replication_progress(Worker.apply(ORDERS)),
        ]
        for operation in operations:
            with pytest.raises(PenstockError, match="refused by test"):
                operation()
            for _ in range(2):
                assert store.get_table_states() == {ORDERS: DataSync()}
                assert store.get_table_schemas() == [table_schema()]
                assert store.get_destination_table_metadata(ORDERS) == applied()
                assert store.get_replication_progress(Worker.apply(ORDERS)) == Lsn(9)
                store.load_table_states()
                store.load_table_schemas()
                store.load_destination_tables_metadata()


def refusal(url: str) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        SqlStore(url).open("shop")
    return raised.value


def test_a_missing_directory_is_one_clear_error(tmp_path: Path) -> None:
    error = refusal(f"sqlite:///{tmp_path}/missing/deep/store.db")
    assert error.kind is ErrorKind.STORE
    assert f"{tmp_path}/missing/deep/store.db" in error.message
    assert error.hint == f"create the directory {tmp_path}/missing/deep, or change the store's URL"
    assert not (tmp_path / "missing").exists()


def test_a_file_in_place_of_the_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal(f"sqlite:///{tmp_path}/file/store.db")
    assert error.kind is ErrorKind.STORE
    assert error.hint == f"create the directory {tmp_path}/file, or change the store's URL"


def test_a_directory_in_place_of_the_file_is_one_clear_error(tmp_path: Path) -> None:
    error = refusal(f"sqlite:///{tmp_path}")
    assert error.kind is ErrorKind.STORE
    assert error.hint == f"{tmp_path} is a directory; the store's URL must name a file"


def test_a_file_that_is_no_database_is_one_clear_error_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n" * 200)
    error = refusal(f"sqlite:///{path}")
    assert error.kind is ErrorKind.STORE
    assert "not an SQLite database" in (error.hint or "")
    assert path.read_text() == "buy milk\n" * 200


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Root may write anywhere, so as root become somebody else for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unwritable_directory_is_one_clear_error(tmp_path: Path) -> None:
    directory = tmp_path / "read-only"
    directory.mkdir(mode=0o555)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o11 != 0o11:
            parent.chmod(parent.stat().st_mode | 0o11)
    tmp_path.chmod(0o755)
    with as_ordinary_user():
        error = refusal(f"sqlite:///{directory}/store.db")
    assert error.kind is ErrorKind.STORE
    assert "can be written" in (error.hint or "")
    assert list(directory.iterdir()) == []


def test_a_directory_that_cannot_even_be_looked_into_is_one_clear_error(tmp_path: Path) -> None:
    directory = tmp_path / "private" / "stores"
    directory.mkdir(parents=True)
    directory.parent.chmod(0)
    for create in (True, False):
        with as_ordinary_user(), pytest.raises(PenstockError, match="cannot read") as raised:
            SqlStore(f"sqlite:///{directory}/store.db", create=create).open("shop")
        assert raised.value.kind is ErrorKind.STORE
        assert "can be written" in (raised.value.hint or "")
    directory.parent.chmod(0o700)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://root@localhost/x",
        "penstock.db",
        "",
        "sqlite:/x.db",
        "sqlite://x.db",
        "sqlite:///x.db?mode=ro",
    ],
)
def test_a_url_of_another_kind_is_refused_with_examples(url: str) -> None:
    error = refusal(url)
    assert error.kind is ErrorKind.CONFIG
    assert "sqlite:///" in (error.hint or "")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:hunter22@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=shop&password=hunter22",
        "host=127.0.0.1 port=1 user=shop password=hunter22",
        "postgresql+psycopg://shop:hunter22@127.0.0.1:1/db",
        "postgresql://shop:hunter22@localhost:hunter22/db",
        "postgresql://shop:pass@hunter22@/db?host=[",
        "postgresql://shop:x@127.0.0.1/db?hunter22",
        "postgresql://shop:ab@hunter22@127.0.0.1:1/db",
        "postgresql://shop:ab/hunter22@127.0.0.1:1/db",
        "postgresql://shop:hunter22/ab@127.0.0.1:1/db",
        "postgresql://shop:12/hunter22@127.0.0.1:1/db",
        "postgresql://shop:%hunter22@127.0.0.1/db",
        "host=127.0.0.1 password=hunter22 password",
        "mysql://shop:hunter22@127.0.0.1/db",
        "shop:hunter22@127.0.0.1/db",
    ],
)
def test_no_error_shows_the_password(url: str) -> None:
    error = refusal(url)
    shown = "".join(traceback.format_exception(error)) + str(error) + repr(error)
    # The traceback quotes this file's lines, never the URL itself.
    assert "hunter22" not in shown
    assert error.hint


def test_a_store_prints_without_its_password() -> None:
    store = SqlStore("postgresql://shop:hunter22@db.example:6543/meta")
    assert repr(store) == "SqlStore('postgresql://shop@db.example:6543/meta')"
    assert "hunter22" not in repr(vars(store)) + repr(vars(store._database))


def test_a_postgres_that_cannot_be_reached_is_one_clear_error() -> None:
    error = refusal("postgresql://shop@127.0.0.1:1/meta")
    assert error.kind is ErrorKind.STORE
    assert error.message.startswith(
        "cannot read the version from the store postgresql://shop@127.0.0.1:1/meta: "
    )
    assert "can be reached" in (error.hint or "")


def test_a_role_without_rights_is_told_what_to_grant(
    server: EmbeddedPostgres, store_database: str, postgres_url: str
) -> None:
    with server.connect(store_database) as connection:
        connection.execute("DROP ROLE IF EXISTS store_guest")
        connection.execute("CREATE ROLE store_guest LOGIN")
        guest = postgres_url.replace("postgres@", "store_guest@", 1)
        error = refusal(guest)
        assert error.kind is ErrorKind.STORE
        assert "CREATE SCHEMA penstock AUTHORIZATION" in (error.hint or "")
        connection.execute("CREATE SCHEMA penstock AUTHORIZATION store_guest")
    with opened(guest) as store:
        store.update_table_state(ORDERS, Init())
    with server.connect(store_database) as connection:
        connection.execute("DROP OWNED BY store_guest")
        connection.execute("DROP ROLE store_guest")


def test_a_broken_connection_is_made_again(
    server: EmbeddedPostgres, store_database: str, postgres_url: str
) -> None:
    with opened(postgres_url) as store:
        store.update_table_state(ORDERS, Init())
        with server.connect(store_database) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'penstock store' AND datname = %s",
                [store_database],
            ).fetchall()
            assert (True,) in ended
        store.update_table_state(ORDERS, DataSync())
        assert store.rollback_table_state(ORDERS) == Init()


# Durability and locks


def test_sqlite_commits_reach_the_disk_and_readers_do_not_wait(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.write("a test") as connection:
        assert pragma(connection, "journal_mode") == "wal"
        assert pragma(connection, "synchronous") == 2
    database.close()


def pragma(connection: Connection, name: str) -> object:
    return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


def test_postgres_commits_reach_the_disk_whatever_the_role_prefers(
    server: EmbeddedPostgres, store_database: str, postgres_url: str
) -> None:
    with server.connect(store_database) as connection:
        connection.execute(f"ALTER DATABASE {store_database} SET synchronous_commit = off")
        database = Database(postgres_url)
        with database.write("a test") as writing:
            assert writing.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        database.close()
        connection.execute(f"ALTER DATABASE {store_database} RESET synchronous_commit")


@contextmanager
def writer_that_never_ends(url: str) -> Iterator[None]:
    """Hold what a writing transaction of pipeline `shop` holds."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
    else:
        with psycopg.connect(url) as connection:
            connection.execute("SELECT * FROM penstock.pipelines FOR UPDATE")
            yield
            connection.rollback()


def test_another_process_can_look_while_a_pipeline_writes(url: str) -> None:
    with opened(url) as store:
        store.update_table_state(ORDERS, Init())
        store.upsert_replication_progress(Worker.apply(ORDERS), Lsn(9))
        with writer_that_never_ends(url), opened(url, create=False) as reader:
            assert reader.get_table_states() == {ORDERS: Init()}
            assert reader.get_replication_progress(Worker.apply(ORDERS)) == Lsn(9)
            assert reader.load_table_states() == 1


def test_opening_waits_for_what_a_killed_predecessor_has_under_way(postgres_url: str) -> None:
    with opened(postgres_url) as store:
        store.update_table_state(ORDERS, DataSync())
    successor = SqlStore(postgres_url)
    opening = threading.Thread(target=lambda: successor.open("shop"))
    with psycopg.connect(postgres_url, autocommit=True) as observer:
        with psycopg.connect(postgres_url) as predecessor:
            predecessor.execute("SELECT * FROM penstock.pipelines FOR UPDATE")
            predecessor.execute('UPDATE penstock.table_states SET state = \'{"state": "init"}\'')
            opening.start()
            waiting = "SELECT FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
            while not observer.execute(waiting).fetchall():
                assert opening.is_alive()
        opening.join()
    assert successor.get_table_state(ORDERS) == Init()
    successor.close()


def test_cached_reads_do_not_wait_for_a_write(url: str) -> None:
    with opened(url) as store:
        store.update_table_state(ORDERS, Init())
        started = threading.Event()

        def write() -> None:
            started.set()
            store.update_table_state(ORDERS, DataSync())

        writer = threading.Thread(target=write)
        with writer_that_never_ends(url):
            writer.start()
            started.wait()
            for _ in range(100):
                assert store.get_table_state(ORDERS) == Init()
                assert store.get_table_states() == {ORDERS: Init()}
                assert store.get_replication_progress(Worker.apply(ORDERS)) is None
            assert writer.is_alive()
        writer.join()
        assert store.get_table_state(ORDERS) == DataSync()


def test_a_lock_held_too_long_is_one_clear_error(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(sqlite_url):
        pass
    monkeypatch.setattr("penstock.stores.database.LOCK_TIMEOUT_SECONDS", 0.05)
    with opened(sqlite_url) as store, writer_that_never_ends(sqlite_url):
        with pytest.raises(PenstockError, match="database is locked") as raised:
            store.update_table_state(TableId(7), Init())
        assert raised.value.kind is ErrorKind.STORE
        assert "another process" in (raised.value.hint or "")
        assert store.get_table_states() == {}
