"""What a destination is handed: a copied table, or a batch of changes.

Both are values over Parquet files, with three readers that show the same data:

- Spark: `dataframe`, `changes`, `net_effect()`. The session belongs to the table, so a destination
  may set session confs without disturbing other tables. It is asked for at the first use.
- Arrow: `arrow()`, record batches that are read directly from the files, without a Spark job.
- rows: `rows()` and `events()`, one at a time, over Arrow, with Python's own values.

Nothing is read before a reader is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.events import Event, Row
from penstock.journal.manifest import ChangeCounts, SegmentRef
from penstock.schema import Lsn, TableSchema
from penstock.states import VisibleXids

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.net_effect import NetEffect

_ROWS_AT_ONCE = 1024
"""Rows that become Python objects at a time, which take many times the room that Arrow's do."""


@dataclass(frozen=True)
class TableRows:
    """A whole copied table. `id` is the copy's id, `files` its Parquet files.

    `position` is where the source was then: no change that the copy shows comes later.
    `files` may be moved by the destination, which then owns them; what is left
    of them is removed after the copy.
    """

    id: str
    table: TableSchema
    files: tuple[str, ...]
    count: int
    spark: Callable[[], SparkSession] = field(repr=False, compare=False)
    position: Lsn | None = None

    @cached_property
    def session(self) -> SparkSession:
        """The table's own Spark session."""
        return self.spark()

    def arrow(self) -> Iterator[RecordBatch]:
        """The rows as Arrow record batches."""
        from penstock.changes.arrow import read_rows

        return read_rows(self.table, self.files)

    def rows(self) -> Iterator[Row]:
        """The rows one at a time, as dictionaries of Python values."""
        from penstock.changes.arrow import read_rows
        from penstock.changes.rows import iterate_rows

        return iterate_rows(self.table, read_rows(self.table, self.files, _ROWS_AT_ONCE))

    @cached_property
    def dataframe(self) -> DataFrame:
        from penstock.spark.frames import read_rows

        return read_rows(self.session, self.table, self.files)


@dataclass(frozen=True)
class ChangeBatch:
    """Changes of one table and one schema version, over whole flushes: `(start, end]`.

    `visible` holds the transactions that the table's copy contains already;
    their changes are left out of everything below (but not of `counts`, which
    stem from the journal's statistics). `copy_id` names the copy that the batch
    builds on.

    `publishes_all` is false where the publication leaves out inserts, updates, deletes or
    truncates: the destination may have keys that the source has not. `copied_all` is false there
    too, and where the table was not copied: the destination may lack rows.
    """

    pipeline_id: str
    copy_id: str
    table: TableSchema
    start: Lsn
    end: Lsn
    segments: tuple[SegmentRef, ...]
    files: tuple[str, ...]
    spark: Callable[[], SparkSession] = field(repr=False, compare=False)
    visible: VisibleXids | None = None
    begins_version: bool = False
    publishes_all: bool = True
    copied_all: bool = True

    @cached_property
    def session(self) -> SparkSession:
        """The table's own Spark session."""
        return self.spark()

    @property
    def id(self) -> str:
        """Names the batch for idempotence."""
        return f"{self.pipeline_id}/{self.table.id}/{self.copy_id}/{self.end}"

    @cached_property
    def counts(self) -> ChangeCounts:
        return sum((segment.counts for segment in self.segments), ChangeCounts())

    @property
    def truncated(self) -> bool:
        """Whether the batch may hold a TRUNCATE (net_effect() knows for sure)."""
        return self.counts.truncates > 0

    @cached_property
    def changes(self) -> DataFrame:
        """The changes with their envelope, in no particular order."""
        from penstock.spark.frames import read_changes

        return read_changes(self.session, self.table, self.files, self.visible)

    def net_effect(self) -> NetEffect:
        """One row per key: what the batch does to a mirror."""
        from penstock.spark.net_effect import net_effect

        return net_effect(self)

    def arrow(self) -> Iterator[RecordBatch]:
        """The changes with their envelope, as Arrow record batches in commit order."""
        from penstock.changes.arrow import read_changes

        return read_changes(self.table, self.files, self.visible)

    def events(self) -> Iterator[Event]:
        """The changes one at a time, in commit order. Raises `UnsentValue` at a row that came
        without values which the destination does not have."""
        from penstock.changes.arrow import read_changes
        from penstock.changes.rows import iterate_events

        batches = read_changes(self.table, self.files, self.visible, _ROWS_AT_ONCE)
        return iterate_events(self.table, batches, begins_version=self.begins_version)
