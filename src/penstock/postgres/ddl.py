"""What the source's event triggers say of schema changes.

`ALTER TABLE` makes them write logical messages into the WAL (`sql/functions.sql`), and so
does `ALTER TYPE` for tables that were created `OF` the type: in the transaction of the
statement, and so at its place in the stream. One lists the
table's columns as they are from there on, with their numbers, so that a rename can be
told from a drop and an add; with what rows from before show in a column that is new.
Another, before it, says that the table's rows are being rewritten, and why.

Without the triggers all this can only be guessed: see `journal.relations`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.errors import shorten
from penstock.postgres.pgoutput import MESSAGE_HEADER, PREFIX
from penstock.schema import DdlNote, ReplicaIdentity, TableName

_PREFIX_END_AND_LENGTH = 1 + 4

# Why a table is rewritten, as Postgres has it: bits.
_COLUMN_VALUES = 4

_OIDS = range(1, 1 << 32)
_NUMBERS = range(1, 1 << 15)
_MODIFIERS = range(-(1 << 31), 1 << 31)
_REASONS = range(1 << 31)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The rows of a table are being rewritten by the statement under way."""

    oid: int
    reason: int


@dataclass(frozen=True, slots=True)
class AnnouncedColumn:
    """A column as `pg_attribute` has it. `fill` is what older rows show in it; None
    where that is NULL, or cannot be told, though the column is `filled`."""

    number: int
    name: str
    type_oid: int
    type_modifier: int
    type_name: str
    nullable: bool
    generated: bool
    filled: bool
    fill: str | None


@dataclass(frozen=True, slots=True)
class Announcement:
    """A table after a statement. `key` are column numbers, in the key's order.

    `plain` says that the statement computes no values: a column that has got
    another type has the values it had, cast.
    """

    oid: int
    name: TableName
    identity: ReplicaIdentity
    key: tuple[int, ...]
    columns: tuple[AnnouncedColumn, ...]
    plain: bool

    def note(self, xid: int, reason: int) -> DdlNote:
        """What there is to say of rows from before, after a rewrite for that reason."""
        filled = [column for column in self.columns if column.filled]
        untold = any(column.fill is None for column in filled)
        # New columns' values; or a table that was unlogged, and changed without any WAL.
        other = bool(reason & ~_COLUMN_VALUES)
        cast = bool(reason & _COLUMN_VALUES)
        return DdlNote(
            xid,
            rewritten=other or (cast and not self.plain) or untold,
            recast=cast and self.plain,
            fills=tuple((c.number, c.fill) for c in filled if c.fill is not None),
        )


def parse_message(message: bytes) -> Rewrite | Announcement:
    """A logical message of ours, from its tag on. Raises ValueError for what is none.

    Everybody who may connect to the source can write one, so nothing in it is taken on trust.
    """
    content = message[MESSAGE_HEADER + len(PREFIX) + _PREFIX_END_AND_LENGTH :]
    try:
        return _parsed(json.loads(content))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not an announcement: {shorten(repr(error))}") from error


def _parsed(data: dict[str, Any]) -> Rewrite | Announcement:
    oid = _integer(data["oid"], _OIDS)
    if "rewrite" in data:
        return Rewrite(oid, _integer(data["rewrite"], _REASONS))
    columns = tuple(_column(**column) for column in _list(data["columns"]))
    numbers = {column.number for column in columns}
    if len(numbers) < len(columns) or len({column.name for column in columns}) < len(columns):
        raise ValueError("a column that is there twice")
    key = tuple(_integer(number, _NUMBERS) for number in _list(data["key"]))
    if not numbers.issuperset(key):
        raise ValueError("a key of columns that are not there")
    return Announcement(
        oid,
        TableName(_name(data["schema"]), _name(data["name"])),
        ReplicaIdentity(data["identity"]),
        key,
        columns,
        _boolean(data["plain"]),
    )


def _column(
    number: object,
    name: object,
    type_oid: object,
    type_modifier: object,
    type_name: object,
    nullable: object,
    generated: object,
    filled: object,
    fill: object,
) -> AnnouncedColumn:
    return AnnouncedColumn(
        _integer(number, _NUMBERS),
        _name(name),
        _integer(type_oid, _OIDS),
        _integer(type_modifier, _MODIFIERS),
        _name(type_name),
        _boolean(nullable),
        _boolean(generated),
        _boolean(filled),
        None if fill is None else _text(fill),
    )


def _integer(value: object, allowed: range) -> int:
    if type(value) is not int or value not in allowed:
        raise ValueError(f"a number was expected, not {value!r}")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"true or false was expected, not {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError(f"a text was expected, not {value!r}")
    value.encode()  # JSON can name half a character
    return value


def _name(value: object) -> str:
    if not value:
        raise ValueError("a name is missing")
    return _text(value)


def _list(value: object) -> list[Any]:
    """A list; an aggregate over no rows at all is NULL."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"a list was expected, not {value!r}")
    return value
