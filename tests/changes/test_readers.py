"""The three readers of a copy and of a batch show the same: Spark, Arrow, rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.changes.arrow import _unseen, read_changes
from penstock.errors import UnsentValue
from penstock.events import Begin, Commit, Delete, Insert, Truncate, Update
from penstock.schema import TableSchema
from penstock.states import VisibleXids
from penstock.testing.sample_tables import EXTREME, LINES, NOTES, TYPES, TYPICAL, line, note
from penstock.testing.segments import (
    Change,
    Script,
    delete,
    insert,
    joined,
    truncate,
    update,
)


def plain(value: Any) -> Any:
    """A value that equals another exactly when they print the same: NaN, -0.0, instants."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return repr(value)


def by_spark(frame: Any) -> list[Any]:
    return [plain(row) for row in frame.toArrow().to_pylist()]


def by_arrow(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    return [plain(row) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (TYPES, [{"id": 1, **TYPICAL}, {"id": 2, **EXTREME}, {"id": 3}]),
        (NOTES, [note(1, "a", 1), note(2), note(3, "c")]),
        (LINES, [line("a", 1, "x"), line("b", 2)]),
        (NOTES, []),
    ],
    ids=["types", "notes", "lines", "empty"],
)
def test_the_readers_of_a_copy_agree(
    spark: SparkSession, tmp_path: Path, table: TableSchema, rows: list[dict[str, Any]]
) -> None:
    names = [column.name for column in table.columns]
    full = [{name: row.get(name) for name in names} for row in rows]
    copied = Script(table, tmp_path, spark).copy(full, files=2)
    found = by_arrow(copied.arrow())
    assert sorted(found, key=str) == sorted(by_spark(copied.dataframe), key=str)
    assert found == [plain(dict(row)) for row in copied.rows()]
    assert sorted(found, key=str) == sorted(map(plain, full), key=str)


def test_the_readers_of_a_batch_agree(spark: SparkSession, tmp_path: Path) -> None:
    names = [column.name for column in TYPES.columns]
    typical = {name: {"id": 1, **TYPICAL}.get(name) for name in names}
    extreme = {name: {"id": 2, **EXTREME}.get(name) for name in names}
    script = Script(TYPES, tmp_path, spark)
    batch = joined(
        script.batch([insert(typical), update(extreme, {"id": 1})], [truncate()]),
        script.batch([insert(extreme)], [delete({"id": 2})]),
    )
    found = by_arrow(batch.arrow())
    assert found == by_spark(batch.changes.orderBy("commit_lsn", "tx_ordinal"))
    events = [event for event in batch.events() if not isinstance(event, Begin | Commit)]
    assert [type(event) for event in events] == [Insert, Update, Truncate, Insert, Delete]
    shown = [plain(dict(event.new)) if hasattr(event, "new") else "None" for event in events]
    assert shown == [row["after"] for row in found]


def test_an_update_names_the_values_that_were_not_sent(spark: SparkSession, tmp_path: Path) -> None:
    script = Script(NOTES, tmp_path, spark)
    (event,) = [
        event
        for event in script.batch([update({"id": 1, "amount": 5}, unchanged=["note"])]).events()
        if isinstance(event, Update)
    ]
    assert event.missing == ("note",)
    assert "note" not in event.new


def test_a_row_that_came_into_a_filter_without_its_values_is_an_error_of_ours(
    spark: SparkSession, tmp_path: Path
) -> None:
    lacking = Change("i", after={"id": 1, "note": None, "amount": 1}, unchanged=("note",))
    batch = Script(NOTES, tmp_path, spark).batch([lacking])
    with pytest.raises(UnsentValue) as refused:
        list(batch.events())
    assert refused.value.columns == ("note",)
    with pytest.raises(Exception, match=r"did not send") as told:
        batch.net_effect().rows.collect()
    found = UnsentValue.found_in(told.value, NOTES.name)
    assert found is not None
    assert found.columns == ("note",)


def test_files_whose_transactions_interleave_are_read_in_commit_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    script = Script(NOTES, tmp_path, spark)
    early, middle, late = (script.batch([insert(note(n))]) for n in (1, 2, 3))
    around = tmp_path / "around.parquet"
    import pyarrow.parquet as pq

    pq.write_table(
        pa.concat_tables([pq.read_table(each.files[0]) for each in (early, late)]), around
    )
    files = [middle.files[0], str(around)]
    keys = [row["after"]["id"] for batch in read_changes(NOTES, files) for row in batch.to_pylist()]
    assert keys == [1, 2, 3]


@given(
    xmax=st.integers(3, 2**33),
    running=st.lists(st.integers(0, 2**33), max_size=3),
    xids=st.lists(st.integers(0, 2**32 - 1), max_size=20),
)
def test_the_visibility_of_a_transaction_is_the_snapshots(
    xmax: int, running: list[int], xids: list[int]
) -> None:
    near = [(each + shift) % 2**32 for each in [xmax, *running] for shift in (-1, 0, 1)]
    visible = VisibleXids(3, xmax, tuple(running))
    found = _unseen(pa.array(xids + near, pa.int64()), visible).to_pylist()
    assert found == [not visible.contains(xid) for xid in xids + near]
