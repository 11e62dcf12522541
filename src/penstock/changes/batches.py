"""What a destination is handed: a copied table, or a batch of changes.

Both are thin values over Parquet files. Nothing is read until a DataFrame is
asked for, so a destination that moves the files or wants only the counts costs
no Spark job. Each belongs to a Spark session of its table's own, in which a
destination may set session confs without disturbing other tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.events import Event
from penstock.journal.manifest import ChangeCounts, SegmentRef
from penstock.schema import Lsn, TableSchema
from penstock.states import VisibleXids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.net_effect import NetEffect

UNSENT_VALUE = "penstock: Postgres did not send all values of a new row:"
"""How the error begins of a row that came into the table's row filter by an update.

It comes as an insert, and its large values are neither there nor at the destination."""

UNSENT_HINT = (
    "copy the table again: `penstock resync` it; with REPLICA IDENTITY FULL the rows that an"
    " update brings into the row filter come whole"
)


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
    session: SparkSession
    position: Lsn | None = None

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
    builds on. `exact` is false where the publication leaves inserts, updates, deletes or
    truncates out: keys may then be there that should not. `complete` is false there too, and
    where the table was not copied: rows may be missing.
    """

    pipeline_id: str
    copy_id: str
    table: TableSchema
    start: Lsn
    end: Lsn
    segments: tuple[SegmentRef, ...]
    files: tuple[str, ...]
    session: SparkSession
    visible: VisibleXids | None = None
    begins_version: bool = False
    exact: bool = True
    complete: bool = True

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
        """The changes with the envelope of CONTRACT §4, in no particular order."""
        from penstock.spark.frames import read_changes

        return read_changes(self.session, self.table, self.files, self.visible)

    def net_effect(self) -> NetEffect:
        """One row per key: what the batch does to a mirror."""
        from penstock.spark.net_effect import net_effect

        return net_effect(self)

    def events(self) -> Iterator[Event]:
        """The changes row by row, in order."""
        from penstock.spark.frames import iterate_events

        return iterate_events(self)
