"""Whose a Delta table is.

A path may be taken: by another pipeline with the same root, by a table whose name leads to
the same place, or by a table that somebody made himself. Two that write to one table would
each take the other's rows for their own, and neither would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from penstock.destinations.delta.mark import Mark
from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn, TableId, TableName, TableSchema

CopyOf = Callable[[TableId], str | None]
"""The copy that a table of the pipeline stems from."""

ONE_DRIVER = "stop the other one: one pipeline id may run only once at a time"


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


class Places:
    """Where this pipeline's tables go. `naming`, or a file system that does not tell upper from
    lower case, may send two of them to one place.

    One that has come to another's name, because that was dropped or renamed, is no second one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._taken: dict[str, TableSchema] = {}

    def take(self, table: TableSchema, path: str) -> None:
        """Note that a copy of the table begins at `path`; raise if another's does."""
        with self._lock:
            if (other := self._taken.get(path)) is not None:
                _require_one(table, path, other.id, str(other.name))
            self._taken = {p: t for p, t in self._taken.items() if t.id != table.id}
            self._taken[path] = table

    def leave(self, path: str) -> None:
        """The copy is there: from now on its mark tells whose the place is."""
        with self._lock:
            self._taken.pop(path, None)


def require_own(
    table: TableSchema, path: str, newest: Mark | None, mark: Mark, copy_of: CopyOf
) -> None:
    """Raise where what is at `path` is another table's, which goes on."""
    if newest is None or newest.table_name is None or newest.pipeline_id != mark.pipeline_id:
        return
    if copy_of(newest.table_id) == newest.copy_id:
        _require_one(table, path, newest.table_id, newest.table_name)


def _require_one(table: TableSchema, path: str, other_id: TableId, other_name: str) -> None:
    if other_id == table.id or other_name == str(table.name):
        return
    raise PenstockError(
        ErrorKind.DESTINATION_REJECTED,
        f"{path} is where {other_name} goes, too",
        hint="let `naming` (or the file system) tell their names apart, then `penstock retry` the"
        " table",
        table=table.name,
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


def require_not_begun(
    name: TableName, path: str, newest: Mark | None, mark: Mark, start: Lsn
) -> None:
    """Raise where a part of the batch from `start` to `mark` is there, and the rest is not.

    It was committed by another driver. The fence refuses what is there as a whole, and what
    is committed at the same time; it does not see that its version and ours overlap.
    """
    if newest is None or newest.position is None or mark.position is None:
        return
    if start < newest.position < mark.position:
        raise PenstockError(
            ErrorKind.DESTINATION_REJECTED,
            f"a part of the batch is at {path} already: another driver writes the same table",
            hint=ONE_DRIVER,
            table=name,
            position=mark.position,
        )
