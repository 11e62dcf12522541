"""Where tables go: the contract, and the destinations that come with Penstock.

Every type in a signature of the contract can be imported from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.destinations.base import Destination, DestinationContext, WriteResult, WriteStatus
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.errors import ErrorKind, PenstockError
from penstock.findings import Finding, Severity
from penstock.lazy import loader
from penstock.schema import ColumnSchema, DdlNote, Lsn, TableId, TableName, TableSchema
from penstock.stores.base import DestinationStore

if TYPE_CHECKING:
    from penstock.destinations.delta import DeltaDestination
    from penstock.destinations.memory import MemoryDestination

__all__ = [
    "ChangeBatch",
    "ColumnSchema",
    "DdlNote",
    "DeltaDestination",
    "Destination",
    "DestinationContext",
    "DestinationStore",
    "ErrorKind",
    "Finding",
    "Lsn",
    "MemoryDestination",
    "PenstockError",
    "SchemaChange",
    "SchemaChangeAction",
    "Severity",
    "TableId",
    "TableName",
    "TableRows",
    "TableSchema",
    "WriteResult",
    "WriteStatus",
]

__getattr__ = loader(
    __name__,
    {
        "DeltaDestination": "penstock.destinations.delta",
        "MemoryDestination": "penstock.destinations.memory",
    },
)
