"""Buffers of messages to chunks of segments.

The decoder knows the tables of the stream. Every schema version of a table has a
*slot*, a small number that the kernels write beside each change, so that a table
that changes its shape in the middle of a buffer needs no special case: its later
changes simply carry another slot. Which version that is, `SchemaVersions` knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.journal.manifest import ChangeCounts, Defect
from penstock.journal.segment import Chunk
from penstock.journal.versions import Relations, SchemaVersions
from penstock.postgres import pgoutput
from penstock.postgres.libpq import CopyBuffer
from penstock.postgres.pgoutput import (
    Bytes,
    ChangeIndex,
    Ints,
    RelationMessage,
    ValueSlices,
    parse_relation,
)
from penstock.postgres.types import arrow_type
from penstock.postgres.values import TextColumn, decode
from penstock.publication_drift.sent_partitions import SentPartition
from penstock.schema import (
    ColumnSchema,
    Lsn,
    ReplicaIdentity,
    TableId,
    TableSchema,
    ValueKind,
)

_INTEGERS = (ValueKind.SHORT, ValueKind.INTEGER, ValueKind.LONG)
_OPERATIONS = pa.array(pgoutput.OPERATIONS)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_VALUES_AT_ONCE = 2**21
"""A NULL is one byte in a buffer, and 12 where it is located, 24 with an old row. Rows of
eight columns, as many as a buffer takes, are decoded in one go."""

_NONSENSE = {
    pgoutput.UNKNOWN_TABLE: "a change of an unannounced table",
    pgoutput.UNKNOWN_MESSAGE: "an unknown message",
    pgoutput.CUT_SHORT: "a message that is cut short",
    pgoutput.OUTSIDE: "a change outside a transaction",
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one buffer held.

    `closed` are changes of transactions whose commit has been seen, including
    what `open` carried over before; `open` those of the transaction that is still
    under way. `end` is the end of the last commit, None when the buffer had none.

    Chunks are decoded as they are asked for, because all at once may be many times as
    large as the buffer. So they are there once, the closed ones first, and for as long as
    the buffer is left alone.
    """

    closed: Iterable[Chunk]
    open: Iterable[Chunk]
    end: Lsn | None
    committed_at: datetime | None
    in_transaction: bool


