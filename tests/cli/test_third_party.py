"""Every command works with a store and a destination that are not ours, named in the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Penstock, Running, WriteConfig
from tests.conftest import Database

MODULE = '''
import threading
from pathlib import Path

from penstock.destinations import Destination, WriteStatus
from penstock.errors import ErrorKind, PenstockError
from penstock.findings import error
from penstock.stores import SqlStore


class Ledger:
    """A store that has the methods of the contracts and inherits from nothing."""

    def __init__(self, file):
        self._kept = SqlStore(f"sqlite:///{file}")

    def __getattr__(self, name):
        if name in ("preflight", "for_reading"):
            raise AttributeError(name)
        return getattr(self._kept, name)


class Counts(Destination):
    """Writes down how many rows and changes came."""

    name = "counts"

    def __init__(self, directory):
        self._directory = Path(directory)
        self._lock = threading.Lock()

    def preflight(self):
        if self._directory.is_dir():
            return []
        return [error("counts", "no directory to count in", f"mkdir {self._directory}",
                      ErrorKind.DESTINATION_REJECTED)]

    def drop_table_for_copy(self, table, *previous):
        pass

    def write_table_rows(self, table, rows):
        return self._note(f"copied {table.name} {rows.dataframe.count()}")

    def write_events(self, batch):
        if (self._directory / "broken").exists():
            raise PenstockError(ErrorKind.DESTINATION_REJECTED, "out of order", hint="repair it")
        return self._note(f"changed {batch.table.name} {batch.changes.count()}")

    def _note(self, line):
        with self._lock, (self._directory / "counts").open("a") as file:
            file.write(line + "\\n")
        return WriteStatus.DURABLE
'''


@pytest.fixture
def config(
    penstock: Penstock,
    write_config: WriteConfig,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Path:
    (tmp_path / "ledgers.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with database.connect() as connection:
        connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY)")
        connection.execute("INSERT INTO customers SELECT generate_series(1, 10)")
        connection.execute("CREATE PUBLICATION shop_pub FOR TABLE customers")
    return write_config(
        database.dsn,
        store={"type": "ledgers:Ledger", "file": str(tmp_path / "ledger.db")},
        destination={"type": "ledgers:Counts", "directory": str(tmp_path / "counts")},
    )


def until(running: Running, reached: Callable[[dict[str, Any]], bool]) -> None:
    for line in running.lines():
        status = json.loads(line)
        if status["tables"] and reached(status["tables"][0]):
            return
    raise AssertionError(f"it ended with {running.wait()}: {running.stderr}")


def test_every_command_takes_a_third_partys_store_and_destination(
    penstock: Penstock,
    config: Path,
    database: Database,
    start: Callable[..., Running],
    tmp_path: Path,
) -> None:
    counts = tmp_path / "counts"

    def noted() -> list[str]:
        return (counts / "counts").read_text().splitlines()

    for command in ("doctor", "run"):
        refused = penstock(command, config)
        assert refused.code == (1 if command == "doctor" else 4), refused.stderr
        assert "no directory to count in" in refused.stdout + refused.stderr
        assert f"mkdir {counts}" in refused.stdout + refused.stderr
    counts.mkdir()
    outcome = penstock("doctor", config)
    assert outcome.code == 0, outcome.stdout
    assert "destination" in outcome.stdout

    running = start("run", config, "--progress", "json")
    until(running, lambda table: table["state"] == "ready")
    (counts / "broken").touch()
    with database.connect() as connection:
        connection.execute("INSERT INTO customers VALUES (11), (12)")
    until(running, lambda table: table["state"] == "errored")
    [table] = penstock("status", config, "--json").json()["tables"]
    assert (table["name"], table["error"]["reason"]) == ("public.customers", "out of order")
    (counts / "broken").unlink()
    assert penstock("retry", config, "customers").code == 0
    until(running, lambda table: table["state"] == "ready" and len(noted()) == 2)
    assert penstock("resync", config, "--all").code == 0
    until(running, lambda table: table["state"] == "ready" and len(noted()) == 3)
    running.process.terminate()
    assert running.wait() == 0, running.stderr
    assert noted() == [
        "copied public.customers 10",
        "changed public.customers 2",
        "copied public.customers 12",
    ]


def test_a_wrong_key_of_theirs_is_one_clear_error(penstock: Penstock, config: Path) -> None:
    config.write_text(config.read_text().replace("directory:", "directry:"))
    outcome = penstock("run", config)
    assert outcome.code == 2
    [error] = outcome.errors
    assert "unknown key destination.directry: did you mean directory?" in error
    assert outcome.hints == ["hint: destination takes the keys type, directory"]
