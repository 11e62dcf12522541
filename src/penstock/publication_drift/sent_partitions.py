"""Which partitions the stream has sent under the name of another table.

A partition that was created, filled and dropped between two looks at the catalog leaves no other
trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.schema import TableId
from penstock.states import VisibleXids


class SentPartition(NamedTuple):
    """A partition whose changes are sent under the name of `root`. `xid` is the transaction whose
    Relation messages showed it."""

    root: TableId
    oid: int
    xid: int

    def to_json(self) -> list[int]:
        return [self.root.oid, self.oid, self.xid]

    @classmethod
    def from_json(cls, data: list[int]) -> SentPartition:
        root, oid, xid = data
        return cls(TableId(root), oid, xid)


class SentPartitions:
    """All partitions seen so far, each with the newest transaction that showed it."""

    def __init__(self) -> None:
        self._partitions: dict[TableId, dict[int, int]] = defaultdict(dict)
        self._roots: dict[int, set[TableId]] = defaultdict(set)

    def take(self, told: Iterable[SentPartition]) -> None:
        for root, oid, xid in told:
            self._partitions[root][oid] = xid
            self._roots[oid].add(root)

    def forget(self, judged: VisibleXids) -> None:
        """Forget what these transactions showed. Their 32-bit ids will be used again."""
        for root, oid, xid in self.everything():
            if judged.contains(xid):
                del self._partitions[root][oid]
                self._roots[oid].discard(root)

    def under(self, table: TableId) -> Mapping[int, int]:
        """Partitions sent under this table's name: oid to transaction."""
        return self._partitions.get(table, {})

    def elsewhere(self, table: TableId, oids: Iterable[int]) -> dict[int, int]:
        """The members of `oids` that were sent under another table's name, with the transaction."""
        return {
            oid: self._partitions[root][oid]
            for oid in oids
            for root in self._roots.get(oid, ())
            if root != table
        }

    def everything(self) -> tuple[SentPartition, ...]:
        return tuple(
            SentPartition(root, oid, xid)
            for root, partitions in self._partitions.items()
            for oid, xid in partitions.items()
        )
