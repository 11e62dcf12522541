"""The Delta destination."""

from penstock.destinations.delta.destination import DeltaDestination

__all__ = ["DeltaDestination"]
