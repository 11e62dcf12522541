"""Rows and events in this process's memory, for tests and examples.

It behaves like a destination that commits each batch with its position: `position`
tells it, and a change that is there already is not applied again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.destinations.base import Destination, DestinationContext, WriteStatus
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.errors import ErrorKind, PenstockError
from penstock.events import Begin, Commit, Delete, Event, Insert, Relation, Row, Truncate, Update
from penstock.schema import Lsn, TableId, TableName, TableSchema


@dataclass
class _Table:
    """A table's rows, by key where it has one, and what has happened to it."""

    schema: TableSchema
    copy_id: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    by_key: dict[Any, dict[str, Any]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    position: Lsn | None = None

    def key_of(self, row: Row) -> Any:
        return tuple(_hashable(row[column.name]) for column in self.schema.key)

    def insert(self, row: Row) -> None:
        ordered = {column.name: row[column.name] for column in self.schema.columns}
        if self.schema.key:
            self.by_key[self.key_of(row)] = ordered
        else:
            self.rows.append(ordered)

    def remove(self, old: Row) -> dict[str, Any]:
        """Take the row out that `old` names; what it was."""
        if self.schema.key:
            return self.by_key.pop(self.key_of(old), {})
        for place, row in enumerate(self.rows):
            if _same(row, old):
                return self.rows.pop(place)
        return {}

    def _take_schema(self, schema: TableSchema) -> None:
        """Have the rows under the key of another version."""
        rows = [*self.by_key.values(), *self.rows]
        self.schema, self.by_key, self.rows = schema, {}, []
        for row in rows:
            self.insert(row)

    def apply(self, event: Event) -> None:
        match event:
            case Insert(new=new):
                self.insert(new)
            case Update(new=new, old=old, missing=missing):
                before = self.remove(old if old is not None else new)
                if lost := [name for name in missing if name not in before]:
                    raise PenstockError(
                        ErrorKind.DESTINATION_REJECTED,
                        f"no row to take the unchanged {', '.join(lost)} from",
                        hint="copy the table again",
                        table=self.schema.name,
                        position=event.commit_lsn,
                    )
                self.insert({**{name: before[name] for name in missing}, **new})
            case Delete(old=old):
                self.remove(old)
            case Truncate():
                self.rows.clear()
                self.by_key.clear()
            case Relation(schema=schema):
                self._take_schema(schema)
            case Begin() | Commit():
                pass


class MemoryDestination(Destination):
    """Keeps everything until the process ends; safe to read from any thread."""

    name: ClassVar[str] = "memory"

    def __init__(self) -> None:
        self._tables: dict[TableId, _Table] = {}
        self._lock = threading.RLock()

    def startup(self, context: DestinationContext) -> None:
        """Nothing to prepare; a second start goes on with what is there."""

    def rows(self, name: TableName | str) -> list[dict[str, Any]]:
        """A table's rows as they are now, by key; `name` is `schema.table`."""
        with self._lock:
            table = self._named(name)
            if table is None:
                return []
            return [
                dict(row) for row in (table.by_key.values() if table.schema.key else table.rows)
            ]

    def events(self, name: TableName | str) -> list[Event]:
        """Everything that has happened to a table since its copy."""
        with self._lock:
            table = self._named(name)
            return list(table.events) if table else []

    @property
    def tables(self) -> list[TableName]:
        with self._lock:
            return sorted(table.schema.name for table in self._tables.values())

    def _named(self, name: TableName | str) -> _Table | None:
        return next((t for t in self._tables.values() if str(t.schema.name) == str(name)), None)

    def drop_table_for_copy(self, table: TableSchema, previous: TableSchema | None) -> None:
        """Keeps the rows readable until the copy replaces them."""

    def write_table_rows(self, table: TableSchema, rows: TableRows) -> WriteStatus:
        fresh = _Table(table, rows.id)
        for row in rows.rows():
            fresh.insert(row)
        with self._lock:
            # A table that was made again, or that has got another's name, takes its place.
            for known in [i for i, t in self._tables.items() if t.schema.name == table.name]:
                del self._tables[known]
            self._tables[table.id] = fresh
        return WriteStatus.DURABLE

    def write_events(self, batch: ChangeBatch) -> WriteStatus:
        events = list(batch.events())
        with self._lock:
            table = self._tables.get(batch.table.id)
            if table is None:
                table = _Table(batch.table, batch.copy_id)
            else:
                # What fails in the middle leaves nothing behind.
                table = replace(table, rows=list(table.rows), by_key=dict(table.by_key))
            there = table.position
            if there is not None and there > batch.start:
                # A part of the batch has come before, with other ends. A commit begins before
                # the end of its batch.
                events = [event for event in events if event.commit_lsn >= there]
            for event in events:
                table.apply(event)
            table.events += events
            table.position = max(batch.end, there or batch.end)
            self._tables[batch.table.id] = table
        return WriteStatus.DURABLE

    def change_schema(self, change: SchemaChange) -> SchemaChangeAction:
        """Rows with other columns, or other values, come with another copy."""
        same = change.new.same_columns(change.old) and not change.rewrites
        return SchemaChangeAction.CONTINUE if same else SchemaChangeAction.RESYNC

    def position(self, table: TableSchema, copy_id: str) -> Lsn | None:
        with self._lock:
            known = self._tables.get(table.id)
            return known.position if known and known.copy_id == copy_id else None


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _same(row: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    # As they are written: NaN equals itself, as it does in Postgres, and -0 is not 0.
    return all(repr(row[name]) == repr(value) for name, value in old.items())
