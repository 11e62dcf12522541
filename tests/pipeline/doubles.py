"""A destination that can be told what to answer and when to fail, and a store that remembers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Any

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.destinations.base import Destination, WriteResult, WriteStatus
from penstock.events import Delete, Event, Insert, Truncate, Update
from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import StoredState
from penstock.stores import MemoryStore

Hook = Callable[[str], None]


class ScriptedDestination(Destination):
    """Keeps rows by key, as a mirror would. `status` is what writes answer.

    `before_write` is called with the table's name before every write, and may
    raise; so may `before_copy`, `before_flush` and `before_shutdown`. `futures` holds what was
    answered under "future", oldest first.
    """

    name = "scripted"

    def __init__(self, status: str = "durable") -> None:
        self.status = status
        self.tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)
        self.positions: dict[str, Lsn] = {}
        self.calls: list[tuple[str, str]] = []
        self.batches: list[ChangeBatch] = []
        self.futures: list[Future[None]] = []
        self.tells_position = True
        self.before_write: Hook = lambda table: None
        self.before_copy: Hook = lambda table: None
        self.before_flush: Hook = lambda table: None
        self.before_shutdown: Callable[[], None] = lambda: None
        self._lock = Lock()

    def called(self, call: str, table: str) -> int:
        """How often a method was called for a table."""
        with self._lock:
            return self.calls.count((call, table))

    def shutdown(self) -> None:
        self._note("shutdown", "")
        self.before_shutdown()

    def drop_table_for_copy(self, table: TableSchema, previous: TableSchema | None) -> None:
        self._note("drop", str(table.name))
        self.positions.pop(str(table.name), None)

    def write_table_rows(self, table: TableSchema, rows: TableRows) -> WriteResult:
        name = str(table.name)
        self._note("copy", name)
        self.before_copy(name)
        found = rows.dataframe.collect() if rows.files else []
        assert len(found) == rows.count
        self.tables[name] = {_key(table, row.asDict()): row.asDict() for row in found}
        return self._answer()

    def write_events(self, batch: ChangeBatch) -> WriteResult:
        name = str(batch.table.name)
        self._note("write", name)
        self.before_write(name)
        for event in batch.events():
            _apply(self.tables[name], batch.table, event)
        if self.tells_position:
            self.positions[name] = batch.end
        answer = self._answer()
        self.batches.append(batch)  # last: who sees it finds its future
        return answer

    def position(self, table: TableSchema, copy_id: str) -> Lsn | None:
        self._note("position", str(table.name))
        return self.positions.get(str(table.name))

    def flush(self, table: TableSchema) -> None:
        self._note("flush", str(table.name))
        self.before_flush(str(table.name))

    def _note(self, call: str, table: str) -> None:
        with self._lock:
            self.calls.append((call, table))

    def _answer(self) -> WriteResult:
        if self.status == "future":
            future: Future[None] = Future()
            self.futures.append(future)
            return future
        if self.status == "nothing":
            return None  # type: ignore[return-value]  # the mistake of a missing return
        return WriteStatus(self.status)


def _key(table: TableSchema, row: Any) -> tuple[Any, ...]:
    return tuple(row[column.name] for column in table.key)


def _apply(rows: dict[tuple[Any, ...], dict[str, Any]], table: TableSchema, event: Event) -> None:
    match event:
        case Insert(new=new):
            rows[_key(table, new)] = dict(new)
        case Update(new=new, old=old):
            before = rows.pop(_key(table, old), {}) if old else {}
            rows[_key(table, new)] = {**before, **rows.get(_key(table, new), {}), **new}
        case Delete(old=old):
            rows.pop(_key(table, old), None)
        case Truncate():
            rows.clear()


class RememberingStore(MemoryStore):
    """A store that can be asked for the states that a table has had."""

    def __init__(self) -> None:
        super().__init__()
        self._entered: list[tuple[TableId, StoredState]] = []

    def update_table_states(self, updates: Mapping[TableId, StoredState]) -> None:
        super().update_table_states(updates)
        self._entered += updates.items()

    def history(self, table_id: TableId) -> list[StoredState]:
        return [state for entered, state in self._entered if entered == table_id]
