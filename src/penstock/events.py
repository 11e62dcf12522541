"""The row-by-row view of the changes, for destinations and targets that want rows.

Every event carries the position of its transaction (`commit_lsn`) and its place
in it (`tx_ordinal`). The journal does not keep where in the WAL a change itself
stands, so its `start_lsn` is its transaction's: `(commit_lsn, tx_ordinal)` is
what orders and names a change. An update's new row may be partial: columns that Postgres
did not resend (unchanged TOAST values) are named in `missing` and absent from
`new`. Its old row is `OldRow.FULL` under `REPLICA IDENTITY FULL`, `OldRow.KEY`
when the key changed, and absent otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from penstock.schema import Lsn, TableSchema

Row = Mapping[str, Any]


class OldRow(StrEnum):
    ABSENT = "absent"
    KEY = "key"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class _Event:
    start_lsn: Lsn
    commit_lsn: Lsn
    tx_ordinal: int


@dataclass(frozen=True, slots=True)
class Begin(_Event):
    xid: int
    commit_ts: datetime


@dataclass(frozen=True, slots=True)
class Commit(_Event):
    xid: int
    commit_ts: datetime


@dataclass(frozen=True, slots=True)
class Relation(_Event):
    """Comes first in the batch that begins a schema version."""

    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Insert(_Event):
    new: Row


@dataclass(frozen=True, slots=True)
class Update(_Event):
    new: Row
    old: Row | None
    old_kind: OldRow = OldRow.ABSENT
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete(_Event):
    old: Row
    old_kind: OldRow = OldRow.KEY


@dataclass(frozen=True, slots=True)
class Truncate(_Event):
    pass


Event = Begin | Commit | Relation | Insert | Update | Delete | Truncate
