"""The store contract: what must survive beside the journal.

Three small contracts, implemented together by one class (`PipelineStore`). All
methods are synchronous and may be called from several threads at once. Reads
answer from a cache that the `load_*` methods fill; writes go to storage first
and to the cache after, so that a failed write leaves both as they were.
Failures of the storage are `PenstockError`s of kind `STORE`.

A destination sees only `DestinationStore`, the first two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import StoredState


class WorkerKind(StrEnum):
    APPLY = "apply"
    TABLE_SYNC = "table_sync"


@dataclass(frozen=True, slots=True)
class Worker:
    """Whose progress it is: `Worker.apply(table)` or `Worker.table_sync(table)`."""

    kind: WorkerKind
    table_id: TableId

    @classmethod
    def apply(cls, table_id: TableId) -> Self:
        return cls(WorkerKind.APPLY, table_id)

    @classmethod
    def table_sync(cls, table_id: TableId) -> Self:
        return cls(WorkerKind.TABLE_SYNC, table_id)


class MetadataStatus(StrEnum):
    APPLYING = "applying"
    APPLIED = "applied"


@dataclass(frozen=True, slots=True)
class DestinationTableMetadata:
    """What a destination holds of a table: which table there, which schema version.

    `status` is `applying` while a schema change is under way. `column_mask` has
    one flag for each column of that schema version: whether it is replicated.
    """

    destination_id: str
    snapshot_id: Lsn
    status: MetadataStatus
    column_mask: tuple[bool, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "destination_id": self.destination_id,
            "snapshot_id": str(self.snapshot_id),
            "status": str(self.status),
            "column_mask": list(self.column_mask),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            data["destination_id"],
            Lsn.parse(data["snapshot_id"]),
            MetadataStatus(data["status"]),
            tuple(data["column_mask"]),
        )


class SchemaStore(ABC):
    """Schema versions of tables."""

    @abstractmethod
    def get_table_schema(self, table_id: TableId, snapshot_id: Lsn) -> TableSchema | None:
        """The newest version at or before `snapshot_id`. A cache miss may read storage."""

    @abstractmethod
    def get_table_schemas(self) -> list[TableSchema]:
        """Every cached version."""

    @abstractmethod
    def load_table_schemas(self) -> int:
        """Fill the cache from storage; how many versions there are."""

    @abstractmethod
    def store_table_schema(self, schema: TableSchema) -> None:
        """Keep this version; storing the same version again replaces it."""

    @abstractmethod
    def prune_table_schemas(self, retentions: Mapping[TableId, Lsn]) -> int:
        """Remove, for each table named, the versions no longer needed at its boundary.

        Keeps the newest version at or before the boundary and all later ones;
        says how many were removed.
        """


class StateStore(ABC):
    """Table states with their history, progress, and destination metadata."""

    @abstractmethod
    def get_table_state(self, table_id: TableId) -> StoredState | None: ...

    @abstractmethod
    def get_table_states(self) -> dict[TableId, StoredState]: ...

    @abstractmethod
    def load_table_states(self) -> int:
        """Fill the cache with states and progress from storage; how many states there are."""

    def update_table_state(self, table_id: TableId, state: StoredState) -> None:
        self.update_table_states({table_id: state})

    @abstractmethod
    def update_table_states(self, updates: Mapping[TableId, StoredState]) -> None:
        """Set these states, all or none; each is added to its table's history."""

    @abstractmethod
    def rollback_table_state(self, table_id: TableId) -> StoredState:
        """Step back to the state before; the state after it. An error if there is none."""

    @abstractmethod
    def get_replication_progress(self, worker: Worker) -> Lsn | None: ...

    @abstractmethod
    def upsert_replication_progress(self, worker: Worker, lsn: Lsn) -> Lsn:
        """Move forward to `lsn`, never backward; what is stored afterwards."""

    @abstractmethod
    def delete_replication_progress(self, worker: Worker) -> None: ...

    @abstractmethod
    def get_destination_table_metadata(
        self, table_id: TableId
    ) -> DestinationTableMetadata | None: ...

    @abstractmethod
    def get_applied_destination_table_metadata(
        self, table_id: TableId
    ) -> DestinationTableMetadata | None:
        """Like the above, but an error while a schema change is under way."""

    @abstractmethod
    def load_destination_tables_metadata(self) -> int: ...

    @abstractmethod
    def store_destination_table_metadata(
        self, table_id: TableId, metadata: DestinationTableMetadata
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class PrepareForCopy:
    """Delete metadata, schema versions and progress of a table; keep its state."""

    table_id: TableId


@dataclass(frozen=True, slots=True)
class ResetForResync:
    """All states to `init`; delete apply progress; keep the rest."""


@dataclass(frozen=True, slots=True)
class DeleteTable:
    """Forget a table that left the publication: everything, history included."""

    table_id: TableId


TableStateOperation = PrepareForCopy | ResetForResync | DeleteTable


class TableStateLifecycleStore(ABC):
    """Changes that touch states, schemas, metadata and progress together."""

    @abstractmethod
    def apply_table_state_operation(self, operation: TableStateOperation) -> None:
        """Do all of `operation` or nothing, in storage and in every cache."""

    def prepare_table_state_for_copy(self, table_id: TableId) -> None:
        """Call only after the destination's `drop_table_for_copy` succeeded."""
        self.apply_table_state_operation(PrepareForCopy(table_id))

    def reset_table_states_for_resync(self) -> None:
        self.apply_table_state_operation(ResetForResync())

    def delete_table_state(self, table_id: TableId) -> None:
        self.apply_table_state_operation(DeleteTable(table_id))


class DestinationStore(SchemaStore, StateStore, ABC):
    """What a destination gets in its context."""


class PipelineStore(DestinationStore, TableStateLifecycleStore, ABC):
    """What a pipeline needs: all three.

    One SQL store serves several pipelines; `open` says for which one this
    object speaks and makes the storage ready (creating or migrating it). A store that
    needs neither leaves both as they are.
    """

    def open(self, pipeline_id: str) -> None:
        """Called once, before anything else."""

    def close(self) -> None:
        """Called last, at the end of a pipeline and of a look at it."""


def schema_at_destination(store: PipelineStore, table_id: TableId) -> TableSchema | None:
    """The version of a table's schema that the destination has, once there is one."""
    metadata = store.get_destination_table_metadata(table_id)
    if metadata is None:
        return None
    version = metadata.snapshot_id
    if metadata.status is MetadataStatus.APPLYING:
        # A change was under way when we died; it is asked for again.
        version = Lsn(version.value - 1)
    return store.get_table_schema(table_id, version)
