"""A store that lives as long as its object: for tests, examples and throw-away runs.

Closing keeps the records, so a pipeline can be stopped and started again on the
same `MemoryStore` and go on as it would after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import StoredState
from penstock.stores.base import (
    DeleteTable,
    DestinationTableMetadata,
    ResetForResync,
    TableStateOperation,
    Worker,
)
from penstock.stores.records import CachedStore, Records, nothing_to_roll_back, require_storable


@dataclass
class _Kept:
    """One pipeline's records, and every state its tables have had, newest last."""

    records: Records = field(default_factory=Records)
    history: dict[TableId, list[StoredState]] = field(default_factory=dict)


class MemoryStore(CachedStore):
    """Keeps everything in this object, for each pipeline apart."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, _Kept] = {}

    def __repr__(self) -> str:
        return "MemoryStore()"

    def open(self, pipeline_id: str) -> None:
        with self._lock:
            self._require_free(pipeline_id)
            self._pipeline_id = pipeline_id
            self._records = self._kept.setdefault(pipeline_id, _Kept()).records

    def close(self) -> None:
        with self._lock:
            self._pipeline_id = None

    @property
    def _history(self) -> dict[TableId, list[StoredState]]:
        return self._kept[self.pipeline_id].history

    def load_table_schemas(self) -> int:
        return len(self.get_table_schemas())

    def store_table_schema(self, schema: TableSchema) -> None:
        with self._lock:
            self._read().put_schemas([schema])

    def prune_table_schemas(self, retentions: Mapping[TableId, Lsn]) -> int:
        with self._lock:
            return self._read().prune_schemas(retentions)

    def load_table_states(self) -> int:
        return len(self.get_table_states())

    def update_table_states(self, updates: Mapping[TableId, StoredState]) -> None:
        require_storable(updates.values())
        with self._lock:
            self._put_states(updates)

    def _put_states(self, updates: Mapping[TableId, StoredState]) -> None:
        self._read().states.update(updates)
        for table_id, state in updates.items():
            self._history.setdefault(table_id, []).append(state)

    def rollback_table_state(self, table_id: TableId) -> StoredState:
        with self._lock:
            records, history = self._read(), self._history.get(table_id, [])
            if len(history) < 2:
                raise nothing_to_roll_back(table_id)
            history.pop()
            records.states[table_id] = history[-1]
            return history[-1]

    def upsert_replication_progress(self, worker: Worker, lsn: Lsn) -> Lsn:
        with self._lock:
            return self._read().advance(worker, lsn)

    def delete_replication_progress(self, worker: Worker) -> None:
        with self._lock:
            self._read().progress.pop(worker, None)

    def load_destination_tables_metadata(self) -> int:
        with self._lock:
            return len(self._read().metadata)

    def store_destination_table_metadata(
        self, table_id: TableId, metadata: DestinationTableMetadata
    ) -> None:
        with self._lock:
            self._read().metadata[table_id] = metadata

    def apply_table_state_operation(self, operation: TableStateOperation) -> None:
        with self._lock:
            records = self._read()
            records.apply(operation)
            match operation:
                case DeleteTable(table_id):
                    self._history.pop(table_id, None)
                case ResetForResync():
                    self._put_states(dict(records.states))
