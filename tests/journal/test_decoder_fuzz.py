"""Bytes that no Postgres sends: a clean error with the position, and nothing read outside.

The frames stand at the very end of a page, and the page behind it may not be
touched: one byte read too far ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import ErrorKind, PenstockError
from penstock.journal.decoder import ChangeDecoder, Decoded
from penstock.postgres.ddl import Announcement
from penstock.postgres.libpq import CopyBuffer
from penstock.postgres.pgoutput import RelationMessage, newest_keepalive
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

OID = 16_384
KINDS = (ValueKind.LONG, ValueKind.STRING, ValueKind.TIMESTAMP)
AHEAD = 32 * mmap.PAGESIZE


class Relations:
    """Takes every table for what it is said to be."""

    def describe(self, message: RelationMessage) -> TableSchema:
        columns = tuple(
            ColumnSchema(f"c{i}", i + 1, ValueType(KINDS[i % 3]), column.type_oid)
            for i, column in enumerate(message.columns)
        )
        name = TableName(message.schema, message.name)
        return TableSchema(TableId(message.oid), name, columns, ReplicaIdentity.FULL)

    def announced(self, told: Announcement) -> TableSchema:
        columns = tuple(ColumnSchema(c.name, c.number, STRING, c.type_oid) for c in told.columns)
        return TableSchema(TableId(told.oid), told.name, columns)


# Messages as Postgres makes them.


def frame(message: bytes) -> bytes:
    return struct.pack(">cQQQ", b"w", 1, 2, 3) + message


def row(values: Sequence[bytes | None]) -> bytes:
    parts = [b"n" if v is None else b"t" + struct.pack(">I", len(v)) + v for v in values]
    return struct.pack(">H", len(values)) + b"".join(parts)


VALUES = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1).map(lambda n: str(n).encode()),
    st.none() | st.text(max_size=20).map(str.encode),
    st.none() | st.sampled_from([b"2025-01-01 00:00:00+00", b"infinity", b"x", b""]),
)
BEGIN = frame(b"B" + struct.pack(">QQI", 100, 5, 7))
COMMIT = frame(b"C" + struct.pack(">BQQQ", 0, 100, 120, 5))
RELATION = frame(
    b"R" + struct.pack(">I", OID) + b"public\0t\0f" + struct.pack(">H", 3)
    + b"".join(b"\1" + name + b"\0" + struct.pack(">Ii", 25, -1) for name in (b"a", b"b", b"c"))
)  # fmt: skip
KEEPALIVE = struct.pack(">cQQB", b"k", 1, 2, 0)


def message(prefix: bytes, content: bytes) -> bytes:
    return frame(
        b"M" + struct.pack(">BQ", 1, 90) + prefix + struct.pack(">I", len(content)) + content
    )


REWRITE = message(b"penstock.ddl\0", b'{"oid": 16384, "rewrite": 4}')
ANNOUNCEMENT = message(
    b"penstock.ddl\0",
    b'{"oid": 16384, "schema": "public", "name": "t", "identity": "f", "plain": true, "key": null,'
    b' "columns": [{"number": 1, "name": "a", "type_oid": 25, "type_modifier": -1, "type_name":'
    b' "text", "nullable": true, "generated": false, "filled": false, "fill": null}]}',
)
TRUNCATE = frame(b"T" + struct.pack(">IBI", 1, 0, OID))
CHANGES = st.one_of(
    VALUES.map(lambda new: frame(b"I" + struct.pack(">I", OID) + b"N" + row(new))),
    VALUES.map(lambda old: frame(b"D" + struct.pack(">I", OID) + b"O" + row(old))),
    st.tuples(VALUES, VALUES).map(
        lambda both: frame(
            b"U" + struct.pack(">I", OID) + b"O" + row(both[0]) + b"N" + row(both[1])
        )
    ),
    st.just(TRUNCATE),
    st.just(KEEPALIVE),
    st.just(REWRITE),
    st.just(ANNOUNCEMENT),
    st.just(message(b"somebody\0", b"else's")),
)
STREAMS = st.lists(CHANGES, max_size=6).map(lambda some: [BEGIN, RELATION, *some, COMMIT])


class GuardedPages:
    """Memory whose end is the end of what may be read."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, AHEAD + mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(address + AHEAD)
        assert libc.mprotect(guard, mmap.PAGESIZE, 0) == 0

    def frames(self, messages: Sequence[bytes]) -> CopyBuffer:
        data = b"".join(messages)
        buffer = CopyBuffer(1, max(1, len(messages)))
        whole = np.frombuffer(self._memory, np.uint8, AHEAD)
        buffer.data = whole[AHEAD - len(data) :]
        buffer.data[:] = np.frombuffer(data, np.uint8)
        buffer.ends[: len(messages)] = np.cumsum([len(m) for m in messages])
        buffer.size, buffer.count = len(data), len(messages)
        return buffer


PAGES = GuardedPages()


def decode(messages: Sequence[bytes]) -> Decoded:
    frames = PAGES.frames(messages)
    newest_keepalive(frames.data, frames.ends, 0, frames.count)
    decoded = ChangeDecoder({}, Relations()).decode(frames)
    return replace(decoded, closed=list(decoded.closed), open=list(decoded.open))


def decode_or_refuse(messages: Sequence[bytes]) -> None:
    refusal = None
    try:
        decode(messages)
    except PenstockError as error:
        refusal = error
    assert refusal is None or refusal.kind is ErrorKind.DATA_DECODE
    assert refusal is None or refusal.position is not None


many = settings(max_examples=100, suppress_health_check=list(HealthCheck))


@many
@given(STREAMS)
def test_what_postgres_sends_is_decoded(messages: list[bytes]) -> None:
    decoded = decode(messages)
    changes = sum(1 for m in messages if m[0:1] == b"w" and m[25:26] in b"IUDT")
    assert sum(chunk.rows.num_rows for chunk in decoded.closed) == changes
    assert decoded.open == []


@many
@given(STREAMS, st.data())
def test_a_message_cut_short_is_an_error(messages: list[bytes], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(messages) - 1))
    kept = data.draw(st.integers(0, len(messages[place]) - 1))
    cut = [*messages[:place], messages[place][:kept], *messages[place + 1 :]]
    with pytest.raises(PenstockError) as caught:
        decode(cut)
    assert caught.value.kind is ErrorKind.DATA_DECODE
    assert caught.value.position is not None


@many
@given(STREAMS, st.data())
def test_altered_bytes_are_decoded_or_refused(messages: list[bytes], data: st.DataObject) -> None:
    altered = [bytearray(message) for message in messages]
    for _ in range(data.draw(st.integers(1, 4))):
        message = data.draw(st.sampled_from(altered))
        place = data.draw(st.integers(0, len(message) - 1))
        message[place] = data.draw(st.integers(0, 255))
    decode_or_refuse([bytes(message) for message in altered])


@many
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_random_bytes_are_refused(messages: list[bytes]) -> None:
    decode_or_refuse(messages)
    decode_or_refuse([BEGIN, RELATION, *map(frame, messages), COMMIT])
