"""pgoutput messages to columns.

A logical replication stream is a sequence of messages: Begin, then Insert,
Update, Delete and Truncate, then Commit, transaction after transaction, with a
Relation message before the first change of a table (and again after the table
changed). Nothing here looks at one message at a time in Python: messages are
gathered in one buffer, and kernels walk the buffer.

`index_messages` walks it once and writes one entry per change: which table, which
operation, which transaction, where its tuples begin. It carries the open
transaction from buffer to buffer in a small `state` array, and stops only at a
Relation message or one of our own (`ddl`), which are rare and are read in Python.
`locate_values` then walks the tuples of one table's changes and notes where each
column's text begins and how long it is; `values` turns those slices into typed columns.

What always holds between the two: entries are in stream order; `commit_lsn` never
decreases; the entries behind `closed` belong to the one transaction that is
still open at the end of the buffer. Begin carries the commit position, so those
entries are already complete and can be written down before their commit arrives.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.postgres.kernels import kernel

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

HEADER = 25
"""The bytes before a pgoutput message in an XLogData frame: tag, start, end, clock."""

# Operation codes, in the order of OPERATIONS.
INSERT, UPDATE, DELETE, TRUNCATE = 0, 1, 2, 3
OPERATIONS = ("i", "u", "d", "t")

# What an old tuple is.
OLD_ABSENT, OLD_KEY, OLD_FULL = 0, 1, 2

# Places in the state array.
OPEN, COMMIT_LSN, COMMIT_TS, XID, ORDINAL, CLOSED_END, CLOSED_TS = range(7)

MESSAGE_HEADER = 10
"""The bytes before the prefix of a logical message: tag, flags, position."""

PREFIX = np.frombuffer(b"penstock.ddl", dtype=np.uint8)
"""The prefix of our own logical messages. A zero ends it, and then comes the length of
what follows."""

POSTGRES_EPOCH_US = 946_684_800_000_000

# Why `index_messages` stopped.
AT_END, AT_RELATION, NO_ROOM, AT_ANNOUNCEMENT = 0, 1, 2, 3
UNKNOWN_TABLE, UNKNOWN_MESSAGE, CUT_SHORT, OUTSIDE = -2, -3, -4, -5

# Tags of messages and tuples.
_BEGIN, _COMMIT, _RELATION, _TYPE, _ORIGIN, _MESSAGE = (ord(tag) for tag in "BCRYOM")
_INSERT, _UPDATE, _DELETE, _TRUNCATE = (ord(tag) for tag in "IUDT")
_KEY_TUPLE, _OLD_TUPLE = (ord(tag) for tag in "KO")
_XLOG_DATA, _KEEPALIVE = (ord(tag) for tag in "wk")

# The least that messages have, from their tag on; a Truncate's tables and a change's
# tuples come on top. A keepalive is a frame of its own.
_CHANGE_SIZE, _BEGIN_SIZE, _COMMIT_SIZE, _TRUNCATE_SIZE, _KEEPALIVE_SIZE = 6, 21, 26, 6, 18


def new_state() -> Ints:
    """The state before the first message: no transaction open, nothing closed."""
    return np.zeros(7, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ChangeIndex:
    """Entries of the changes in a buffer: `tuples` is where each one's tuples begin, and
    `limits` where its message ends."""

    slot: Ints
    operation: Codes
    old: Codes
    tuples: Ints
    limits: Ints
    commit_lsn: Ints
    commit_ts: Ints
    xid: Ints
    ordinal: Ints

    @classmethod
    def empty(cls, size: int) -> ChangeIndex:
        def ints() -> Ints:
            return np.empty(size, dtype=np.int64)

        def codes() -> Codes:
            return np.empty(size, dtype=np.int8)

        return cls(ints(), codes(), codes(), ints(), ints(), ints(), ints(), ints(), ints())

    def arrays(self) -> tuple[Any, ...]:
        return (
            self.slot,
            self.operation,
            self.old,
            self.tuples,
            self.limits,
            self.commit_lsn,
            self.commit_ts,
            self.xid,
            self.ordinal,
        )

    def take(self, rows: Ints | slice) -> ChangeIndex:
        return ChangeIndex(*(array[rows] for array in self.arrays()))


@kernel
def big_endian(buffer: Bytes, at: int, size: int) -> Any:
    """A big-endian integer."""
    value: Any = np.int64(0)
    for i in range(size):
        value = (value << np.int64(8)) | np.int64(buffer[at + i])
    return value


@kernel
def _judge_message(buffer: Bytes, at: int, end: int) -> int:
    """A logical message: AT_ANNOUNCEMENT for one of ours in a transaction, AT_END for any
    other, CUT_SHORT for what is none."""
    prefix = at + MESSAGE_HEADER
    place = prefix
    ours = True
    while place < end and buffer[place] != 0:
        ours = ours and place - prefix < PREFIX.shape[0]
        ours = ours and buffer[place] == PREFIX[place - prefix]
        place += 1
    if place + 5 > end or place + 5 + big_endian(buffer, place + 1, 4) != end:
        return CUT_SHORT
    whole = place - prefix == PREFIX.shape[0]
    return AT_ANNOUNCEMENT if ours and whole and buffer[at + 1] == 1 else AT_END


@kernel
def index_messages(
    buffer: Bytes,
    ends: Ints,
    count: int,
    first: int,
    used: int,
    state: Ints,
    relation_oids: Ints,
    relation_slots: Ints,
    slot: Ints,
    operation: Codes,
    old: Codes,
    tuples: Ints,
    limits: Ints,
    commit_lsn: Ints,
    commit_ts: Ints,
    xid: Ints,
    ordinal: Ints,
) -> tuple[int, int, int, int]:
    """Index messages `first`… of a buffer with `count` frames, which end at `ends`.

    `used` entries are there already. Returns (message it stopped at, entries,
    entries in closed transactions or -1 when none was closed, why it stopped).

    Nothing is read behind a message's end, whatever the message says.
    """
    row = used
    closed = -1
    last_oid: Any = np.int64(-1)
    last_slot: Any = np.int64(-1)
    capacity = slot.shape[0]
    for i in range(first, count):
        start = ends[i - 1] if i > 0 else 0
        end = ends[i]
        if end <= start:
            return i, row, closed, CUT_SHORT
        if buffer[start] == _KEEPALIVE:
            if end - start < _KEEPALIVE_SIZE:
                return i, row, closed, CUT_SHORT
            continue
        if buffer[start] != _XLOG_DATA:
            return i, row, closed, UNKNOWN_MESSAGE
        at = start + HEADER
        size = end - at
        if size < 1:
            return i, row, closed, CUT_SHORT
        kind = buffer[at]
        if kind in (_INSERT, _UPDATE, _DELETE):
            if size < _CHANGE_SIZE:
                return i, row, closed, CUT_SHORT
            if state[OPEN] == 0:
                return i, row, closed, OUTSIDE
            oid = big_endian(buffer, at + 1, 4)
            if oid != last_oid:
                last_slot = np.int64(-1)
                for k in range(relation_oids.shape[0]):
                    if relation_oids[k] == oid:
                        last_slot = relation_slots[k]
                        break
                last_oid = oid
                if last_slot < 0:
                    return i, row, closed, UNKNOWN_TABLE
            slot[row] = last_slot
            tuples[row] = at + 5
            limits[row] = end
            commit_lsn[row] = state[COMMIT_LSN]
            commit_ts[row] = state[COMMIT_TS]
            xid[row] = state[XID]
            ordinal[row] = state[ORDINAL]
            state[ORDINAL] += 1
            tag = buffer[at + 5]
            old[row] = OLD_ABSENT
            if tag == _KEY_TUPLE:
                old[row] = OLD_KEY
            elif tag == _OLD_TUPLE:
                old[row] = OLD_FULL
            operation[row] = INSERT
            if kind == _UPDATE:
                operation[row] = UPDATE
            elif kind == _DELETE:
                operation[row] = DELETE
            row += 1
        elif kind == _BEGIN:
            if size < _BEGIN_SIZE:
                return i, row, closed, CUT_SHORT
            state[OPEN] = 1
            state[COMMIT_LSN] = big_endian(buffer, at + 1, 8)
            state[COMMIT_TS] = big_endian(buffer, at + 9, 8) + POSTGRES_EPOCH_US
            state[XID] = big_endian(buffer, at + 17, 4)
            state[ORDINAL] = 0
        elif kind == _COMMIT:
            if size < _COMMIT_SIZE:
                return i, row, closed, CUT_SHORT
            if state[OPEN] == 0:
                return i, row, closed, OUTSIDE
            state[OPEN] = 0
            state[CLOSED_END] = big_endian(buffer, at + 10, 8)
            state[CLOSED_TS] = big_endian(buffer, at + 18, 8) + POSTGRES_EPOCH_US
            closed = row
        elif kind == _RELATION:
            return i, row, closed, AT_RELATION
        elif kind == _TRUNCATE:
            if size < _TRUNCATE_SIZE:
                return i, row, closed, CUT_SHORT
            relations = big_endian(buffer, at + 1, 4)
            if size < _TRUNCATE_SIZE + 4 * relations:
                return i, row, closed, CUT_SHORT
            if state[OPEN] == 0:
                return i, row, closed, OUTSIDE
            if row + relations + count - i > capacity:
                # The entries after this message need their room too.
                return i, row, closed, NO_ROOM
            for k in range(relations):
                oid = big_endian(buffer, at + 6 + 4 * k, 4)
                found: Any = np.int64(-1)
                for j in range(relation_oids.shape[0]):
                    if relation_oids[j] == oid:
                        found = relation_slots[j]
                        break
                if found < 0:
                    return i, row, closed, UNKNOWN_TABLE
                slot[row] = found
                tuples[row] = limits[row] = -1
                commit_lsn[row] = state[COMMIT_LSN]
                commit_ts[row] = state[COMMIT_TS]
                xid[row] = state[XID]
                ordinal[row] = state[ORDINAL]
                state[ORDINAL] += 1
                old[row] = OLD_ABSENT
                operation[row] = TRUNCATE
                row += 1
        elif kind == _MESSAGE:
            code = _judge_message(buffer, at, end)
            if code != AT_END:
                return i, row, closed, code
        elif kind not in (_TYPE, _ORIGIN):
            return i, row, closed, UNKNOWN_MESSAGE
    return count, row, closed, AT_END


@kernel
def newest_keepalive(buffer: Bytes, ends: Ints, first: int, count: int) -> tuple[int, bool]:
    """The highest position that keepalives among these frames name, and whether one
    wants an answer."""
    position: Any = np.int64(0)
    wanted = False
    for i in range(first, count):
        start = ends[i - 1] if i > 0 else 0
        # One that is cut short is told of by whoever decodes the frames.
        if ends[i] - start >= _KEEPALIVE_SIZE and buffer[start] == _KEEPALIVE:
            position = max(position, big_endian(buffer, start + 1, 8))
            wanted = wanted or buffer[start + 17] != 0
    return position, wanted


# Where the values of pgoutput's tuples are.
#
# A change carries one tuple or two, each column by column: text with its length, NULL, or
# nothing, where a value that is stored out of line has not changed. The walk goes over
# all changes of one table at once and copies nothing.

Lengths = npt.NDArray[np.int32]

# Lengths that are not lengths.
NULL, UNCHANGED = -1, -2

# Tags of tuples and values.
_NEW_TUPLE = ord("N")
_TEXT, _NULL, _UNSENT = (ord(tag) for tag in "tnu")


@dataclass(frozen=True, slots=True)
class ValueSlices:
    """Where each column's text is: `[column, row]` starts and lengths into the buffer."""

    starts: Ints
    lengths: Lengths


