"""pgoutput's Relation message: what Postgres says of a table before its first change.

It is rare, so it is read in Python, unlike the changes (`pgoutput`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any


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
