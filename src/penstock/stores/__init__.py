"""Stores: what must survive beside the journal. `base` is the contract to implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lazy import loader
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

if TYPE_CHECKING:
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

__getattr__ = loader(
    __name__, {"MemoryStore": "penstock.stores.memory", "SqlStore": "penstock.stores.sql"}
)