@kernel
def locate_values(
    buffer: Bytes,
    tuples: Ints,
    limits: Ints,
    operation: Codes,
    old: Codes,
    columns: int,
    starts: Ints,
    lengths: Lengths,
    old_starts: Ints,
    old_lengths: Lengths,
) -> tuple[int, int]:
    """Note where every value of these changes is; returns (unchanged values, bad row or -1).

    `old_starts` and `old_lengths` may have no columns when no change has an old
    tuple. A value that was not resent because its TOAST did not change is taken
    from the old tuple where that has it.
    """
    unchanged = 0
    with_old = old_starts.shape[0] > 0
    for row in range(tuples.shape[0]):
        at, end = tuples[row], limits[row]
        if with_old:
            for c in range(columns):
                old_lengths[c, row] = NULL
                old_starts[c, row] = 0
        if old[row] != OLD_ABSENT:
            if at + 3 > end or big_endian(buffer, at + 1, 2) != columns:
                return unchanged, row
            at += 3
            for c in range(columns):
                if at >= end:
                    return unchanged, row
                kind = buffer[at]
                at += 1
                if kind == _TEXT:
                    size = big_endian(buffer, at, 4) if at + 4 <= end else end
                    if at + 4 + size > end:
                        return unchanged, row
                    old_starts[c, row] = at + 4
                    old_lengths[c, row] = size
                    at += 4 + size
                elif kind not in (_NULL, _UNSENT):
                    return unchanged, row
        if operation[row] >= DELETE:
            for c in range(columns):
                starts[c, row] = 0
                lengths[c, row] = NULL
            continue
        if at + 3 > end or buffer[at] != _NEW_TUPLE or big_endian(buffer, at + 1, 2) != columns:
            return unchanged, row
        at += 3
        for c in range(columns):
            if at >= end:
                return unchanged, row
            kind = buffer[at]
            at += 1
            if kind == _TEXT:
                size = big_endian(buffer, at, 4) if at + 4 <= end else end
                if at + 4 + size > end:
                    return unchanged, row
                starts[c, row] = at + 4
                lengths[c, row] = size
                at += 4 + size
            elif kind == _NULL:
                starts[c, row] = 0
                lengths[c, row] = NULL
            elif kind != _UNSENT:
                return unchanged, row
            elif old[row] == OLD_FULL and old_lengths[c, row] >= 0:
                starts[c, row] = old_starts[c, row]
                lengths[c, row] = old_lengths[c, row]
            else:
                starts[c, row] = 0
                lengths[c, row] = UNCHANGED
                unchanged += 1
    return unchanged, -1


