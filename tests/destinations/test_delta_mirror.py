"""How a batch gets into a Delta mirror: what Spark makes of the statements, and what it gathers."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.destinations import DeltaDestination
from penstock.destinations.base import Destination
from penstock.destinations.delta import mirror
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.errors import PenstockError
from penstock.schema import (
    STRING,
    ColumnSchema,
    DdlNote,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
)
from penstock.testing.sample_tables import KEYLESS, NOTES, note
from penstock.testing.segments import Change, delete, insert, joined, update
from penstock.testing.stage import Stage

VARIABLE = "${env:HOME}"
_LAST = 200
"""More executions than a batch takes; Spark keeps a thousand."""
THRESHOLD = "spark.sql.autoBroadcastJoinThreshold"


def staged(spark: Any, tmp_path: Path, table: TableSchema, root: str = "lake") -> Stage:
    def read(destination: Destination, table: TableSchema) -> list[dict[str, Any]]:
        assert isinstance(destination, DeltaDestination)
        frame = spark.read.format("delta").load(destination.path(table.name))
        return [row.asDict() for row in frame.collect()]

    return Stage(
        lambda: DeltaDestination(tmp_path / root), read, table, tmp_path / "journal", spark
    )


# Names that Spark would take for variables.


@pytest.mark.parametrize("listed", [True, False], ids=["listed keys", "merge"])
def test_a_name_is_not_taken_for_a_variable(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    if not listed:
        monkeypatch.setattr(mirror, "LISTED_KEYS", 0)
    home = os.environ.get("HOME", "/")
    key = ColumnSchema(VARIABLE, 1, STRING, 25, nullable=False, key_position=0)
    value = ColumnSchema(f"{VARIABLE} too", 2, STRING, 25)
    table = TableSchema(TableId(7), TableName(VARIABLE, VARIABLE), (key, value))

    def row(key: str, text: str | None, *more: str | None) -> dict[str, Any]:
        return dict(zip([c.name for c in stage.table.columns], (key, text, *more), strict=True))

    stage = staged(spark, tmp_path, table, root=f"lake {VARIABLE}")
    stage.copy([row(VARIABLE, "a"), row(home, "b"), row("c", "c")])
    stage.apply([update(row(VARIABLE, None), unchanged=[value.name]), update(row("c", "d"))])
    assert stage.rows == [(VARIABLE, "a"), (home, "b"), ("c", "d")]
    stage.apply([delete({VARIABLE: VARIABLE}), insert(row("e", "e"))])
    assert stage.rows == [(home, "b"), ("c", "d"), ("e", "e")]

    added = ColumnSchema(f"{VARIABLE} as well", 3, STRING, 25)
    wider = replace(table, columns=(key, value, added), note=DdlNote(xid=1))
    change = SchemaChange(table, wider)
    assert stage.destination.change_schema(change) is SchemaChangeAction.CONTINUE
    stage.table = stage.script.table = wider
    stage.apply([update(row("e", "f", "g"))])
    assert stage.rows == [(home, "b", None), ("c", "d", None), ("e", "f", "g")]


def test_a_batch_that_counts_is_on_disk(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def files() -> set[Path]:
        found = (tmp_path / "lake").rglob("[!.]*")
        return {path for path in found if path.suffix in (".json", ".parquet", ".bin")}

    synced: set[Path] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(Path(f"/proc/self/fd/{fd}").readlink()))
    stage = staged(spark, tmp_path, NOTES)
    stage.copy([note(number) for number in range(100)])
    copied = files()
    stage.apply([update(note(1, "new")), insert(note(1000))])
    made = files() - copied
    assert {path.suffix for path in made} == {".json", ".parquet", ".bin"}
    assert made <= synced


# What is gathered on the driver.


def broadcast(spark: Any, stage: Stage, changes: list[Change]) -> set[str]:
    """The columns that are broadcast while a batch is written."""
    before = max(_executions(spark), default=-1)
    stage.apply(changes)
    found: set[str] = set()
    for number, execution in _executions(spark).items():
        if number > before:
            plan = execution.physicalPlanDescription()
            for columns in re.findall(r"\) BroadcastExchange\nInput \[\d+\]: \[(.*)\]", plan):
                found.update(re.findall(r"([^ ,]+)#\d+", columns))
    return found


def _executions(spark: Any) -> dict[int, Any]:
    """The last of what Spark has run, by number."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    last = max(0, store.executionsCount() - _LAST)
    executions = store.executionsList(last, _LAST).iterator()
    found = {}
    while executions.hasNext():
        execution = executions.next()
        found[execution.executionId()] = execution
    return found


LOG = {"path", "stats", "dvFilePath", "deletionVectorId"}
"""Columns of Delta's own log."""

TRAIL = {"e_k0", "e_place", "e_state"}
"""The batch's own changes, where it changes keys."""


