"""A cluster's settings that would change rows without a word do not reach our sessions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.errors import PenstockError
from penstock.schema import (
    ColumnSchema,
    DdlNote,
    Lsn,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)
from penstock.spark import frames
from penstock.spark.session import SETTINGS, own_session
from penstock.testing.sample_tables import ID, NOTES, note
from penstock.testing.segments import insert, joined, update
from tests.destinations.test_delta_mirror import staged

FOREIGN = {
    "spark.databricks.delta.skipRecordingEmptyCommits": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.variable.substitute": "true",
}


@pytest.fixture
def foreign(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session in a cluster that is configured by somebody else."""
    new_session = SparkSession.newSession

    def configured(session: SparkSession) -> SparkSession:
        session = new_session(session)
        for name, value in FOREIGN.items():
            session.conf.set(name, value)
        return session

    monkeypatch.setattr(SparkSession, "newSession", configured)
    caches = (frames.data_type, frames.spark_schema, frames.envelope_schema)
    for cache in caches:
        cache.cache_clear()
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # also where types are parsed
    yield spark.newSession()
    spark.conf.unset("spark.sql.timestampType")
    for cache in caches:
        cache.cache_clear()


def test_our_sessions_have_our_settings(foreign: Any) -> None:
    assert set(FOREIGN) == set(SETTINGS)
    theirs, ours = foreign.newSession(), own_session(foreign)
    assert {name: theirs.conf.get(name) for name in FOREIGN} == FOREIGN
    assert {name: ours.conf.get(name) for name in SETTINGS} == SETTINGS


def test_a_corrupt_segment_is_not_passed_over(foreign: Any, tmp_path: Path) -> None:
    stage = staged(foreign, tmp_path, NOTES)
    stage.copy([note(1)])
    whole = stage.script.batch([insert(note(n, f"note {n}")) for n in range(10, 20)])
    broken = stage.script.batch([insert(note(n, f"note {n}")) for n in range(20, 30)])
    spoil(Path(broken.files[0]), "after.id")
    with pytest.raises(PenstockError):
        stage.write(joined(whole, broken))
    assert [row[0] for row in stage.rows] == [1]


def spoil(path: Path, column: str) -> None:
    group = pq.read_metadata(path).row_group(0)
    chunk = next(
        group.column(n)
        for n in range(group.num_columns)
        if group.column(n).path_in_schema == column
    )
    data = bytearray(path.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    size = chunk.total_compressed_size
    data[begin : begin + size] = b"\xff" * size
    path.write_bytes(data)


TIMES = TableSchema(
    TableId(9),
    TableName("public", "times"),
    (
        ID,
        ColumnSchema("day", 2, ValueType(ValueKind.DATE), 1082),
        ColumnSchema("local", 3, ValueType(ValueKind.TIMESTAMP_NTZ), 1114),
        ColumnSchema("instant", 4, ValueType(ValueKind.TIMESTAMP), 1184),
    ),
)


def times(number: int, year: int) -> dict[str, Any]:
    instant = datetime(year, 10, 14, 1, tzinfo=UTC)
    local = instant.replace(tzinfo=None)
    return {
        "id": number,
        "day": local.date(),
        "local": local,
        "instant": instant,
    }


def test_dates_and_times_stay_what_they_are(foreign: Any, tmp_path: Path, spark: Any) -> None:
    stage = staged(foreign, tmp_path, TIMES)
    stage.copy([times(1, 1066), times(2, 2020)])
    stage.apply([insert(times(3, 1066)), update(times(2, 1500))])
    reader = own_session(spark).read.format("delta")
    found = reader.load(stage.destination.path(TIMES.name))  # type: ignore[attr-defined]
    types = [field.dataType.simpleString() for field in found.schema.fields]
    assert types == ["bigint", "date", "timestamp_ntz", "timestamp"]
    shown = found.orderBy("id").selectExpr("id", "day", "local", "unix_seconds(instant)").collect()
    assert [tuple(row) for row in shown] == [
        (number, row["day"], row["local"], round(row["instant"].timestamp()))
        for number, row in ((n, times(n, year)) for n, year in ((1, 1066), (2, 1500), (3, 1066)))
    ]


def test_a_default_is_no_time_of_the_sessions_zone(
    foreign: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New York has no half past two on that day."""
    monkeypatch.delitem(FOREIGN, "spark.sql.timestampType")
    stage = staged(foreign, tmp_path, NOTES)
    stage.copy([note(1)])
    local = ColumnSchema("local", 4, ValueType(ValueKind.TIMESTAMP_NTZ), 1114)
    day = ColumnSchema("day", 5, ValueType(ValueKind.DATE), 1082)
    wider = replace(
        NOTES,
        columns=(*NOTES.columns, local, day),
        version=Lsn(0x1000),
        note=DdlNote(xid=1, fills=((4, "2024-03-10 02:30:00"), (5, "1066-10-14"))),
    )
    change = SchemaChange(NOTES, wider)
    assert stage.destination.change_schema(change) is SchemaChangeAction.CONTINUE
    found = (
        own_session(foreign)
        .read.format("delta")
        .load(
            stage.destination.path(NOTES.name)  # type: ignore[attr-defined]
        )
    )
    assert tuple(found.select("local", "day").collect()[0]) == (
        datetime.fromisoformat("2024-03-10 02:30"),
        date(1066, 10, 14),
    )
