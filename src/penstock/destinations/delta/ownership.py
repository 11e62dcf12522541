"""Whose a Delta table is.

A path may be taken: by another pipeline with the same root, by a table whose name leads to
the same place, or by a table that somebody made himself. Two that write to one table would
each take the other's rows for their own, and neither would notice.
"""

from __future__ import annotations

from penstock.destinations.delta.mark import Mark
from penstock.errors import ErrorKind, PenstockError
from penstock.schema import TableName


def require_replaceable(name: TableName, path: str, newest: Mark | None, mark: Mark) -> None:
    """Raise where the table at `path` is not one that the copy of `mark` may replace."""
    if newest is None:
        whose = "a Delta table without a mark of ours"
    elif newest.pipeline_id != mark.pipeline_id:
        whose = f"a table of pipeline {newest.pipeline_id}"
    else:
        return
    raise PenstockError(
        ErrorKind.DESTINATION_REJECTED,
        f"there is {whose} at {path}, and the copy would replace it",
        hint="give this pipeline a root of its own; or, if nobody needs that table, remove its"
        " directory and `penstock retry` this one",
        table=name,
    )


def require_same_copy(name: TableName, path: str, newest: Mark | None, mark: Mark) -> None:
    """Raise where another than the copy of `mark` has come to `path` since."""
    # Delta forgets old commits, and with them our marks, if others go on committing.
    if newest is None or newest.copy_id == mark.copy_id:
        return
    if newest.pipeline_id != mark.pipeline_id:
        who = f"pipeline {newest.pipeline_id}"
    elif newest.table_id != mark.table_id:
        who = f"another table of this pipeline, with oid {newest.table_id},"
    else:
        who = "another copy of this table"
    raise PenstockError(
        ErrorKind.DESTINATION_REJECTED,
        f"{who} has replaced what was at {path}",
        hint="give each its own place (root, or naming), then `penstock resync` the table",
        table=name,
    )
