"""`penstock doctor`: everything at once, each with the statement that mends it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Penstock, WriteConfig
from tests.conftest import Database

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
    assert "java, journal directory, lake directory, store" in outcome.stdout
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
