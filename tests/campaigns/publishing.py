"""Tables that are published on other terms while others write to them.

A table leaves the publication and comes back, gets another row filter or column list,
a partition is detached, changed by itself and attached again, or dropped and made anew.
Nothing in the stream tells of any of these. What should be at the destination in the
end is what the publication shows then (`published`).

No partition comes and goes again while nobody looks: that is not seen, and rows that it
has been sent for stay at the destination.

Every statement finds out for itself how things stand: Postgres may have died before or
after the one before it was committed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.schema import TableName
from penstock.testing.postgres import wait_for

# Filters and lists name columns of the key, and all of them: Postgres insists on both.
_FILTERS = {
    "plain": ("id % 3 <> 1", "id BETWEEN 100 AND 4000"),
    "pairs": ("x > 100", "y <> 'b'"),
    "parts": ("day < '2025-07-01'", "id % 2 = 0"),
}
_LISTS = {
    "plain": ("id, a, b", "id, c, d, e"),
    "pairs": ("x, y, v",),
    "parts": ("id, day, amount",),
}
_PARTITIONS = {
    "parts_1": "FROM ('2025-01-01') TO ('2025-05-01')",
    "parts_2": "FROM ('2025-05-01') TO ('2025-09-01')",
    "parts_3": "FROM ('2025-09-01') TO ('2026-01-01')",
}
_PLAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Published:
    """How a table is published: which of its columns, and which of its rows."""

    table: TableName
    columns: tuple[str, ...]
    row_filter: str | None


def published(connection: psycopg.Connection[Any], publication: str) -> list[Published]:
    """What Postgres says that a publication shows."""
    found = connection.execute(
        "SELECT schemaname, tablename, attnames, rowfilter FROM pg_publication_tables"
        " WHERE pubname = %s ORDER BY 1, 2",
        [publication],
    )
    return [Published(TableName(s, t), tuple(names), rows) for s, t, names, rows in found]


def lose_slot(dsn: str, slot: str) -> None:
    """Drop a slot, whoever reads from it."""

    def gone() -> bool:
        with psycopg.connect(dsn, autocommit=True) as connection:
            try:
                connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            except psycopg.errors.UndefinedObject:
                return True
            except psycopg.errors.ObjectInUse:
                connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                    " WHERE slot_name = %s",
                    [slot],
                )
                return False
        return True

    wait_for(gone, f"the slot {slot} could not be dropped")


class Publisher:
    """Changes how some tables of the workload are published, one thing at a time."""

    def __init__(
        self, chance: random.Random, publication: str, tables: Sequence[TableName]
    ) -> None:
        self._chance = chance
        self._publication = publication
        self._tables = tables

    def change(self, connection: psycopg.Connection[Any]) -> None:
        """One change, in one transaction."""
        table = self._chance.choice(self._tables)
        every = [each.table for each in published(connection, self._publication)]
        shown = table in every
        ways: list[Callable[[], list[str]]] = [lambda: self._change_terms(table, shown=shown)]
        if every != [table]:  # a pipeline does not start with nothing to do
            ways += [lambda: self._leave_or_return(table, shown=shown)]
        if table.name == "parts":
            partition = self._chance.choice(list(_PARTITIONS))
            ways += [lambda: _move_partition(partition, self._chance)] * 2
            ways += [lambda: _empty_partition(partition)]
        statements = self._chance.choice(ways)()
        with connection.transaction():
            for statement in statements:
                connection.execute(statement.encode())

    def _leave_or_return(self, table: TableName, *, shown: bool) -> list[str]:
        return [self._alter(f"DROP TABLE {table.quoted}") if shown else self._add(table)]

    def _change_terms(self, table: TableName, *, shown: bool) -> list[str]:
        """It leaves and comes back at once, as it does by `SET TABLE`."""
        left = [self._alter(f"DROP TABLE {table.quoted}")] if shown else []
        return [*left, self._add(table)]

    def _add(self, table: TableName) -> str:
        columns, rows = "", ""
        if self._chance.random() >= _PLAIN_SHARE:
            columns = f" ({self._chance.choice(_LISTS[table.name])})"
        if self._chance.random() >= _PLAIN_SHARE:
            rows = f" WHERE ({self._chance.choice(_FILTERS[table.name])})"
        return self._alter(f"ADD TABLE {table.quoted}{columns}{rows}")

    def _alter(self, action: str) -> str:
        return f"ALTER PUBLICATION {self._publication} {action}"


def _move_partition(name: str, chance: random.Random) -> list[str]:
    """Detach a partition, change it while it is by itself, and attach it again."""
    return [
        f"ALTER TABLE parts DETACH PARTITION {name}",
        f"DELETE FROM {name} WHERE id % 5 = {chance.randrange(5)}",
        f"UPDATE {name} SET v = 'apart', amount = amount + 1 WHERE id % 2 = 0",
        f"ALTER TABLE parts ATTACH PARTITION {name} FOR VALUES {_PARTITIONS[name]}",
    ]


def _empty_partition(name: str) -> list[str]:
    create = f"CREATE TABLE {name} PARTITION OF parts FOR VALUES {_PARTITIONS[name]}"
    return [f"DROP TABLE {name}", create]
