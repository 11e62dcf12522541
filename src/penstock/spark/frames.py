"""Parquet files of ours as Spark DataFrames.

Files are always read under the schema that they ought to have, never under the
one they declare: a segment leaves out what none of its rows has (`before`,
`unchanged`, the columns of `before` that are not in the key), and Spark fills
what a file lacks with NULL. It also saves Spark the look into a footer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.postgres.types import spark_type
from penstock.schema import TableSchema, ValueType
from penstock.states import VisibleXids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
