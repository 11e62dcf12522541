"""Where tables go: the contract, and the destinations that come with Penstock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.destinations.base import Destination, DestinationContext, WriteResult, WriteStatus
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.lazy import loader

if TYPE_CHECKING:
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

__getattr__ = loader(
    __name__,
    {
        "DeltaDestination": "penstock.destinations.delta",
        "MemoryDestination": "penstock.destinations.memory",
    },
)