class ChangeDecoder:
    """Decodes one stream, from its start on; a new connection gets a new decoder."""

    def __init__(self, known: Mapping[TableId, TableSchema], relations: Relations) -> None:
        self.versions = SchemaVersions(known, relations)
        self._slots: list[TableSchema] = []
        self._current: dict[int, int] = {}
        self._heard_of: list[RelationMessage] = []
        """The relations that were told of since the last change."""
        self._partitions: dict[TableId, dict[int, RelationMessage]] = defaultdict(dict)
        """What was told of the partitions that are sent under each root's name."""
        self._frugal: dict[TableId, str] = {}
        """A partition that does not send what its root's key is made of, by that root."""
        self._state = pgoutput.new_state()

    def decode(self, frames: CopyBuffer) -> Decoded:
        buffer = frames.data
        index, closed, ended = self._index(frames)
        end, committed_at = self._closed() if ended else (None, None)
        return Decoded(
            closed=self._chunks(buffer, index.take(slice(0, closed))),
            open=self._chunks(buffer, index.take(slice(closed, None))),
            end=end,
            committed_at=committed_at,
            in_transaction=bool(self._state[pgoutput.OPEN]),
        )

    def _closed(self) -> tuple[Lsn, datetime]:
        """End and time of the last commit."""
        position, microseconds = map(int, self._state[[pgoutput.CLOSED_END, pgoutput.CLOSED_TS]])
        try:
            return Lsn(position), datetime.fromtimestamp(microseconds / 1_000_000, UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise self._nonsense("a commit at an impossible place or time") from error

    def _index(self, frames: CopyBuffer) -> tuple[ChangeIndex, int, bool]:
        """The changes of a buffer, how many are closed, and whether a commit was among them."""
        buffer, ends = frames.data, frames.ends
        index = ChangeIndex.empty(frames.count + 16)
        first = used = closed = 0
        ended = False
        while True:
            oids = np.fromiter(self._current.keys(), dtype=np.int64, count=len(self._current))
            slots = np.fromiter(self._current.values(), dtype=np.int64, count=len(self._current))
            known = used
            first, used, closed_now, code = pgoutput.index_messages(
                buffer, ends, frames.count, first, used, self._state, oids, slots, *index.arrays()
            )
            if used > known and self._heard_of:
                self._changed(index, known)
            if closed_now >= 0:
                closed, ended = closed_now, True
            if code == pgoutput.AT_END:
                return index.take(slice(0, used)), closed, ended
            if code in (pgoutput.AT_RELATION, pgoutput.AT_ANNOUNCEMENT):
                start = int(ends[first - 1]) if first else 0
                message = bytes(buffer[start + pgoutput.HEADER : ends[first]])
                commit, xid = self._transaction()
                if code == pgoutput.AT_RELATION:
                    self._relation(self._parsed(message), commit, xid)
                else:
                    self._announced(self.versions.note(message, commit, xid))
                first += 1
            elif code == pgoutput.NO_ROOM:
                index = _larger(index, used)
            else:
                raise self._nonsense(_NONSENSE[code])

    def _changed(self, index: ChangeIndex, change: int) -> None:
        """Look at the first change after a relation was told of.

        Postgres tells of a table right before its first change. Where that is sent under
        the name of a partitioned table, it tells of both, and of that one first.
        """
        *_, root, told = (None, *self._heard_of)
        self._heard_of.clear()
        table = self._slots[int(index.slot[change])]
        if root and root.oid == table.id.oid and index.operation[change] != pgoutput.TRUNCATE:
            partition = SentPartition(table.id, told.oid, int(index.xid[change]))
            self.versions.sent(partition, Lsn(int(index.commit_lsn[change])))
            self._partitions[table.id][told.oid] = told
            if not _sends_key(told, table):
                self._frugal[table.id] = f"{told.schema}.{told.name}"

    def _parsed(self, message: bytes) -> RelationMessage:
        try:
            return parse_relation(message)
        except ValueError as error:
            raise self._nonsense(str(error)) from error

    def _nonsense(self, what: str) -> PenstockError:
        return PenstockError(
            ErrorKind.DATA_DECODE,
            f"the replication stream makes no sense: {what}",
            hint="please report this as a bug of Penstock",
            position=Lsn(int(self._state[pgoutput.COMMIT_LSN]) % 2**64),
        )

    def _transaction(self) -> tuple[Lsn, int]:
        """The open transaction's commit position and id."""
        commit, xid = map(int, self._state[[pgoutput.COMMIT_LSN, pgoutput.XID]])
        return Lsn(commit), xid

    def _relation(self, message: RelationMessage, commit: Lsn, xid: int) -> None:
        known = self.versions.of_relation(message, commit, xid)
        self._current[message.oid] = self._slot_of(known)
        self._heard_of.append(message)

    def _announced(self, begun: TableSchema | None) -> None:
        """Go on in a version whose rows are sent as before. Postgres does not tell of it, if only
        the root of partitions changed: its name or its identity."""
        slot = self._current.get(begun.id.oid) if begun else None
        if begun is None or slot is None:
            return
        known = replace(self._slots[slot], name=begun.name, identity=begun.identity)
        # Of another key, old rows have only what the identities of the partitions say.
        partitions = self._partitions.get(begun.id, {}).values()
        covered = partitions and all(_sends_key(partition, begun) for partition in partitions)
        same_rows = known.same_columns(begun) and known.same_types(begun)
        if same_rows and (known.same_shape(begun) or covered):
            self._current[begun.id.oid] = self._slot_of(begun)

    def _slot_of(self, schema: TableSchema) -> int:
        if schema not in self._slots:
            self._slots.append(schema)
        return self._slots.index(schema)

    def _chunks(self, buffer: Bytes, index: ChangeIndex) -> Iterator[Chunk]:
        present = np.flatnonzero(np.bincount(index.slot, minlength=len(self._slots)))
        for slot in present:
            alone = len(present) == 1
            changes = index if alone else index.take(np.flatnonzero(index.slot == slot))
            yield from self._chunks_of(self._slots[slot], buffer, changes)

    def _chunks_of(self, schema: TableSchema, buffer: Bytes, index: ChangeIndex) -> Iterator[Chunk]:
        height = max(1, _VALUES_AT_ONCE // max(1, len(schema.columns)))
        for first in range(0, len(index.slot), height):
            chunk = _chunk(schema, buffer, index.take(slice(first, first + height)))
            if (partition := self._frugal.pop(schema.id, None)) is not None:
                defect = Defect("", partition, "", 1, unsent=True)
                chunk = replace(chunk, defects=(*chunk.defects, defect))
            yield chunk


def _sends_key(partition: RelationMessage, root: TableSchema) -> bool:
    """Whether old rows of a partition have what tells the rows of its root apart.

    Postgres logs by the partition's identity and labels by its root's. One without any
    identity sends no old rows: Postgres refuses the statements.
    """
    sent = {column.name for column in partition.columns if column.key}
    if partition.identity == ReplicaIdentity.FULL or not sent:
        return True
    return bool(root.key) and {column.name for column in root.key} <= sent


def _larger(index: ChangeIndex, used: int) -> ChangeIndex:
    larger = ChangeIndex.empty(2 * len(index.slot))
    for old, new in zip(index.arrays(), larger.arrays(), strict=True):
        new[:used] = old[:used]
    return larger


def _chunk(schema: TableSchema, buffer: Bytes, index: ChangeIndex) -> Chunk:
    """Decode the changes of one table."""
    width, height = len(schema.columns), len(index.slot)
    counts = np.bincount(index.operation, minlength=4)
    has_old = bool(index.old.any())
    new = ValueSlices(
        np.empty((width, height), dtype=np.int64), np.empty((width, height), dtype=np.int32)
    )
    old_width = width if has_old else 0
    old = ValueSlices(
        np.empty((old_width, height), dtype=np.int64),
        np.empty((old_width, height), dtype=np.int32),
    )
    unchanged, bad = pgoutput.locate_values(
        buffer,
        index.tuples,
        index.limits,
        index.operation,
        index.old,
        width,
        new.starts,
        new.lengths,
        old.starts,
        old.lengths,
    )
    if bad >= 0:
        raise PenstockError(
            ErrorKind.DATA_DECODE,
            "a row does not have the columns that Postgres announced",
            hint="please report this as a bug of Penstock",
            table=schema.name,
            position=Lsn(int(index.commit_lsn[bad])),
        )
    rows = _Rows(schema, buffer, index)
    columns: dict[str, pa.Array] = {
        "op": pa.DictionaryArray.from_arrays(pa.array(index.operation), _OPERATIONS),
        "commit_lsn": pa.array(index.commit_lsn),
        "tx_ordinal": pa.array(index.ordinal),
        "commit_ts": pa.array(index.commit_ts).cast(_TIMESTAMP),
        "xid": pa.array(index.xid),
    }
    if has_old:
        whole = schema.identity is ReplicaIdentity.FULL
        old_columns = [c for c in schema.columns if whole or c.key_position is not None]
        # Neither Arrow nor Parquet knows rows of no columns. Without a key there are old
        # ones: those of a partition that has a key of its own.
        if old_columns:
            columns["before"] = rows.struct(old_columns, old, index.old == pgoutput.OLD_ABSENT)
    if schema.columns and (counts[pgoutput.INSERT] or counts[pgoutput.UPDATE]):
        columns["after"] = rows.struct(schema.columns, new, index.operation >= pgoutput.DELETE)
    if unchanged:
        columns["unchanged"] = _unchanged_names(schema, new, int(unchanged))
    return Chunk(
        schema=schema,
        rows=pa.table(columns),
        counts=ChangeCounts(*(int(count) for count in counts)),
        has_unchanged=bool(unchanged),
        key_changes=int(np.count_nonzero(index.old[index.operation == pgoutput.UPDATE])),
        key_range=rows.key_range,
        defects=tuple(rows.defects),
        truncated_by=tuple(
            int(xid) for xid in np.unique(index.xid[index.operation == pgoutput.TRUNCATE])
        ),
    )


class _Rows:
    """The typed rows of one chunk, and what was noticed while decoding them."""

    def __init__(self, schema: TableSchema, buffer: Bytes, index: ChangeIndex) -> None:
        self._schema = schema
        self._buffer = buffer
        self._index = index
        self._places = {column.name: i for i, column in enumerate(schema.columns)}
        key = schema.key
        self._range_column = key[0].name if key and key[0].type.kind in _INTEGERS else None
        self.key_range: tuple[int, int] | None = None
        self.defects: list[Defect] = []

    def struct(
        self, columns: Iterable[ColumnSchema], slices: ValueSlices, absent: npt.NDArray[np.bool_]
    ) -> pa.StructArray:
        arrays, fields = [], []
        for column in columns:
            place = self._places[column.name]
            text = TextColumn(self._buffer, slices.starts[place], slices.lengths[place])
            decoded = decode(text, column.type)
            if len(decoded.bad):
                self._note_defect(column, slices, decoded.bad)
            if column.name == self._range_column:
                self._widen(decoded.array)
            arrays.append(decoded.array)
            fields.append(pa.field(column.name, arrow_type(column.type)))
        mask = pa.array(absent) if absent.any() else None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def _widen(self, keys: pa.Array) -> None:
        found = pc.min_max(keys).as_py()
        if found["min"] is not None:
            low, high = self.key_range or (found["min"], found["max"])
            self.key_range = (min(low, found["min"]), max(high, found["max"]))

    def _note_defect(self, column: ColumnSchema, slices: ValueSlices, bad: Ints) -> None:
        row = int(bad[0])
        key = ", ".join(
            f"{part.name}={self._text(slices, self._places[part.name], row)}"
            for part in self._schema.key
        )
        value = self._text(slices, self._places[column.name], row)
        self.defects.append(Defect(column.name, shorten(key), shorten(value), len(bad)))

    def _text(self, slices: ValueSlices, column: int, row: int) -> str:
        start, length = int(slices.starts[column, row]), int(slices.lengths[column, row])
        if length < 0:
            return "NULL"
        return bytes(self._buffer[start : start + length]).decode(errors="replace")


def _unchanged_names(schema: TableSchema, new: ValueSlices, count: int) -> pa.ListArray:
    offsets = np.empty(new.lengths.shape[1] + 1, dtype=np.int32)
    numbers = np.empty(count, dtype=np.int64)
    pgoutput.list_unchanged(new.lengths, offsets, numbers)
    names = pa.array([column.name for column in schema.columns], pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(numbers)))
