"""A destination that keeps nothing: to measure everything before it, or to fill the journal."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.destinations.base import Destination, WriteStatus


class NullDestination(Destination):
    """Takes copies and changes, and drops them."""

    name: ClassVar[str] = "null"

    def drop_table_for_copy(self, *_: Any) -> None:
        """Nothing is there."""

    def write_table_rows(self, *_: Any) -> WriteStatus:
        return WriteStatus.DURABLE

    def write_events(self, *_: Any) -> WriteStatus:
        return WriteStatus.DURABLE
