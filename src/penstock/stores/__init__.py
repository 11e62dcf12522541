"""Stores: what must survive beside the journal. `base` is the contract to implement."""

from penstock.stores.base import (
    DeleteTable,
    DestinationStore,
    DestinationTableMetadata,
    MetadataStatus,
    PipelineStore,
    PrepareForCopy,
    ResetForResync,
    SchemaStore,
    StateStore,
    TableStateLifecycleStore,
    TableStateOperation,
    Worker,
    WorkerKind,
)
from penstock.stores.memory import MemoryStore
from penstock.stores.sql import SqlStore

__all__ = [
    "DeleteTable",
    "DestinationStore",
    "DestinationTableMetadata",
    "MemoryStore",
    "MetadataStatus",
    "PipelineStore",
    "PrepareForCopy",
    "ResetForResync",
    "SchemaStore",
    "SqlStore",
    "StateStore",
    "TableStateLifecycleStore",
    "TableStateOperation",
    "Worker",
    "WorkerKind",
]
