"""What a store knows of one pipeline, in memory.

`MemoryStore` keeps nothing else; `SqlStore` uses it as its cache. The rules that
do not depend on storage are here, once: which schema version is in force at a
position, what pruning keeps, that progress never goes back, and what each
lifecycle operation removes.

`Records` is plain data without a lock; `CachedStore` is the half of a store
that answers from it.
"""

from __future__ import annotations

import threading
from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import Catchup, Errored, Init, StoredState, TableState
from penstock.stores.base import (
    DeleteTable,
    DestinationTableMetadata,
    MetadataStatus,
    PipelineStore,
    PrepareForCopy,
    ResetForResync,
    TableStateOperation,
    Worker,
    WorkerKind,
)


@dataclass
class Records:
    """The current records of one pipeline."""

    states: dict[TableId, StoredState] = field(default_factory=dict)
    schemas: dict[TableId, dict[Lsn, TableSchema]] = field(default_factory=dict)
    progress: dict[Worker, Lsn] = field(default_factory=dict)
    metadata: dict[TableId, DestinationTableMetadata] = field(default_factory=dict)

    def put_schemas(self, schemas: Iterable[TableSchema]) -> None:
        for schema in schemas:
            self.schemas.setdefault(schema.id, {})[schema.version] = schema

    def schema_at(self, table_id: TableId, position: Lsn) -> TableSchema | None:
        """The newest version that begins at or before `position`."""
        versions = self.schemas.get(table_id, {})
        begun = [version for version in versions if version <= position]
        return versions[max(begun)] if begun else None

    def prune_schemas(self, retentions: Mapping[TableId, Lsn]) -> int:
        """Remove what is older than the version in force at each boundary; how many."""
        removed = 0
        for table_id, boundary in retentions.items():
            in_force = self.schema_at(table_id, boundary)
            if in_force is None:
                continue
            versions = self.schemas[table_id]
            for version in [v for v in versions if v < in_force.version]:
                del versions[version]
                removed += 1
        return removed

    def advance(self, worker: Worker, lsn: Lsn) -> Lsn:
        """Move progress forward, never backward; where it is afterwards."""
        self.progress[worker] = max(lsn, self.progress.get(worker, lsn))
        return self.progress[worker]

    def apply(self, operation: TableStateOperation) -> None:
        match operation:
            case PrepareForCopy(table_id):
                self._forget_copy(table_id)
            case ResetForResync():
                self.states = dict.fromkeys(self.states, Init())
                for worker in [w for w in self.progress if w.kind is WorkerKind.APPLY]:
                    del self.progress[worker]
            case DeleteTable(table_id):
                self._forget_copy(table_id)
                self.states.pop(table_id, None)

    def _forget_copy(self, table_id: TableId) -> None:
        self.metadata.pop(table_id, None)
        self.schemas.pop(table_id, None)
        for kind in WorkerKind:
            self.progress.pop(Worker(kind, table_id), None)


def require_storable(states: Iterable[TableState]) -> None:
    """Refuse `catchup`, which must not outlive the process, before anything is written."""
    for state in states:
        if isinstance(state, Catchup):
            raise PenstockError(
                ErrorKind.INVALID_STATE,
                "the state catchup is never stored",
                hint="keep the state the table had; it becomes sync_done when caught up",
            )
        if isinstance(state, Errored):
            require_storable([state.interrupted])


def nothing_to_roll_back(table_id: TableId) -> PenstockError:
    return PenstockError(
        ErrorKind.INVALID_STATE,
        f"table {table_id} has no earlier state to go back to",
        hint="`penstock resync TABLE` starts it again from the beginning",
    )


class CachedStore(PipelineStore, ABC):
    """The reading half of a store: answers from records in memory, under a short lock.

    The lock is held for dictionary operations only, never while storage is
    awaited, so a slow write delays no reader.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipeline_id: str | None = None
        self._records = Records()

    @property
    def pipeline_id(self) -> str:
        """For which pipeline this object speaks; an error before `open`."""
        if self._pipeline_id is None:
            raise PenstockError(
                ErrorKind.INVALID_STATE,
                "the store is not open",
                hint="call open(pipeline_id) first; a pipeline does so in start()",
            )
        return self._pipeline_id

    def _require_free(self, pipeline_id: str) -> None:
        if self._pipeline_id not in (None, pipeline_id):
            raise PenstockError(
                ErrorKind.INVALID_STATE,
                f"the store is open for pipeline {self._pipeline_id}, not {pipeline_id}",
                hint="give each pipeline a store object of its own; they may share the storage",
            )

    def _read(self) -> Records:
        """The records, for use while the lock is held."""
        _ = self.pipeline_id
        return self._records

    def get_table_schema(self, table_id: TableId, snapshot_id: Lsn) -> TableSchema | None:
        with self._lock:
            return self._read().schema_at(table_id, snapshot_id)

    def get_table_schemas(self) -> list[TableSchema]:
        with self._lock:
            tables = self._read().schemas.values()
            schemas = [schema for versions in tables for schema in versions.values()]
        return sorted(schemas, key=lambda schema: (schema.id, schema.version))

    def get_table_state(self, table_id: TableId) -> StoredState | None:
        with self._lock:
            return self._read().states.get(table_id)

    def get_table_states(self) -> dict[TableId, StoredState]:
        with self._lock:
            return dict(self._read().states)

    def get_replication_progress(self, worker: Worker) -> Lsn | None:
        with self._lock:
            return self._read().progress.get(worker)

    def get_destination_table_metadata(self, table_id: TableId) -> DestinationTableMetadata | None:
        with self._lock:
            return self._read().metadata.get(table_id)

    def get_applied_destination_table_metadata(
        self, table_id: TableId
    ) -> DestinationTableMetadata | None:
        metadata = self.get_destination_table_metadata(table_id)
        if metadata is not None and metadata.status is MetadataStatus.APPLYING:
            raise PenstockError(
                ErrorKind.INVALID_STATE,
                f"a schema change of table {table_id} is still being applied "
                f"to {metadata.destination_id}",
                hint="apply the change again (that is harmless) and mark it applied",
                position=metadata.snapshot_id,
            )
        return metadata
