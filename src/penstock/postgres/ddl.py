"""What the source's event triggers say of schema changes.

`ALTER TABLE` makes them write logical messages into the WAL (`sql/functions.sql`),
in the transaction of the statement and so at its place in the stream. One lists the
table's columns as they are from there on, with their numbers, so that a rename can be
told from a drop and an add; with what rows from before show in a column that is new.
Another, before it, says that the table's rows are being rewritten, and why.

Without the triggers all this can only be guessed: see `journal.relations`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock.postgres.pgoutput import MESSAGE_HEADER, PREFIX
from penstock.schema import DdlNote, TableName

_PREFIX_END_AND_LENGTH = 1 + 4

# Why a table is rewritten, as Postgres has it: bits.
_COLUMN_VALUES = 4


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
    identity: str
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
    """A logical message of ours, from its tag on. Raises ValueError for what is none."""
    content = message[MESSAGE_HEADER + len(PREFIX) + _PREFIX_END_AND_LENGTH :]
    try:
        return _parsed(json.loads(content))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not an announcement: {error!r}") from error


def _parsed(data: dict[str, Any]) -> Rewrite | Announcement:
    if "rewrite" in data:
        return Rewrite(int(data["oid"]), int(data["rewrite"]))
    return Announcement(
        int(data["oid"]),
        TableName(str(data["schema"]), str(data["name"])),
        str(data["identity"]),
        tuple(data["key"] or ()),
        tuple(AnnouncedColumn(**column) for column in data["columns"] or ()),
        bool(data["plain"]),
    )
