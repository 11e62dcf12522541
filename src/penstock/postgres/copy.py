"""Reading a table's rows: ranges of its blocks, each one COPY, inside one snapshot.

A table's file is a run of blocks, and a ctid is a block and a place in it, so
`ctid >= '(a,0)' AND ctid < '(b,0)'` reads exactly the blocks from a to b, with
no index and in no particular order. `plan_ranges` cuts tables (or the leaves of
a partitioned one) into such ranges of about the same size; whoever reads them,
in whatever order and place, reads every row that the snapshot sees once. The
last range of each relation has no end, so blocks that are added after the plan
was made are read too; the snapshot shows nothing new in them.

`copy_ranges` reads ranges as Arrow batches through the value decoder that the
stream uses as well. It holds two buffers of text and one batch at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq

from penstock.config import MIB, PgConnection
from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.postgres import libpq, values
from penstock.postgres.connection import (
    Session,
    cancel,
    connect,
    take_text_as_it_is,
    translate,
    translated,
)
from penstock.postgres.copy_text import split
from penstock.postgres.types import arrow_type
from penstock.postgres.values import TextColumn
from penstock.schema import ColumnSchema, TableSchema, quote_identifier

OnUnrepresentable = Literal["error", "null"]

_BUFFER_BYTES = 4 * MIB
_BUFFER_ROWS = 1 << 16
_MIN_RANGE_BLOCKS = 128


@dataclass(frozen=True, slots=True)
class CtidRange:
    """The blocks from `first_block` to `last_block`, both included; None is no end.

    `relation` is quoted, ready for SQL. `blocks` tells how many there were when
    the range was planned.
    """

    relation: str
    first_block: int = 0
    last_block: int | None = None
    blocks: int = field(default=0, compare=False)

    @property
    def condition(self) -> str | None:
        """The range as SQL; None where it is the whole relation."""
        conditions = []
        if self.first_block > 0:
            conditions.append(f"ctid >= '({self.first_block},0)'::pg_catalog.tid")
        if self.last_block is not None:
            conditions.append(f"ctid < '({self.last_block + 1},0)'::pg_catalog.tid")
        return " AND ".join(conditions) or None


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """Some rows; `nulled` values were unrepresentable and are NULL instead."""

    batch: pa.RecordBatch
    nulled: int


def plan_ranges(targets: Iterable[tuple[str, int]], wanted: int) -> list[CtidRange]:
    """Cut relations into about `wanted` ranges of about the same number of blocks.

    `targets` are quoted relations with their blocks. Every relation has at least
    one range, and only its last one is open. Small tables are not cut up: a
    range has 1 MiB or more.
    """
    sized = [(relation, max(blocks, 0)) for relation, blocks in targets]
    total = sum(blocks for _, blocks in sized)
    size = max(-(-total // max(wanted, 1)), _MIN_RANGE_BLOCKS)
    return [part for relation, blocks in sized for part in _cut(relation, blocks, size)]


def _cut(relation: str, blocks: int, size: int) -> Iterator[CtidRange]:
    pieces = max(1, round(blocks / size))
    bounds = [blocks * piece // pieces for piece in range(pieces + 1)]
    for first, end in pairwise(bounds):
        last = None if end == blocks else end - 1
        yield CtidRange(relation, first, last, end - first)


def arrow_schema(table: TableSchema) -> pa.Schema:
    """What batches of the table's rows look like."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in table.columns])


@contextmanager
def snapshot_session(
    connection: PgConnection, snapshot_id: str, purpose: str = "copy"
) -> Iterator[Session]:
    """A session that reads inside an exported snapshot."""
    session = connect(connection, purpose)
    try:
        quoted = snapshot_id.replace("'", "''")
        with translated("joining the copy's snapshot"):
            session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            session.execute(f"SET TRANSACTION SNAPSHOT '{quoted}'".encode())
        yield session
    finally:
        session.close()


def copy_range(
    session: Session,
    table: TableSchema,
    part: CtidRange,
    *,
    row_filter: str | None = None,
    on_unrepresentable: OnUnrepresentable = "error",
    buffer_bytes: int = _BUFFER_BYTES,
) -> Iterator[CopiedBatch]:
    """The rows of a range, in batches of about `buffer_bytes` of text.

    A caller that leaves before the end leaves a closed session behind.
    """
    decoder = _BatchDecoder(table, on_unrepresentable)
    _start(session, _query(table, part, row_filter), table)
    with closing(_received(session, buffer_bytes)) as buffers:
        for buffer in buffers:
            columns = split(buffer.data, buffer.size, buffer.count, len(table.columns))
            yield decoder.decode(columns, buffer.count)
    _finish(session, table)


