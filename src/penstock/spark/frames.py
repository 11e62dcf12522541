"""Parquet files of ours as Spark DataFrames, and DataFrames as events.

Files are always read under the schema that they ought to have, never under the
one they declare: a segment leaves out what none of its rows has (`before`,
`unchanged`, the columns of `before` that are not in the key), and Spark fills
what a file lacks with NULL. It also saves Spark the look into a footer.

Row events leave Spark as Python values. Timestamps travel as microseconds,
because Spark would hand them over in the driver's own time zone, where an hour
of every autumn is ambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.changes.batches import UNSENT_HINT, UNSENT_VALUE
from penstock.errors import ErrorKind, PenstockError
from penstock.events import (
    Begin,
    Commit,
    Delete,
    Event,
    Insert,
    OldRow,
    Relation,
    Row,
    Truncate,
    Update,
)
from penstock.postgres.types import spark_type
from penstock.schema import Lsn, ReplicaIdentity, TableSchema, ValueKind, ValueType
from penstock.states import VisibleXids

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from penstock.changes.batches import ChangeBatch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=1024)
def data_type(type: ValueType) -> DataType:  # noqa: A002
    # What `timestamp` alone is depends on the active session's settings.
    return DataType.fromDDL(re.sub(r"\btimestamp\b", "timestamp_ltz", spark_type(type)))


@lru_cache(maxsize=1024)
def spark_schema(table: TableSchema) -> StructType:
    """A table's rows as Spark sees them. Every column may be NULL, whatever Postgres says."""
    return StructType([StructField(c.name, data_type(c.type)) for c in table.columns])


@lru_cache(maxsize=1024)
def envelope_schema(table: TableSchema) -> StructType:
    """A table's changes as Spark sees them."""
    row = spark_schema(table)
    return StructType(
        [
            StructField("op", StringType()),
            StructField("commit_lsn", LongType()),
            StructField("tx_ordinal", LongType()),
            StructField("commit_ts", TimestampType()),
            StructField("xid", LongType()),
            StructField("before", row),
            StructField("after", row),
            StructField("unchanged", ArrayType(StringType())),
        ]
    )


def quoted(name: str) -> str:
    """A column's name, safe in `col` and in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def read_rows(session: SparkSession, table: TableSchema, files: Sequence[str]) -> DataFrame:
    """The rows of a copied table."""
    return _read(session, spark_schema(table), files)


def read_changes(
    session: SparkSession, table: TableSchema, files: Sequence[str], visible: VisibleXids | None
) -> DataFrame:
    """The changes in `files`, without those of `visible` transactions."""
    changes = _read(session, envelope_schema(table), files)
    return changes.where(f"NOT ({visibility(visible)})") if visible else changes


def visibility(visible: VisibleXids) -> str:
    """`visible.contains(xid)` as Spark SQL, over a column `xid`."""
    wrap = 2**32
    before_xmax = f"pmod(xid - {visible.xmax % wrap}L, {wrap}L) >= {wrap // 2}L"
    if not visible.running:
        return before_xmax
    running = ", ".join(f"{xid % wrap}L" for xid in visible.running)
    return f"{before_xmax} AND pmod(xid, {wrap}L) NOT IN ({running})"


def _read(session: SparkSession, schema: StructType, files: Sequence[str]) -> DataFrame:
    if not files:
        return session.createDataFrame([], schema)
    reader = session.read.schema(schema)
    # A path is a path, also where it has a bracket in it.
    reader = reader.option("__globPaths__", "false")
    # Parquet's reader cannot look into an lz4 dictionary of more than 8 KiB before it has
    # read a page as large, and fails (apache/parquet-java#3478).
    reader = reader.option("parquet.filter.dictionary.enabled", "false")
    return reader.parquet(*files)


def iterate_rows(table: TableSchema, rows: DataFrame) -> Iterator[Row]:
    """Rows of a table as dictionaries of Python values, in no particular order."""
    row = F.struct(*[F.col(quoted(column.name)) for column in table.columns])
    frame = rows.select(row.alias("row")).select(_portable(table, "row"))
    restore = _Restore(table)
    for (values,) in frame.toLocalIterator():
        yield restore(values) or {}


def iterate_events(batch: ChangeBatch) -> Iterator[Event]:
    """The batch's changes in order, with brackets around each transaction.

    Rows come to the driver one partition of the sorted batch at a time. The
    journal keeps no position of a single change, so `start_lsn` is that of the
    transaction's commit.
    """
    table = batch.table
    if batch.begins_version:
        yield Relation(table.version, table.version, 0, table)
    frame = batch.changes.select(
        "op",
        "commit_lsn",
        "tx_ordinal",
        F.unix_micros("commit_ts").alias("commit_ts"),
        "xid",
        _portable(table, "before"),
        _portable(table, "after"),
        "unchanged",
    ).orderBy("commit_lsn", "tx_ordinal")
    restore = _Restore(table)
    last: Any = None
    for change in frame.toLocalIterator():
        if last is None or last["commit_lsn"] != change["commit_lsn"]:
            if last is not None:
                yield Commit(*_place(last), last["xid"], _instant(last["commit_ts"]))
            yield Begin(*_place(change), change["xid"], _instant(change["commit_ts"]))
        yield _event(table, change, restore)
        last = change
    if last is not None:
        yield Commit(*_place(last), last["xid"], _instant(last["commit_ts"]))


def _event(table: TableSchema, change: Any, restore: _Restore) -> Event:
    place = _place(change)
    old = restore(change["before"])
    key = [column.name for column in table.key]
    full = table.identity is ReplicaIdentity.FULL and not _is_bare_key(old, key)
    if old is not None and not full:
        old = {name: old[name] for name in key}
    match change["op"]:
        case "i":
            if unsent := change["unchanged"]:
                raise PenstockError(
                    ErrorKind.SOURCE_SCHEMA,
                    f"{UNSENT_VALUE} {', '.join(unsent)}",
                    hint=UNSENT_HINT,
                    table=table.name,
                    position=place[1],
                )
            return Insert(*place, restore(change["after"]) or {})
        case "u":
            new = dict(restore(change["after"]) or {})
            unsent = change["unchanged"] or ()
            known = {name: old[name] for name in unsent if old and name in key}
            missing = tuple(name for name in unsent if name not in known)
            for name in missing:
                del new[name]
            kind = OldRow.ABSENT if old is None else OldRow.FULL if full else OldRow.KEY
            return Update(*place, new | known, old, kind, missing)
        case "d":
            return Delete(*place, old or {}, OldRow.FULL if full else OldRow.KEY)
        case "t":
            return Truncate(*place)
        case op:
            raise ValueError(f"unknown change {op!r} at {place[1]}")


def _is_bare_key(old: Mapping[str, Any] | None, key: Collection[str]) -> bool:
    """Whether an old row has its key alone: a partition's, whose own identity is that."""
    others = (value for name, value in (old or {}).items() if name not in key)
    return bool(key) and all(value is None for value in others)


