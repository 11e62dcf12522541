"""`retry` and `resync`: what they ask for, and of which tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.journal.journal import JournalOwner
from penstock.journal.writer import JournalWriter
from penstock.pipeline.requests import Action, Request, Requests
from penstock.postgres.connection import system_identifier
from penstock.schema import ColumnSchema, TableId, TableName, TableSchema, ValueKind, ValueType
from penstock.states import MANUAL, DataSync, Errored, Ready
from penstock.stores import SqlStore
from tests.cli.command import Penstock, WriteConfig
from tests.conftest import Database

ORDERS, NOTES = TableId(16_400), TableId(16_401)


@pytest.fixture
def stopped(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> tuple[Path, Requests]:
    """A pipeline that has run: one table is errored, the other ready."""
    config = write_config(database.dsn)
    own_journal(penstock.directory / "journal", database)
    store = SqlStore(f"sqlite:///{penstock.directory}/store.db")
    store.open("shop")
    for table_id, name in ((ORDERS, "orders"), (NOTES, "notes")):
        store.store_table_schema(schema(table_id, name))
    store.update_table_state(ORDERS, Errored("broken", "mend it", MANUAL, Ready("c")))
    store.update_table_state(NOTES, Ready("c"))
    store.close()
    return config, Requests(penstock.directory / "journal")


def own_journal(path: Path, database: Database) -> None:
    """A journal as the receiver of pipeline `shop` makes it."""
    with database.connect() as session:
        cluster = system_identifier(session)
    JournalWriter(path).claim(JournalOwner("penstock_shop", cluster, database.name))


def schema(table_id: TableId, name: str) -> TableSchema:
    column = ColumnSchema("id", 1, ValueType(ValueKind.LONG), 20, key_position=0)
    return TableSchema(table_id, TableName("public", name), (column,))


@pytest.mark.parametrize(
    ("action", "name"), [(Action.RETRY, "public.orders"), (Action.RESYNC, "orders")]
)
def test_a_table_is_asked_for(
    penstock: Penstock, stopped: tuple[Path, Requests], action: Action, name: str
) -> None:
    config, requests = stopped
    outcome = penstock(action, config, name)
    assert outcome.code == 0, outcome.stderr
    assert "public.orders" in outcome.stdout
    assert "at the next start" in outcome.stdout
    assert requests.pending() == [Request(ORDERS, action)]


@pytest.fixture
def uncopied(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> tuple[Path, TableId]:
    """A pipeline whose one table, `public.customers`, failed in its first copy."""
    with database.connect() as session:
        session.execute("CREATE TABLE customers (id bigint PRIMARY KEY)")
        (oid,) = session.execute("SELECT 'customers'::regclass::oid").fetchone() or (0,)
    own_journal(penstock.directory / "journal", database)
    store = SqlStore(f"sqlite:///{penstock.directory}/store.db")
    store.open("shop")
    store.update_table_state(TableId(oid), Errored("broken", "mend it", MANUAL, DataSync()))
    store.close()
    return write_config(database.dsn), TableId(oid)


@pytest.mark.parametrize(
    ("action", "name"), [(Action.RETRY, "public.customers"), (Action.RESYNC, "customers")]
)
def test_a_table_has_its_name_before_it_was_ever_copied(
    penstock: Penstock,
    uncopied: tuple[Path, TableId],
    database: Database,
    action: Action,
    name: str,
) -> None:
    config, table_id = uncopied
    with database.connect(autocommit=False) as rival:
        rival.execute("LOCK TABLE customers IN ACCESS EXCLUSIVE MODE")
        assert "public.customers" in penstock("status", config).stdout
        (shown,) = penstock("status", config, "--json").json()["tables"]
        assert (shown["oid"], shown["name"]) == (table_id.oid, "public.customers")
        outcome = penstock(action, config, name)
    assert outcome.code == 0, outcome.stderr
    assert outcome.stdout.startswith("public.customers is ")
    requests = Requests(penstock.directory / "journal")
    assert requests.pending() == [Request(table_id, action)]


def test_a_table_never_copied_goes_by_its_number_while_postgres_is_away(
    penstock: Penstock, write_config: WriteConfig, uncopied: tuple[Path, TableId]
) -> None:
    config = write_config("host=127.0.0.1 port=1 dbname=shop")
    (shown,) = penstock("status", config, "--json").json()["tables"]
    assert shown["name"] == f"table {uncopied[1]}"


def test_only_what_is_errored_is_retried(
    penstock: Penstock, stopped: tuple[Path, Requests]
) -> None:
    config, requests = stopped
    outcome = penstock("retry", config, "notes")
    assert outcome.code == 0
    assert "nothing to retry" in outcome.stdout
    assert requests.pending() == []
    assert penstock("retry", config, "--all").code == 0
    assert requests.pending() == [Request(ORDERS, Action.RETRY)]


def test_every_table_is_copied_again(penstock: Penstock, stopped: tuple[Path, Requests]) -> None:
    config, requests = stopped
    assert penstock("resync", config, "--all").code == 0
    assert requests.pending() == [Request(t, Action.RESYNC) for t in (ORDERS, NOTES)]


def test_wrong_names_are_refused_and_nothing_is_asked_for(
    penstock: Penstock, stopped: tuple[Path, Requests]
) -> None:
    config, requests = stopped
    for arguments, hint in [
        (["orderz"], "did you mean orders?"),
        (["orders", "--all"], "penstock resync"),
    ]:
        outcome = penstock("resync", config, *arguments)
        assert outcome.code == 2
        assert len(outcome.errors) == 1
        assert hint in outcome.hints[0]
    assert requests.pending() == []


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize(
    ("owner", "problem"),
    [
        (None, "there is no journal in"),
        (JournalOwner("penstock_mill", "1", "mill"), "to slot penstock_mill of database mill"),
        (JournalOwner("penstock_shop", "1", "shop"), "in cluster 1"),
    ],
)
def test_nothing_is_asked_for_beside_a_journal_that_is_not_the_pipelines(
    penstock: Penstock,
    write_config: WriteConfig,
    stopped: tuple[Path, Requests],
    database: Database,
    action: Action,
    owner: JournalOwner | None,
    problem: str,
) -> None:
    """As from another directory, with a relative `journal.location`."""
    config = write_config(
        database.dsn,
        store={"url": f"sqlite:///{penstock.directory}/store.db"},
        journal={"location": "./penstock-journal"},
    )
    elsewhere = penstock.directory / "elsewhere"
    elsewhere.mkdir()
    if owner is not None:
        JournalWriter(elsewhere / "penstock-journal").claim(owner)
    outcome = Penstock(elsewhere)(action, config, "orders")
    assert outcome.code == 2, outcome.stderr
    assert len(outcome.errors) == len(outcome.hints) == 1
    assert problem in outcome.errors[0]
    assert str(elsewhere / "penstock-journal") in outcome.errors[0]
    assert "a relative journal.location" in outcome.hints[0]
    assert Requests(elsewhere / "penstock-journal").pending() == []


def test_a_table_is_asked_for_while_postgres_is_away(
    penstock: Penstock, write_config: WriteConfig, stopped: tuple[Path, Requests]
) -> None:
    config = write_config("host=127.0.0.1 port=1 dbname=shop")
    outcome = penstock("retry", config, "orders")
    assert outcome.code == 0, outcome.stderr
    assert stopped[1].pending() == [Request(ORDERS, Action.RETRY)]
