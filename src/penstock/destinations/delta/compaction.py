"""Small files put together now and then.

Every batch leaves a file or two, and marks rows in older ones as deleted. Delta's
OPTIMIZE rewrites small files, and files with many such rows, as few large ones,
in a commit of its own that changes no row. Files that have grown to a fair size
are left alone, so the work stays in proportion to what has changed.

An append never minds a compaction beside it. A merge does, and then either of the
two has to go again: the batch does so by itself, the compaction waits for the next
time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.destinations.delta import statements
from penstock.destinations.delta.mark import Mark
from penstock.schema import TableId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY_COMMITS = 40
"""After so many batches it is worth a look at the files."""

_MANY_FILES = 20
_MIB = 1024 * 1024
_SMALL_FILE = 32 * _MIB
_LARGE_FILE = 256 * _MIB
_OPTIMIZE = "spark.databricks.delta.optimize."


@dataclass
class Backlog:
    """How many batches each table has taken since it was last looked at."""

    _commits: dict[TableId, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, table_id: TableId) -> None:
        with self._lock:
            # What was there before this process is not known: have a look soon.
            self._commits[table_id] = self._commits.get(table_id, MANY_COMMITS - 1) + 1

    def take(self, table_id: TableId) -> bool:
        """Whether a look is due; counting starts again if so."""
        with self._lock:
            due = self._commits.get(table_id, 0) >= MANY_COMMITS
            if due:
                self._commits[table_id] = 0
            return due


def compact(session: SparkSession, path: str, mark: Mark | None) -> bool:
    """Put small files together, if there are many; whether there were."""
    detail = session.sql(f"DESCRIBE DETAIL {statements.table_at(path)}")
    found = detail.select("numFiles", "sizeInBytes").head()
    if found is None or found[0] < _MANY_FILES or found[1] / found[0] > _SMALL_FILE:
        return False
    session.conf.set(f"{_OPTIMIZE}minFileSize", str(_SMALL_FILE))
    session.conf.set(f"{_OPTIMIZE}maxFileSize", str(_LARGE_FILE))
    if mark is not None:
        mark.carry().sign(session)
    session.sql(f"OPTIMIZE {statements.table_at(path)}")
    return True
