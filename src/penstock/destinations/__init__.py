"""Where tables go: the contract, and the destinations that come with Penstock."""

from penstock.destinations.base import (
    Destination,
    DestinationContext,
    SchemaChange,
    SchemaChangeAction,
    WriteResult,
    WriteStatus,
)
from penstock.destinations.delta import DeltaDestination
from penstock.destinations.memory import MemoryDestination

__all__ = [
    "DeltaDestination",
    "Destination",
    "DestinationContext",
    "MemoryDestination",
    "SchemaChange",
    "SchemaChangeAction",
    "WriteResult",
    "WriteStatus",
]
