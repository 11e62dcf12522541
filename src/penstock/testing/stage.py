"""One table on its way into one destination, without a pipeline around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.changes.batches import ChangeBatch
from penstock.destinations.base import Destination, DestinationContext, WriteStatus
from penstock.schema import Lsn, TableSchema
from penstock.states import Ready, VisibleXids
from penstock.stores.memory import MemoryStore
from penstock.testing.segments import Change, Script, Values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = "contract"


class Stage:
    """Drives a destination as a pipeline would. `make` and `read` are the contract's methods."""

    def __init__(
        self,
        make: Callable[[], Destination],
        read: Callable[[Destination, TableSchema], list[dict[str, Any]]],
        table: TableSchema,
        directory: Path,
        spark: SparkSession,
    ) -> None:
        self._make, self._read, self._spark = make, read, spark
        self.table = table
        self.script = Script(table, directory, spark, PIPELINE)
        self.store = MemoryStore()
        self.store.open(PIPELINE)
        self._copied: TableSchema | None = None
        self._copy_id = ""
        self.destination = self._start()

    def _start(self) -> Destination:
        destination = self._make()
        destination.startup(DestinationContext(PIPELINE, self._spark, self.store))
        return destination

    def restart(self) -> None:
        """As after a crash: the destination before gets no word of it."""
        self.destination = self._start()

    def copy(self, rows: Sequence[Values], files: int = 1) -> None:
        self.destination.drop_table_for_copy(self.table, self._copied)
        copied = self.script.copy(rows, files)
        result = self.destination.write_table_rows(self.table, copied)
        self.settle(result)
        self.store.update_table_state(self.table.id, Ready(copied.id))
        self._copied, self._copy_id = self.table, copied.id

    def apply(self, *transactions: Sequence[Change], visible: VisibleXids | None = None) -> None:
        self.write(self.script.batch(*transactions, visible=visible))

    def write(self, batch: ChangeBatch) -> None:
        self.settle(self.destination.write_events(batch))

    def settle(self, result: object) -> None:
        if result is not WriteStatus.DURABLE:
            self.destination.flush(self.table)

    def position(self) -> Lsn | None:
        """Up to where the destination says that it has the current copy's changes."""
        return self.destination.position(self.table, self._copy_id)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """What is there now, sorted as text, each row in the order of the table's columns."""
        names = [column.name for column in self.table.columns]
        found = self._read(self.destination, self.table)
        assert all(set(row) == set(names) for row in found)
        return sorted((comparable(row[name] for name in names) for row in found), key=_as_text)


def _as_text(row: tuple[Any, ...]) -> list[str]:
    return [str(value) for value in row]


def comparable(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(_comparable_value, values))


def _comparable_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_comparable_value(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"  # which equals nothing, not even itself
    return value
