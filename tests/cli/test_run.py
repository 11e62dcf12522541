"""`run`, `receive` and `status` against a real source, started and stopped by signals."""

from __future__ import annotations

import json
import os
import pty
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.cli.command import Penstock, Running, WriteConfig
from tests.conftest import Database

Start = Callable[..., Running]

SHOP = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text);
INSERT INTO customers SELECT i, 'customer ' || i FROM generate_series(1, 1000) i;
CREATE TABLE notes (id bigint PRIMARY KEY, text text);
CREATE PUBLICATION shop_pub FOR TABLE customers, notes;
"""

FAREWELL = "stopping, running writes finish; once more to stop at once"
"""For who pressed Ctrl-C, and no entry of the log."""


@pytest.fixture
def shop(database: Database) -> Database:
    with database.connect() as connection:
        connection.execute(SHOP)
    return database


def slot_is_active(database: Database) -> bool | None:
    with database.connect() as connection:
        query = "SELECT active FROM pg_replication_slots WHERE slot_name = 'penstock_shop'"
        row = connection.execute(query).fetchone()
    return row[0] if row else None


def until_ready(running: Running) -> dict[str, Any]:
    """The first status in which every table is ready."""
    for line in running.lines():
        status: dict[str, Any] = json.loads(line)
        if status["tables"] and all(table["state"] == "ready" for table in status["tables"]):
            return status
    raise AssertionError(f"it ended with {running.wait()}: {running.stderr}")


def test_a_pipeline_is_run_looked_at_and_stopped(
    penstock: Penstock, write_config: WriteConfig, shop: Database, start: Start
) -> None:
    config = write_config(shop.dsn)

    running = start("run", config, "--progress", "json", "--log-format", "json")
    status = until_ready(running)
    assert {table["name"]: table["rows_copied"] for table in status["tables"]} == {
        "public.customers": 1000,
        "public.notes": 0,
    }
    seen = penstock("status", config, "--json").json()
    assert seen["running"] is True
    assert [table["state"] for table in seen["tables"]] == ["ready", "ready"]

    running.signal_all(signal.SIGTERM)
    assert running.wait() == 0, running.stderr
    assert running.survivors() == []
    top = {name for name in penstock.files() if "/" not in name}
    assert top == {"journal", "lake", "store.db"}, "nothing that nobody asked for"
    assert "Traceback" not in running.stderr
    logged = [json.loads(line) for line in running.stderr.splitlines() if line != FAREWELL]
    assert {"table is ready", "stopped"} <= {entry["message"] for entry in logged}
    [streaming] = [each for each in logged if each["logger"] == "penstock.journal.receiver"]
    assert (streaming["level"], streaming["message"]) == ("info", "streaming")
    assert streaming["position"]
    assert slot_is_active(shop) is False
    outcome = penstock("status", config)
    assert outcome.code == 0
    assert "not running" in outcome.stdout
    assert "public.customers" in outcome.stdout


def test_on_a_terminal_ctrl_c_is_answered_above_the_live_table(
    write_config: WriteConfig, shop: Database, start: Start
) -> None:
    terminal, end = pty.openpty()
    running = start("run", write_config(shop.dsn), terminal=end)
    os.close(end)
    seen = b""
    while b"data_sync" not in seen and b"ready" not in seen:
        seen += os.read(terminal, 65536)
    os.write(terminal, b"\x03")
    with suppress(OSError):  # the other end is closed
        while read := os.read(terminal, 65536):
            seen += read
    assert running.wait() == 0, seen
    before, after = seen.split(FAREWELL.encode())
    assert before.endswith(b"\x1b[2K"), "the table is not erased first"
    assert after.startswith(b"\r\n")
    assert b"changes applied" in after, "the table is not drawn below"
    assert running.survivors() == []


def test_a_pipeline_that_fails_while_running_says_why_and_exits(
    write_config: WriteConfig, shop: Database, start: Start
) -> None:
    running = start("run", write_config(shop.dsn), "--progress", "json")
    until_ready(running)
    with shop.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = 'penstock_shop'"
        )
        dropped = False
        while not dropped:
            try:
                connection.execute("SELECT pg_drop_replication_slot('penstock_shop')")
                dropped = True
            except Exception:
                connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    " WHERE slot_name = 'penstock_shop' AND active"
                )
    assert running.wait() == 3, running.stderr
    assert "error: " in running.stderr
    assert "Traceback" not in running.stderr
    assert running.survivors() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_receiver_alone_fills_the_journal_until_it_is_stopped(
    penstock: Penstock,
    write_config: WriteConfig,
    shop: Database,
    start: Start,
    number: signal.Signals,
) -> None:
    config = write_config(shop.dsn)
    running = start("receive", config)
    while slot_is_active(shop) is not True:
        assert running.process.poll() is None, running.stderr
    with shop.connect() as connection:
        connection.execute("INSERT INTO notes VALUES (1, 'received')")
    segments = penstock.directory / "journal" / "segments"
    while not list(segments.glob("*/*.parquet")):
        assert running.process.poll() is None, running.stderr
    running.process.send_signal(number)
    assert running.wait() == 0, running.stderr
    assert slot_is_active(shop) is False
    assert running.survivors() == []


def test_the_status_of_a_pipeline_that_never_ran(
    penstock: Penstock, write_config: WriteConfig, shop: Database
) -> None:
    outcome = penstock("status", write_config(shop.dsn))
    assert outcome.code == 4
    assert "there is no store" in outcome.errors[0]
    assert "start the pipeline" in outcome.hints[0]
    assert penstock.files() == set()


def test_the_status_of_a_pipeline_whose_store_is_in_memory(
    penstock: Penstock, write_config: WriteConfig, shop: Database
) -> None:
    outcome = penstock("status", write_config(shop.dsn, store={"type": "memory"}))
    assert outcome.code == 2
    assert "store.type" in outcome.hints[0]