def _received(session: Session, buffer_bytes: int) -> Generator[libpq.CopyBuffer, None, None]:
    """Buffers full of rows, the next of which is received while one is worked on."""
    reader = libpq.CopyReader(session.pgconn)
    ready, filling = (libpq.CopyBuffer(buffer_bytes, _BUFFER_ROWS) for _ in range(2))

    def receive(buffer: libpq.CopyBuffer) -> int:
        buffer.clear()
        return reader.read(buffer)

    with ThreadPoolExecutor(1, "copy") as thread:
        status = libpq.FULL
        receiving = thread.submit(receive, filling)
        try:
            while status == libpq.FULL:
                status = receiving.result()
                ready, filling = filling, ready
                if status == libpq.FULL:
                    receiving = thread.submit(receive, filling)
                if ready.count:
                    yield ready
        except BaseException:
            # Nobody wants the rest. The thread may wait for rows that are long
            # in coming, so the server is asked to end the COPY before we close.
            if not receiving.done():
                cancel(session)
            thread.shutdown()
            session.close()
            raise


def _query(table: TableSchema, part: CtidRange, row_filter: str | None) -> str:
    columns = ", ".join(quote_identifier(column.name) for column in table.columns)
    conditions = [part.condition, f"({row_filter})" if row_filter else None]
    where = " AND ".join(condition for condition in conditions if condition)
    select = f"SELECT {columns} FROM ONLY {part.relation}" + (f" WHERE {where}" if where else "")
    return f"COPY ({select}) TO STDOUT"


def _start(session: Session, query: str, table: TableSchema) -> None:
    take_text_as_it_is(session)
    result = session.pgconn.exec_(query.encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise _failure(session, result, table)


def _finish(session: Session, table: TableSchema) -> None:
    """See how the COPY ended: a server that fails half way says so only now."""
    failed = None
    while (result := session.pgconn.get_result()) is not None:
        if result.status != pq.ExecStatus.COMMAND_OK:
            failed = failed or _failure(session, result, table)
            if result.status in (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_IN):
                break
    if failed is not None:
        raise failed


def _failure(session: Session, result: Any, table: TableSchema) -> PenstockError:
    error = psycopg.errors.error_from_result(result, encoding="utf-8")
    if session.pgconn.status == pq.ConnStatus.BAD and not error.sqlstate:
        error = psycopg.OperationalError(str(error) or "the connection was lost")
    return translate(error, "copying rows", table.name)


class _BatchDecoder:
    """Text columns of one table to Arrow batches, and what to do about bad values."""

    def __init__(self, table: TableSchema, on_unrepresentable: OnUnrepresentable) -> None:
        self._table = table
        self._schema = arrow_schema(table)
        self._strict = on_unrepresentable == "error"

    def decode(self, texts: Sequence[TextColumn], rows: int) -> CopiedBatch:
        arrays, nulled = [], 0
        for column, text in zip(self._table.columns, texts, strict=True):
            decoded = values.decode(text, column.type)
            if decoded.bad.size:
                # Rows that NULL names would be taken for one.
                if self._strict or column.key_position is not None:
                    raise self._unrepresentable(column, text, texts, int(decoded.bad[0]))
                nulled += int(decoded.bad.size)
            arrays.append(decoded.array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        assert batch.num_rows == rows or not arrays
        return CopiedBatch(batch, nulled)

    def _unrepresentable(
        self, column: ColumnSchema, text: TextColumn, texts: Sequence[TextColumn], row: int
    ) -> PenstockError:
        by_name = {c.name: t for c, t in zip(self._table.columns, texts, strict=True)}
        key = ", ".join(f"{c.name}={_value(by_name[c.name], row)}" for c in self._table.key)
        where = f" of the row with {shorten(key)}" if key else ""
        in_key = column.key_position is not None
        instead = "" if in_key else "write NULL instead (on_unrepresentable: null), "
        other = (
            f"carry the column as text (column_types: {self._table.name}: {column.name}: string)"
        )
        cannot = f"its type {column.type_name or column.type.kind} cannot hold at the destination"
        if column.type.is_text:
            other = "find out which encoding it has (the database is SQL_ASCII)"
            cannot = "is no UTF-8"
        return PenstockError(
            ErrorKind.DATA_UNREPRESENTABLE,
            f"column {column.name}{where} holds {shorten(_value(text, row))}, which {cannot}",
            hint=f"{other}, {instead}or mend the row at the source",
            table=self._table.name,
        )


def _value(text: TextColumn, row: int) -> str:
    start, length = int(text.starts[row]), int(text.lengths[row])
    if length < 0:
        return "NULL"
    return bytes(np.asarray(text.buffer[start : start + length])).decode(errors="replace")


def warm_up() -> None:
    """Compile every kernel that a copy needs, or load it from its cache."""
    libpq.warm_up()
    split(np.frombuffer(bytearray(b"\\\\\n"), np.uint8), 3, 1, 1)
    values.warm_up()
