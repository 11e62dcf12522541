"""Tables that change their shape while others write to them.

Every column of ours is called `x` and a number, so that the writers, who name theirs,
do not notice. Most statements can be followed in place; a few rewrite rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from penstock.schema import TableName

_MANY = 4
_ADDED = (
    "integer",
    "smallint DEFAULT 7",
    "text DEFAULT 'it''s, {new}'",
    "numeric(6,2) DEFAULT 12.5",
    "timestamptz DEFAULT clock_timestamp()",
    "date DEFAULT '2024-02-29'",
)
_WIDER = {
    "smallint": "integer",
    "integer": "bigint",
    "numeric(6,2)": "numeric(10,4)",
    "date": "timestamp",
    "bigint": "integer USING 3",
}


class Migrator:
    """Alters one of some tables at a time."""

    def __init__(self, chance: random.Random, tables: Sequence[TableName]) -> None:
        self._chance = chance
        self._tables = tables

    def alter(self, connection: psycopg.Connection[Any]) -> None:
        """One statement, or two in one transaction, of the kinds that fit."""
        table = self._chance.choice(self._tables)
        with connection.transaction():
            for _ in range(self._chance.choice([1, 1, 2])):
                connection.execute(self._statement(connection, table).encode())

    def _statement(self, connection: psycopg.Connection[Any], table: TableName) -> str:
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attname ~ '^x[0-9]' AND NOT attisdropped",
            [table.quoted],
        ).fetchall()
        ways: list[Callable[[str, str], str]] = [self._drop, self._rename, self._retype]
        if not found or (len(found) < _MANY and self._chance.random() < 0.5):
            added = f"ADD {self._name()} {self._chance.choice(_ADDED)}"
        else:
            added = self._chance.choice(ways)(*self._chance.choice(found))
        return f"ALTER TABLE {table.quoted} {added}"

    def _name(self) -> str:
        return f"x{self._chance.randrange(10**9)}"

    def _drop(self, column: str, _: str) -> str:
        return f"DROP {column}"

    def _rename(self, column: str, _: str) -> str:
        return f"RENAME {column} TO {self._name()}"

    def _retype(self, column: str, kind: str) -> str:
        return f"ALTER {column} TYPE {_WIDER.get(kind, 'text')}"