def _place(change: Any) -> tuple[Lsn, Lsn, int]:
    lsn = Lsn(change["commit_lsn"])
    return lsn, lsn, change["tx_ordinal"]


def _instant(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _portable(table: TableSchema, side: str) -> Column:
    """One side of the envelope with timestamps as microseconds."""
    if not any(_holds_timestamps(column.type) for column in table.columns):
        return F.col(side)
    fields = []
    for column in table.columns:
        field = F.col(f"{side}.{quoted(column.name)}")
        fields.append(_portable_value(column.type, field).alias(column.name))
    return F.when(F.col(side).isNotNull(), F.struct(*fields)).alias(side)


def _portable_value(type: ValueType, value: Column) -> Column:  # noqa: A002
    if not _holds_timestamps(type):
        return value
    if type.element is None:
        return F.unix_micros(value)
    element = type.element
    return F.transform(value, lambda item: _portable_value(element, item))


def _holds_timestamps(type: ValueType) -> bool:  # noqa: A002
    return type.kind is ValueKind.TIMESTAMP or (
        type.element is not None and _holds_timestamps(type.element)
    )


class _Restore:
    """Collected rows as plain dictionaries of Python's own values."""

    def __init__(self, table: TableSchema) -> None:
        self._names = [column.name for column in table.columns]
        self._restorers = [
            (column.name, column.type) for column in table.columns if _needs_restoring(column.type)
        ]

    def __call__(self, row: Any) -> Row | None:
        if row is None:
            return None
        values: dict[str, Any] = dict(zip(self._names, row, strict=True))
        for name, kind in self._restorers:
            values[name] = _restore(kind, values[name])
        return values


def _needs_restoring(type: ValueType) -> bool:  # noqa: A002
    if type.element is not None:
        return _needs_restoring(type.element)
    return type.kind in (ValueKind.TIMESTAMP, ValueKind.BINARY)


def _restore(type: ValueType, value: Any) -> Any:  # noqa: A002
    if value is None:
        return None
    if type.element is not None:
        return [_restore(type.element, item) for item in value]
    return _instant(value) if type.kind is ValueKind.TIMESTAMP else bytes(value)
