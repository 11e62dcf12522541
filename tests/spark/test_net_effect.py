"""The net effect of a batch is what applying its changes one by one would do.

Each example is many small tables at once: a case number is part of the key, so one
Spark job tries them all.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.changes.batches import ChangeBatch
from penstock.errors import PenstockError
from penstock.schema import (
    STRING,
    ColumnSchema,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)
from penstock.testing.segments import Change, Script, delete, insert, joined, truncate, update

INTEGER = ValueType(ValueKind.INTEGER)
TOASTED = ("doc", "key")
TABLE = TableSchema(
    TableId(1),
    TableName("public", "cases"),
    (
        ColumnSchema("rank", 1, INTEGER, 23),
        ColumnSchema("id", 2, INTEGER, 23, nullable=False, key_position=1),
        ColumnSchema("doc", 3, STRING, 25),
        ColumnSchema("case", 4, INTEGER, 23, nullable=False, key_position=0),
        ColumnSchema("key", 5, STRING, 25),
    ),
)
FULL = replace(TABLE, identity=ReplicaIdentity.FULL)
KEYLESS = replace(FULL, columns=tuple(replace(c, key_position=None) for c in FULL.columns))

Row = dict[str, Any]
Key = tuple[int, int]


class Case:
    """One small table: its rows, and the changes that made them."""

    def __init__(self, number: int, table: TableSchema, ids: set[int]) -> None:
        self.number = number
        self.table = table
        self.values = itertools.count(1)
        self.before = {number: self.row(number) for number in ids}
        self.rows = dict(self.before)
        self.changes: list[Change] = []

    def row(self, number: int) -> Row:
        value = next(self.values)
        doc = None if value % 5 == 0 else f"doc {self.number}.{value}"
        return {"case": self.number, "id": number, "rank": value, "doc": doc, "key": f"k{value}"}

    def change(self, kind: str, number: int, target: int, unsent: tuple[str, ...]) -> None:
        """Make one change, if it makes sense here."""
        old = self.rows.get(number)
        if kind == "insert" and old is None:
            self.rows[number] = self.row(number)
            self.changes.append(insert(self.rows[number]))
        elif kind == "delete" and old is not None:
            del self.rows[number]
            self.changes.append(delete(self.old(old)))
        elif kind == "truncate":
            self.rows.clear()
            self.changes.append(truncate())
        elif kind in ("update", "move") and old is not None:
            target = target if kind == "move" else number
            if target != number and target in self.rows:
                return
            unsent = unsent if self.table.key else ()
            kept = {name: old[name] for name in unsent}
            new = self.row(target) | kept
            del self.rows[number]
            self.rows[target] = new
            # Where the whole old row comes nothing is missing; but a partition may send a
            # bare key though its root's identity is full.
            bare = self.table.identity is not ReplicaIdentity.FULL or bool(unsent)
            before = self.old(old, bare=bare) if target != number or not bare else None
            self.changes.append(update(new, before, unsent))

    def old(self, row: Row, *, bare: bool = False) -> Row:
        if self.table.identity is not ReplicaIdentity.FULL:
            return {column.name: row[column.name] for column in self.table.key}
        key = {column.name for column in self.table.key}
        return {name: value if name in key or not bare else None for name, value in row.items()}


steps = st.tuples(
    st.sampled_from(["insert", "update", "move", "move", "delete"]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([(), ("doc",), ("key",), TOASTED]),
)
cases = st.lists(
    st.tuples(st.sets(st.integers(1, 4)), st.lists(steps, max_size=9)), min_size=1, max_size=60
)
few_examples = settings(
    max_examples=8,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def play(table: TableSchema, drawn: Any) -> list[Case]:
    played = []
    for number, (ids, changes) in enumerate(drawn):
        case = Case(number, table, ids)
        for change in changes:
            case.change(*change)
        played.append(case)
    return played


def batch_of(script: Script, played: list[Case]) -> ChangeBatch:
    """All cases' changes, interleaved, several to a transaction and over several segments.

    Segments differ in what they leave out, for want of any row that has it.
    """
    rounds = itertools.zip_longest(*[case.changes for case in played])
    transactions = [[change for change in changes if change] for changes in rounds] or [[]]
    third = max(1, len(transactions) // 3)
    return joined(
        *[
            script.batch(*transactions[first : first + third])
            for first in range(0, len(transactions), third)
        ]
    )


def key_of(row: Row) -> Key:
    return row["case"], row["id"]


def applied(before: dict[Key, Row], batch: ChangeBatch) -> dict[Key, Row]:
    """A mirror after the net effect, by the contract alone."""
    effect = batch.net_effect()
    rows = {} if effect.truncated else dict(before)
    seen = set()
    for found in effect.rows.collect():
        key = key_of(found["key"].asDict())
        assert key not in seen
        seen.add(key)
        if found["new"]:
            assert key not in before or effect.truncated
        if found["deleted"]:
            assert found["row"] is None
            rows.pop(key, None)
            continue
        row = found["row"].asDict()
        if effect.may_miss:
            origin = key_of(found["origin"].asDict())
            row |= {name: before[origin][name] for name in found["missing"]}
        rows[key] = row
    return rows


@pytest.mark.parametrize("table", [TABLE, FULL], ids=["key", "full"])
@given(drawn=cases)
@few_examples
def test_random_changes(table: TableSchema, drawn: Any, spark: Any, tmp_path: Path) -> None:
    played = play(table, drawn)
    before = {key_of(row): row for case in played for row in case.before.values()}
    after = {key_of(row): row for case in played for row in case.rows.values()}
    assert applied(before, batch_of(Script(table, tmp_path, spark), played)) == after


@given(drawn=cases, at=st.lists(st.integers(0, 40), max_size=3))
@few_examples
def test_random_changes_and_truncates(
    drawn: Any, at: list[int], spark: Any, tmp_path: Path
) -> None:
    [case] = play(TABLE, [({1, 2}, [])])
    for number, change in enumerate(itertools.chain(*[changes for _, changes in drawn])):
        if number in at:
            case.change("truncate", 0, 0, ())
        case.change(*change)
    before = {key_of(row): row for row in case.before.values()}
    after = {key_of(row): row for row in case.rows.values()}
    assert applied(before, batch_of(Script(TABLE, tmp_path, spark), [case])) == after


@given(drawn=cases)
@few_examples
def test_random_changes_without_a_key(drawn: Any, spark: Any, tmp_path: Path) -> None:
    played = play(KEYLESS, drawn)
    effect = batch_of(Script(KEYLESS, tmp_path, spark), played).net_effect()
    change: Counter[Any] = Counter()
    for case in played:
        change.update(tuple(sorted(row.items())) for row in case.rows.values())
        change.subtract(tuple(sorted(row.items())) for row in case.before.values())
    found = {
        tuple(sorted(row["row"].asDict().items())): row["change"] for row in effect.rows.collect()
    }
    assert found == {row: count for row, count in change.items() if count}


def test_inserts_alone_are_known_to_be_new_without_a_shuffle(spark: Any, tmp_path: Path) -> None:
    [case] = play(TABLE, [(set(), [("insert", n, 0, ()) for n in range(1, 5)])])
    effect = batch_of(Script(TABLE, tmp_path, spark), [case]).net_effect()
    assert effect.only_new
    assert "Exchange" not in effect.rows._jdf.queryExecution().toString()


def test_a_long_trail_of_moves_is_followed_to_its_origin(spark: Any, tmp_path: Path) -> None:
    [case] = play(
        TABLE,
        [({1}, [("move", n, n + 1, ("doc",)) for n in range(1, 9)] + [("insert", 1, 0, ())])],
    )
    batch = batch_of(Script(TABLE, tmp_path, spark), [case])
    before = {key_of(row): row for row in case.before.values()}
    assert applied(before, batch) == {key_of(row): row for row in case.rows.values()}


def test_a_key_stored_out_of_line_comes_with_the_old_key(spark: Any, tmp_path: Path) -> None:
    """Postgres marks it unchanged in the new row and sends the old key beside it."""
    table = replace(
        TABLE,
        columns=tuple(
            replace(c, key_position=0 if c.name == "key" else None) for c in TABLE.columns
        ),
    )
    row = {"case": 1, "id": 1, "rank": 2, "doc": "d", "key": "long"}
    script = Script(table, tmp_path, spark)
    batch = script.batch([update(row, {"key": "long"}, unchanged=["key"])])
    [found] = batch.net_effect().rows.collect()
    assert found["key"].asDict() == {"key": "long"}
    assert not found["deleted"]
    assert not found["new"]
    assert found["row"].asDict() == row


def test_a_numeric_carried_as_double_may_be_stored_out_of_line(spark: Any, tmp_path: Path) -> None:
    """A numeric of some thousand digits is left out of an update like any long value."""
    rough = ColumnSchema("rough", 2, ValueType(ValueKind.DOUBLE), 1700)
    table = replace(TABLE, columns=(replace(TABLE.columns[1], key_position=0), rough))
    script = Script(table, tmp_path, spark)
    batch = script.batch(
        [update({"id": 1, "rough": None}, unchanged=["rough"])],
        [insert({"id": 2, "rough": 0.5}), update({"id": 2, "rough": None}, unchanged=["rough"])],
    )
    rows = {row["key"]["id"]: row for row in batch.net_effect().rows.collect()}
    assert rows[1]["missing"] == ["rough"]
    assert rows[2]["row"]["rough"] == 0.5
    assert rows[2]["missing"] == []


def test_updates_of_a_table_without_key_or_full_identity_are_refused(
    spark: Any, tmp_path: Path
) -> None:
    table = replace(KEYLESS, identity=ReplicaIdentity.DEFAULT)
    row = Case(1, table, set()).row(1)
    script = Script(table, tmp_path, spark)
    assert script.batch([insert(row)]).net_effect().only_new
    with pytest.raises(PenstockError, match="no key") as refused:
        script.batch([update(row)]).net_effect()
    assert "REPLICA IDENTITY FULL" in (refused.value.hint or "")
