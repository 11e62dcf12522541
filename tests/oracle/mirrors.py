"""Destinations that tell what they hold.

The one in memory follows schema changes in place, as Delta does, and goes by Delta's own
plan. So what is tried with it, in a tenth of the time, is whether that plan is right: what
the source's triggers said, when a version begins, which values rows have after it.
"""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock.destinations import DeltaDestination, MemoryDestination
from penstock.destinations.delta.alteration import Alteration, plan
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.postgres.types import spark_type
from penstock.schema import TableId, TableName, ValueKind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Mirror(Protocol):
    """`types` are a table's columns by name, as Spark would call them; empty where there is no
    table."""

    def types(self, name: TableName) -> dict[str, str]: ...

    def rows(self, name: TableName) -> list[dict[str, Any]]: ...

    def holds(self, table_id: TableId, name: TableName) -> bool:
        """Whether the table is there; or another one, which has its name by now."""
        ...


class DeltaMirror(DeltaDestination):
    """Tables in a lake, read by a session that knows nothing of who wrote them."""

    def types(self, name: TableName) -> dict[str, str]:
        # Files may be there before the commit that makes a table of them.
        committed = any(Path(self.path(name), "_delta_log").glob("*.json"))
        return dict(self._frame(name).dtypes) if committed else {}

    def rows(self, name: TableName) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._frame(name).toArrow().to_pylist()
        return found

    def holds(self, table_id: TableId, name: TableName) -> bool:
        return bool(self.types(name))

    def _frame(self, name: TableName) -> DataFrame:
        from pyspark.sql import SparkSession

        session = SparkSession.active().newSession()
        return session.read.format("delta").load(self.path(name))


class InPlaceDestination(MemoryDestination):
    """Rows in memory; `altered` counts what was followed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.altered = 0

    def types(self, name: TableName) -> dict[str, str]:
        with self._lock:
            table = self._named(name)
            return {c.name: spark_type(c.type) for c in table.schema.columns} if table else {}

    def holds(self, table_id: TableId, name: TableName) -> bool:
        with self._lock:
            return table_id in self._tables or self._named(name) is not None

    def change_schema(self, change: SchemaChange) -> SchemaChangeAction:
        if super().change_schema(change) is SchemaChangeAction.CONTINUE:
            return SchemaChangeAction.CONTINUE
        alteration = plan(change)
        with self._lock:
            table = self._tables.get(change.new.id)
            if alteration is None or table is None:
                return SchemaChangeAction.RESYNC
            rows = [_altered(row, alteration) for row in [*table.by_key.values(), *table.rows]]
            table.schema, table.by_key, table.rows = change.new, {}, []
            for row in rows:
                table.insert(row)
            self.altered += 1
        return SchemaChangeAction.CONTINUE


def _altered(row: dict[str, Any], alteration: Alteration) -> dict[str, Any]:
    change = alteration.change
    names = dict(change.renamed)
    new = {names.get(name, name): value for name, value in row.items()}
    for column in change.added:
        fill = alteration.fills.get(column.name)
        new[column.name] = fill.to_pylist()[0] if fill is not None else None
    for _, column in change.retyped:
        new[column.name] = _widened(new[column.name], column.type.kind)
    return new


def _widened(value: Any, kind: ValueKind) -> Any:
    if value is not None and kind is ValueKind.DOUBLE:
        return float(value)
    if type(value) is date and kind is ValueKind.TIMESTAMP_NTZ:
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001
    return value
