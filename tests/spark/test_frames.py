"""Files as DataFrames, and DataFrames as events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.frames import envelope_schema, spark_schema, visibility
from penstock.states import VisibleXids
from penstock.testing.sample_tables import NOTES, TYPES, note
from penstock.testing.segments import Script, delete, insert, update


@pytest.mark.parametrize(
    "visible",
    [
        VisibleXids(700, 710),
        VisibleXids(700, 710, (700, 705, 709)),
        VisibleXids(2**32 - 5, 2**32 + 5, (2**32 - 5, 2**32 + 1)),
        VisibleXids(5 * 2**32 + 700, 5 * 2**32 + 710, (5 * 2**32 + 705,)),
        VisibleXids(2**31 + 3, 2**31 + 3),
    ],
    ids=str,
)
def test_visibility_in_sql_is_what_the_snapshot_says(visible: VisibleXids, spark: Any) -> None:
    xids = {(visible.xmax + near) % 2**32 for near in range(-20, 20)}
    xids |= {3, 700, 705, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1}
    frame = spark.createDataFrame([(xid,) for xid in xids], "xid long")
    found = frame.selectExpr("xid", f"{visibility(visible)} AS seen").collect()
    assert {xid for xid, seen in found if seen} == {xid for xid in xids if visible.contains(xid)}


def test_what_a_segment_leaves_out_is_null(spark: Any, tmp_path: Path) -> None:
    """Files of one batch may differ in their columns and in the fields of `before`."""
    script = Script(NOTES, tmp_path / "a b", spark)
    inserts = script.batch([insert(note(1, "one"))])
    deletes = script.batch([delete({"id": 1})])
    partial = script.batch([update(note(2, rank=2), unchanged=["note"])])
    files = [*inserts.files, *deletes.files, *partial.files]
    from penstock.spark.frames import read_changes

    frame = read_changes(spark, NOTES, files, None)
    assert frame.schema == envelope_schema(NOTES)
    found = {row["op"]: row for row in frame.collect()}
    assert found["i"]["before"] is None
    assert found["i"]["unchanged"] is None
    assert found["d"]["after"] is None
    assert found["d"]["before"].asDict() == note(1)
    assert found["u"]["unchanged"] == ["note"]
    # Also where only fields are asked for that some files lack.
    assert frame.select("before.note").where("note IS NULL").count() == 3
    assert frame.where("before.id IS NOT NULL").select("op").collect() == [("d",)]


def test_no_files_are_no_rows(spark: Any) -> None:
    from penstock.spark.frames import read_rows

    assert read_rows(spark, TYPES, []).schema == spark_schema(TYPES)
    assert read_rows(spark, TYPES, []).isEmpty()