@kernel
def list_unchanged(lengths: Lengths, offsets: Lengths, names: Ints) -> None:
    """Fill list offsets and column numbers of the values that were not resent."""
    at = 0
    for row in range(lengths.shape[1]):
        offsets[row] = at
        for c in range(lengths.shape[0]):
            if lengths[c, row] == UNCHANGED:
                names[at] = c
                at += 1
    offsets[lengths.shape[1]] = at


# pgoutput's Relation message: what Postgres says of a table before its first change.
#
# It is rare, so it is read in Python, unlike the changes.


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    type_modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class RelationMessage:
    """What Postgres says of a table before its first change."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


def parse_relation(message: bytes) -> RelationMessage:
    """A Relation message, from its tag on. Raises ValueError for what is none."""
    (oid,), rest = _take(">xI", message)
    schema, rest = _text(rest)
    name, rest = _text(rest)
    (identity, count), rest = _take(">cH", rest)
    columns = []
    for _ in range(count):
        (flags,), rest = _take(">B", rest)
        column, rest = _text(rest)
        (type_oid, modifier), rest = _take(">Ii", rest)
        columns.append(RelationColumn(column, type_oid, modifier, bool(flags & 1)))
    if rest:
        raise ValueError("a Relation message goes on behind its last column")
    return RelationMessage(
        oid, schema or "pg_catalog", name, identity.decode("ascii"), tuple(columns)
    )


def _take(layout: str, data: bytes) -> tuple[tuple[Any, ...], bytes]:
    size = struct.calcsize(layout)
    if len(data) < size:
        raise ValueError("a Relation message is cut short")
    return struct.unpack_from(layout, data), data[size:]


def _text(data: bytes) -> tuple[str, bytes]:
    text, end, rest = data.partition(b"\0")
    if not end:
        raise ValueError("a Relation message is cut short")
    return text.decode(), rest


def warm_up() -> None:
    """Compile the kernels, or load them from their cache."""
    buffer = np.zeros(64, dtype=np.uint8)
    nothing = np.zeros(0, dtype=np.int64)
    index = ChangeIndex.empty(1)
    ends = np.array([64])
    index_messages(buffer, ends, 1, 0, 0, new_state(), nothing, nothing, *index.arrays())
    newest_keepalive(buffer, ends, 0, 1)
    starts, lengths = np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int32)
    none = ChangeIndex.empty(0)
    locate_values(
        buffer,
        none.tuples,
        none.limits,
        none.operation,
        none.old,
        1,
        starts,
        lengths,
        starts,
        lengths,
    )
    list_unchanged(lengths, np.zeros(1, np.int32), np.zeros(0, np.int64))
