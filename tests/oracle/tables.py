"""Random tables, and writers that change them at random.

A table has an integer `n` that statements find rows by where there is no key, a
key of one of five shapes, a value stored out of line, and columns of whatever types it is
dealt. Values come from a small pool for each column, so that keys meet.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from hypothesis import strategies as st

from penstock.schema import TableName, quote_identifier
from tests.oracle.columns import BIG_TEXT, KEY_TYPES, TYPES, ColumnType

POOL = 4
KEY_POOL = 8
KEYS = ("primary", "primary full", "index", "full", "partitioned")
NAMES = ("c", "Zeile", "with space", "ö", 'q"uote', "select")

UNDONE = (
    psycopg.IntegrityError,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)

Chance = random.Random


@dataclass(frozen=True)
class Column:
    name: str
    type: ColumnType
    pool: Sequence[Any]
    key: bool = False

    @property
    def quoted(self) -> str:
        return quote_identifier(self.name)

    def draw(self, chance: Chance) -> Any:
        return chance.choice(self.pool)


@dataclass(frozen=True, repr=False)
class RandomTable:
    """`shape` is one of `KEYS`. The key's columns come first, `n` before them."""

    name: TableName
    shape: str
    columns: tuple[Column, ...]

    def __repr__(self) -> str:
        return f"<{self.name}, {self.shape}>"  # with all its values it would fill pages

    @property
    def key(self) -> list[Column]:
        return [column for column in self.columns if column.key]

    def definition(self) -> str:
        table, key = self.name.quoted, ", ".join(column.quoted for column in self.key)
        lines = [f"{c.quoted} {c.type.sql}{' NOT NULL' if c.key else ''}" for c in self.columns]
        if self.shape in ("primary", "primary full", "partitioned"):
            lines.append(f"PRIMARY KEY ({key})")
        partitions = ""
        if self.shape == "partitioned":
            partitions = f" PARTITION BY HASH ({self.key[0].quoted})"
        statements = [f"CREATE TABLE {table} ({', '.join(lines)}){partitions}"]
        if self.shape == "partitioned":
            for n in range(2):
                part = TableName(self.name.schema, f"{self.name.name}_{n}").quoted
                statements.append(
                    f"CREATE TABLE {part} PARTITION OF {table}"
                    f" FOR VALUES WITH (MODULUS 2, REMAINDER {n})"
                )
        big = next(c for c in self.columns if c.type is BIG_TEXT)
        statements.append(f"ALTER TABLE {table} ALTER {big.quoted} SET STORAGE EXTERNAL")
        if self.shape == "index":
            index = quote_identifier(f"{self.name.name}_identity")
            statements.append(f"CREATE UNIQUE INDEX {index} ON {table} ({key})")
            statements.append(f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {index}")
        if self.shape in ("full", "primary full"):
            statements.append(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        return "; ".join(statements)


@st.composite
def tables(draw: st.DrawFn, schema: str, count: int) -> list[RandomTable]:
    """So many tables that share out every type among them, each with another key."""
    types = draw(st.permutations(TYPES))
    shapes = draw(st.permutations(KEYS))
    made = []
    for number in range(count):
        key_types = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
        shape = shapes[number % len(shapes)]
        columns = [Column("n", next(t for t in TYPES if t.sql == "integer"), list(range(POOL)))]
        if shape != "full":
            for place, each in enumerate(key_types):
                pool = draw(st.lists(each.values, min_size=KEY_POOL, max_size=KEY_POOL))
                columns.append(Column(f"k{place}", each, pool, key=True))
        columns.append(
            Column(
                "big", BIG_TEXT, [None, *draw(st.lists(BIG_TEXT.values, min_size=2, max_size=2))]
            )
        )
        for place, each in enumerate(types[number::count]):
            # Names with a space need another way into Delta; half of the tables have none.
            name = f"{NAMES[place % len(NAMES) if number % 2 else 0]}{place}"
            pool = [None, *draw(st.lists(each.values, min_size=POOL, max_size=POOL))]
            columns.append(Column(name, each, pool))
        made.append(RandomTable(TableName(schema, f"t{number}"), shape, tuple(columns)))
    return made


class Writer(threading.Thread):
    """Runs transactions over the tables: a number of them, or on and on until `stop`."""

    def __init__(self, dsn: str, tables: Sequence[RandomTable], seed: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._tables = tables
        self._chance = Chance(seed)
        self._stop_asked = threading.Event()
        self.transactions: int | None = None
        self.error: Exception | None = None

    def finish(self) -> None:
        """Ask it to stop and wait; raise what it met."""
        self._stop_asked.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                done = 0
                while not self._stop_asked.wait(0.02 * self._chance.random()):
                    self._transaction(connection)
                    done += 1
                    if done == self.transactions:
                        return
        except Exception as error:
            self.error = error

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        try:
            with connection.transaction() as transaction:
                for _ in range(chance.choice([1, 2, 3, 8])):
                    self._step(connection)
                if chance.random() < 0.1:
                    raise psycopg.Rollback(transaction)
        except UNDONE:
            pass  # as good as never begun

    def _step(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        if chance.random() < 0.6:
            self._change(connection, chance.choice(self._tables))
            return
        try:
            with connection.transaction() as savepoint:
                self._change(connection, chance.choice(self._tables))
                if chance.random() < 0.4:
                    raise psycopg.Rollback(savepoint)
        except psycopg.IntegrityError:
            pass

    def _change(self, connection: psycopg.Connection[Any], table: RandomTable) -> None:
        chance = self._chance
        change = chance.choices([_insert, _update, _move, _delete, _truncate], [10, 8, 3, 5, 0.15])[
            0
        ]
        statement, values = change(table, chance)
        connection.execute(statement.encode(), values)


Statement = tuple[str, list[Any]]


def _insert(table: RandomTable, chance: Chance) -> Statement:
    names = ", ".join(column.quoted for column in table.columns)
    casts = ", ".join(column.type.cast for column in table.columns)
    row = [column.draw(chance) for column in table.columns]
    conflict = " ON CONFLICT DO NOTHING" if table.key else ""
    return f"INSERT INTO {table.name.quoted} ({names}) VALUES ({casts}){conflict}", row


def _update(table: RandomTable, chance: Chance) -> Statement:
    free = [column for column in table.columns if not column.key]
    return _set(table, chance.sample(free, chance.randint(1, 3)), chance)


def _move(table: RandomTable, chance: Chance) -> Statement:
    """Give a row another key; where there is none, other values in many columns."""
    return _set(table, table.key or list(table.columns[:6]), chance)


def _set(table: RandomTable, columns: Sequence[Column], chance: Chance) -> Statement:
    sets = ", ".join(f"{column.quoted} = {column.type.cast}" for column in columns)
    where, found = _where(table, chance)
    values = [column.draw(chance) for column in columns]
    return f"UPDATE {table.name.quoted} SET {sets} WHERE {where}", values + found


def _delete(table: RandomTable, chance: Chance) -> Statement:
    where, found = _where(table, chance)
    return f"DELETE FROM {table.name.quoted} WHERE {where}", found


def _truncate(table: RandomTable, chance: Chance) -> Statement:
    return f"TRUNCATE {table.name.quoted}", []


def _where(table: RandomTable, chance: Chance) -> Statement:
    """One row by its key, or a few by `n`."""
    if table.key and chance.random() < 0.7:
        terms = " AND ".join(f"{column.quoted} = {column.type.cast}" for column in table.key)
        return terms, [column.draw(chance) for column in table.key]
    if table.shape == "partitioned":
        return "n = %s", [chance.randrange(POOL)]
    two = f"SELECT ctid FROM {table.name.quoted} WHERE n = %s LIMIT 2"
    return f"ctid = ANY (ARRAY({two}))", [chance.randrange(POOL)]