def kept(n: int) -> Change:
    return update(note(n, rank=100 + n), unchanged=["note"])


def moved(n: int) -> Change:
    return update(note(100 + n, rank=100 + n), {"id": n}, unchanged=["note"])


@pytest.mark.parametrize("change", [kept, moved])
@pytest.mark.parametrize("listed", [True, False], ids=["listed keys", "merge"])
def test_values_that_are_kept_are_not_gathered_on_the_driver(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, listed: bool
) -> None:
    stage = staged(spark, tmp_path, NOTES)
    stage.copy([note(n, f"note {n}", n) for n in range(40)], files=2)
    if not listed:
        monkeypatch.setattr(mirror, "LISTED_KEYS", 0)
    # With keys on a list whatever Spark takes the size for; else where the table's files alone
    # would let it be broadcast.
    stage.script.session.conf.set(THRESHOLD, 2**40 if listed else 100_000)
    found = broadcast(spark, stage, [*map(change, range(10)), update(note(39, "new"))])
    assert found - LOG - TRAIL <= (set() if listed else {"k0", "origin"})
    new = [(n + 100 if change is moved else n, f"note {n}", 100 + n) for n in range(10)]
    old = [(n, f"note {n}", n) for n in range(10, 39)]
    assert sorted(stage.rows) == sorted([*new, *old, (39, "new", None)])


def test_rows_without_a_key_are_not_gathered_on_the_driver(spark: Any, tmp_path: Path) -> None:
    rows = [note(n % 20, f"note {n % 20}", n % 20) for n in range(40)]
    stage = staged(spark, tmp_path, KEYLESS)
    stage.copy(rows, files=2)
    stage.script.session.conf.set(THRESHOLD, 100_000)
    found = broadcast(spark, stage, [*map(delete, rows[:30]), insert(note(7, "new"))])
    assert found - LOG == {"wanted_hash"}
    assert sorted(stage.rows) == sorted(
        [(7, "new", None), *(tuple(row.values()) for row in rows[30:])]
    )


def test_a_table_that_loses_its_key_after_a_merge(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a MERGE by key asks of Delta is not what one by whole rows does."""
    monkeypatch.setattr(mirror, "LISTED_KEYS", 0)
    keyed = replace(NOTES, identity=ReplicaIdentity.FULL)
    stage = staged(spark, tmp_path, keyed)
    stage.copy([note(1, "one"), note(2, "two")])
    stage.apply([update(note(1, "new"), note(1, "one"))])
    keyless = replace(keyed, columns=tuple(replace(c, key_position=None) for c in keyed.columns))
    change = SchemaChange(keyed, replace(keyless, note=DdlNote(xid=1)))
    assert stage.destination.change_schema(change) is SchemaChangeAction.CONTINUE
    stage.table = stage.script.table = keyless
    stage.apply([delete(note(1, "new"))])
    assert stage.rows == [(2, "two", None)]


def test_a_batch_of_which_another_driver_has_committed_a_part(spark: Any, tmp_path: Path) -> None:
    stage = staged(spark, tmp_path, NOTES)
    stage.copy([note(1)])
    first = stage.script.batch([insert(note(2))])
    second = stage.script.batch([insert(note(3))])
    stage.write(first)
    with pytest.raises(PenstockError, match="another driver"):
        stage.write(joined(first, second))
    assert [row[0] for row in stage.rows] == [1, 2]
    stage.write(second)
    assert [row[0] for row in stage.rows] == [1, 2, 3]


def test_a_large_batch_of_odd_names_that_moves_rows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name of the table's meets one of ours where the two are joined."""
    monkeypatch.setattr(mirror, "LISTED_KEYS", 0)
    monkeypatch.setattr(mirror, "SMALL_MERGE", 0)
    names = ("own_key", "own", "origin", "key", "row", "missing", "deleted", "new")
    columns = tuple(
        ColumnSchema(name, n, STRING, 25, nullable=n > 1, key_position=0 if n == 1 else None)
        for n, name in enumerate(names, 1)
    )
    stage = staged(spark, tmp_path, TableSchema(TableId(7), TableName("public", "odd"), columns))
    stage.copy([dict.fromkeys(names, text) for text in "abc"])
    sent = {**dict.fromkeys(names, "z"), "own_key": "d"}
    kept = [name for name in names if name not in ("own_key", "row")]
    stage.apply(
        [update(sent, {"own_key": "a"}, kept), update({**sent, "own_key": "b"}, None, kept)]
    )
    assert sorted(stage.rows) == [
        tuple("z" if name == "row" else "b" for name in names),
        ("c",) * len(names),
        tuple({"own_key": "d", "row": "z"}.get(name, "a") for name in names),
    ]
    # A session lives as long as its table, and a view that stays keeps the batch in memory.
    assert stage.script.session.catalog.listTables() == []
