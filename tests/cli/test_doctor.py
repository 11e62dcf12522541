"""`penstock doctor`: everything at once, each with the statement that mends it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.config import load_config
from penstock.errors import PenstockError
from penstock.journal.journal import Journal, JournalOwner
from penstock.journal.preflight import journal_findings
from penstock.journal.receiver import Receiver
from penstock.journal.writer import JournalWriter
from penstock.postgres.connection import system_identifier
from penstock.postgres.preflight import Finding, preflight
from penstock.postgres.slots import drop_slot, slot_info
from penstock.schema import Lsn
from tests.cli.command import Penstock, WriteConfig
from tests.conftest import Database

SLOT = "penstock_shop"
SHOP = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
CREATE PUBLICATION shop_pub FOR TABLE customers;
"""


def test_a_source_that_is_ready(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> None:
    with database.connect() as connection:
        connection.execute(SHOP)
    outcome = penstock("doctor", write_config(database.dsn))
    assert outcome.code == 0
    assert "java, journal directory, destination, store" in outcome.stdout
    assert "slot penstock_shop" in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("ready")
    assert penstock.files() == set()


def test_everything_that_is_missing_is_named_at_once(
    penstock: Penstock, write_config: WriteConfig, database: Database, tmp_path: Path
) -> None:
    with database.connect() as connection:
        connection.execute(SHOP)
        connection.execute("CREATE TABLE notes (text text)")
        connection.execute("ALTER PUBLICATION shop_pub ADD TABLE notes")
    (tmp_path / "file").touch()
    config = write_config(database.dsn, destination={"root": str(tmp_path / "file" / "lake")})
    outcome = penstock("doctor", config, env={"PATH": "", "JAVA_HOME": ""})
    assert outcome.code == 1
    for problem in ("no Java", "the lake directory", "public.notes"):
        assert problem in outcome.stdout
    assert 'ALTER TABLE "public"."notes" REPLICA IDENTITY FULL;' in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("not ready: 3 to mend")


def test_findings_as_json(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> None:
    outcome = penstock("doctor", write_config(database.dsn), "--json")
    assert outcome.code == 1
    report = outcome.json()
    assert report["ready"] is False
    (finding,) = [each for each in report["findings"] if each["severity"] == "error"]
    assert finding["subject"] == "publication shop_pub"
    assert finding["remedy"].startswith('CREATE PUBLICATION "shop_pub"')


def test_a_server_that_cannot_be_reached_is_a_finding(
    penstock: Penstock, write_config: WriteConfig
) -> None:
    outcome = penstock("doctor", write_config("host=127.0.0.1 port=1 user=nobody"))
    assert outcome.code == 1
    assert "cannot connect to Postgres at 127.0.0.1 port 1" in outcome.stdout
    assert outcome.stderr == ""


@pytest.fixture
def received(
    penstock: Penstock,
    write_config: WriteConfig,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The configuration of a pipeline that has run: its slot and its journal are there."""
    monkeypatch.chdir(penstock.directory)
    with database.connect() as connection:
        connection.execute(SHOP)
        config = write_config(database.dsn)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        slot = slot_info(connection, SLOT)
        assert slot is not None
        assert slot.confirmed_flush_lsn is not None
        journal = JournalWriter(penstock.directory / "journal")
        journal.claim(JournalOwner(SLOT, system_identifier(connection), database.name))
    journal.append(slot.confirmed_flush_lsn, start=slot.confirmed_flush_lsn)
    return config


def errors_of(path: Path, **settings: Any) -> list[Finding]:
    """What doctor calls an error; it must be what the receiver then ends with."""
    config = load_config(path).model_copy(update=settings)
    findings = preflight(config, also=journal_findings)
    return [each for each in findings if each.severity == "error"]


def refusal(path: Path) -> str:
    with pytest.raises(PenstockError) as caught:
        Receiver(load_config(path)).run(threading.Event())
    return caught.value.message


def test_a_journal_and_its_slot_are_ready(received: Path) -> None:
    assert errors_of(received) == []


def test_a_slot_that_is_gone_while_its_journal_is_there(
    penstock: Penstock, received: Path, write_config: WriteConfig, database: Database
) -> None:
    with database.connect() as connection:
        drop_slot(connection, SLOT)
    before = penstock.files()
    outcome = penstock("doctor", received)
    assert outcome.code == 1
    assert f"the slot {SLOT} is gone" in outcome.stdout
    assert "invalidated_slot_behavior: recreate" in outcome.stdout
    assert "penstock doctor" not in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("not ready: 1 to mend")
    assert penstock.files() == before
    recreating = write_config(database.dsn, invalidated_slot_behavior="recreate")
    outcome = penstock("doctor", recreating)
    assert outcome.code == 0, outcome.stdout
    assert f"warning  journal: the slot {SLOT} is gone" in outcome.stdout
    assert penstock.files() == before


@pytest.mark.parametrize("behavior", ["error", "recreate"])
def test_a_journal_of_another_pipeline(
    penstock: Penstock, write_config: WriteConfig, database: Database, behavior: str
) -> None:
    with database.connect() as connection:
        connection.execute(SHOP)
    JournalWriter(penstock.directory / "journal").claim(JournalOwner("penstock_mill", "1", "mill"))
    before = penstock.files()
    outcome = penstock("doctor", write_config(database.dsn, invalidated_slot_behavior=behavior))
    assert outcome.code == 1
    assert "belongs to slot penstock_mill of database mill" in outcome.stdout
    assert "a journal.location of its own" in outcome.stdout
    assert penstock.files() == before


@pytest.mark.parametrize("behavior", ["error", "recreate"])
def test_a_slot_whose_journal_is_not_there(
    received: Path, penstock: Penstock, behavior: str
) -> None:
    """Nothing is made anew for that: the journal may be elsewhere."""
    Journal(penstock.directory / "journal").discard()
    (finding,) = errors_of(received, invalidated_slot_behavior=behavior)
    assert finding.problem == refusal(received)
    assert "is empty" in finding.problem


@pytest.mark.parametrize("behavior", ["error", "recreate"])
def test_a_slot_that_is_ahead_of_its_journal(
    received: Path, database: Database, behavior: str
) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_logical_emit_message(true, 'p', 'x')")
        query = "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())"
        connection.execute(query, [SLOT])
    (finding,) = errors_of(received, invalidated_slot_behavior=behavior)
    assert finding.problem == refusal(received)
    assert "ahead of the journal" in finding.problem


def test_a_source_that_was_set_back(received: Path, penstock: Penstock) -> None:
    journal = JournalWriter(penstock.directory / "journal")
    journal.refresh()
    journal.append(Lsn(journal.end.value + (1 << 30)))
    before = penstock.files()
    (finding,) = errors_of(received)
    assert "the source was set back" in finding.problem
    assert errors_of(received, invalidated_slot_behavior="recreate") == []
    assert penstock.files() == before
    assert "the source was set back" in refusal(received)


def test_a_journal_that_cannot_be_read_is_a_finding(received: Path, penstock: Penstock) -> None:
    (penstock.directory / "journal" / "checkpoint.json").mkdir()
    (finding,) = errors_of(received)
    assert finding.kind == "journal"
    assert "cannot be read: Is a directory" in finding.problem


def test_a_place_where_no_journal_can_be_is_told_once(
    penstock: Penstock, write_config: WriteConfig, database: Database
) -> None:
    with database.connect() as connection:
        connection.execute(SHOP)
    (penstock.directory / "file").touch()
    outcome = penstock("doctor", write_config(database.dsn, journal={"location": "file/journal"}))
    assert "file is not a directory" in outcome.stdout
    assert outcome.stdout.splitlines()[-1].startswith("not ready: 1 to mend")


def test_a_slot_with_trouble_of_its_own_is_told_once(received: Path, database: Database) -> None:
    with database.connect() as connection:
        drop_slot(connection, SLOT)
        connection.execute("SELECT pg_create_physical_replication_slot(%s)", [SLOT])
        (finding,) = errors_of(received)
        assert finding.subject == f"slot {SLOT}"
        drop_slot(connection, SLOT)
