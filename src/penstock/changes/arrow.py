"""Segments and copied files as Arrow record batches, read directly, without a Spark job.

Files are read under the schema that they ought to have. A segment leaves out what none of its rows
fills (`before`, `unchanged`, columns of `before` that are not in the key); the reader fills these
with NULL, as Spark does.

Rows of a file are in commit order. Files of a batch nearly always follow each other, but a
transaction that was written to disk before its commit may lie between the rows of another file.
Such files are sorted together in memory; all others are streamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.postgres.types import arrow_type
from penstock.schema import TableSchema
from penstock.states import VisibleXids

ROWS_AT_ONCE = 65_536

_ORDER = ["commit_lsn", "tx_ordinal"]
_WRAP = 2**32

Place = tuple[int, int]


def row_schema(table: TableSchema) -> pa.Schema:
    """A table's rows in Arrow."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in table.columns])


def envelope_schema(table: TableSchema) -> pa.Schema:
    """A table's changes in Arrow."""
    row = pa.struct(list(row_schema(table)))
    return pa.schema(
        [
            ("op", pa.string()),
            ("commit_lsn", pa.int64()),
            ("tx_ordinal", pa.int64()),
            ("commit_ts", pa.timestamp("us", tz="UTC")),
            ("xid", pa.int64()),
            ("before", row),
            ("after", row),
            ("unchanged", pa.list_(pa.string())),
        ]
    )


def read_rows(
    table: TableSchema, files: Sequence[str], rows_at_once: int = ROWS_AT_ONCE
) -> Iterator[pa.RecordBatch]:
    """The rows of a copied table, in no particular order."""
    schema = row_schema(table)
    for file in files:
        yield from _stream(file, schema, rows_at_once)


def read_changes(
    table: TableSchema,
    files: Sequence[str],
    visible: VisibleXids | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> Iterator[pa.RecordBatch]:
    """The changes in `files` in commit order, without those of `visible` transactions."""
    schema = envelope_schema(table)
    for together in _in_commit_order(files):
        if len(together) == 1:
            batches = _stream(together[0], schema, rows_at_once)
        else:
            parts = [batch for file in together for batch in _stream(file, schema, rows_at_once)]
            merged = pa.Table.from_batches(parts, schema)
            merged = merged.sort_by([(name, "ascending") for name in _ORDER])
            batches = iter(merged.to_batches(max_chunksize=rows_at_once))
        for batch in batches:
            left = batch if visible is None else batch.filter(_unseen(batch["xid"], visible))
            if left.num_rows:
                yield left


def _in_commit_order(files: Sequence[str]) -> list[list[str]]:
    """The files by their first change; those whose changes interleave are together."""
    if len(files) == 1:
        return [list(files)]
    spans = sorted((*_span(file), file) for file in files)
    groups: list[list[str]] = []
    reached: Place = (-1, -1)
    for first, last, file in spans:
        if groups and first < reached:
            groups[-1].append(file)
        else:
            groups.append([file])
        reached = max(reached, last)
    return groups


def _span(file: str) -> tuple[Place, Place]:
    places = pq.read_table(file, columns=_ORDER, partitioning=None)
    commits, ordinals = places.columns
    ends = 0, places.num_rows - 1
    first, last = ((commits[row].as_py(), ordinals[row].as_py()) for row in ends)
    return first, last


def _stream(file: str, schema: pa.Schema, rows_at_once: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(rows_at_once):
            columns = [
                _conformed(batch.column(field.name), field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _conformed(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array as `wanted`, with NULL in fields of a struct that it lacks."""
    if not pa.types.is_struct(wanted):
        return array if array.type == wanted else array.cast(wanted)
    present = {field.name for field in array.type}
    children = [
        _conformed(array.field(field.name), field.type)
        if field.name in present
        else pa.nulls(len(array), field.type)
        for field in wanted
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=mask)


def _unseen(xids: pa.Array, visible: VisibleXids) -> pa.Array:
    """`not visible.contains(xid)` for each of `xids`."""
    # Stream ids have 32 bits. Shifted so, the ids before xmax are those with the highest bit.
    distance = pc.bit_wise_and(
        pc.subtract(pc.cast(xids, pa.int64()), visible.xmax % _WRAP), _WRAP - 1
    )
    seen = pc.greater_equal(distance, _WRAP // 2)
    if visible.running:
        running = pa.array([xid % _WRAP for xid in visible.running], pa.int64())
        seen = pc.and_(seen, pc.invert(pc.is_in(pc.bit_wise_and(xids, _WRAP - 1), running)))
    return pc.invert(seen)
