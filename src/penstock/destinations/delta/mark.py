"""What a Delta commit says about itself: whose it is, and up to where it goes.

The mark travels in the commit's user metadata, so it is there exactly when the
data is. `position` is the end of the batch that the commit holds; a copy has
none. In a history a copy says instead behind which batch it stands (`copied_behind`), and
whether that batch was one of the same table (`went_on`). A commit of housekeeping carries
the newest mark forward and says so: it may have read that mark before a batch was
committed beside it, so a carried mark counts only where no other is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from penstock.schema import Lsn, TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_FENCE_NAME = "spark.databricks.delta.write.txnAppId"
_FENCE_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True, slots=True)
class Mark:
    """One commit's mark."""

    pipeline_id: str
    table_id: TableId
    copy_id: str
    position: Lsn | None = None
    carried: bool = False
    copied_behind: Lsn | None = None
    went_on: bool = False
    table_name: str | None = None

    def dumps(self) -> str:
        return json.dumps(
            {
                "penstock": {
                    "pipeline": self.pipeline_id,
                    "table": self.table_id.oid,
                    "name": self.table_name,
                    "copy": self.copy_id,
                    "position": str(self.position) if self.position else None,
                    "carried": self.carried,
                    "copied_behind": str(self.copied_behind) if self.copied_behind else None,
                    "went_on": self.went_on,
                }
            }
        )

    @classmethod
    def loads(cls, metadata: str | None) -> Self | None:
        """The mark in a commit's user metadata; None where somebody else wrote that."""
        try:
            data = json.loads(metadata or "null")["penstock"]
            position, behind = data["position"], data.get("copied_behind")
            return cls(
                data["pipeline"],
                TableId(data["table"]),
                data["copy"],
                Lsn.parse(position) if position else None,
                data["carried"],
                Lsn.parse(behind) if behind else None,
                data.get("went_on", False),
                data.get("name"),
            )
        except (ValueError, TypeError, KeyError):
            return None

    def carry(self) -> Mark:
        return replace(self, carried=True)

    def sign(self, session: SparkSession) -> None:
        """Let the next commits of `session` bear this mark, and be fenced by it.

        Delta refuses a commit under a fence that another driver has moved in the
        meantime, and skips one that is not newer. The fence's name has the copy
        in it, because positions may start again from below after a restore.
        """
        session.conf.set(_METADATA, self.dumps())
        if self.position is None or self.carried:
            session.conf.unset(_FENCE_NAME)
            session.conf.unset(_FENCE_VERSION)
        else:
            session.conf.set(
                _FENCE_NAME, f"penstock/{self.pipeline_id}/{self.table_id}/{self.copy_id}"
            )
            session.conf.set(_FENCE_VERSION, str(self.position.value))


def newest(metadata: Iterable[str | None]) -> Mark | None:
    """The mark that counts, of commits from new to old."""
    carried = None
    for mark in map(Mark.loads, metadata):
        if mark and not mark.carried:
            return mark
        carried = carried or mark
    return carried
