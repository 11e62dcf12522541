"""The destination contract. Write one class from this file alone.

A destination gets tables whole (`write_table_rows`, once per copy) and then
their changes (`write_events`, batch after batch). Calls for one table never
overlap and come in order; calls for different tables come from several threads
at once. An exception makes that one table errored, with the exception's text as the
reason, and the same call comes again when the table is retried.

What a method returns says how safe the data is:

- `WriteStatus.DURABLE`: it survives a crash, and so does everything accepted
  before. The table's cursor moves.
- `WriteStatus.ACCEPTED`: taken, not yet safe. The cursor waits for a later
  `DURABLE`, or for `flush`.
- a `concurrent.futures.Future`: accepted now, durable or failed when it completes.

A destination that commits a batch together with its end position tells it in
`position` and gets each change exactly once. Any other gets batches at least
once, possibly with other boundaries, and makes its writes idempotent by key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.findings import Finding
from penstock.schema import Lsn, TableSchema
from penstock.stores.base import DestinationStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WriteStatus(Enum):
    DURABLE = "durable"
    ACCEPTED = "accepted"


WriteResult = WriteStatus | Future[None]


@dataclass(frozen=True, slots=True)
class DestinationContext:
    """What surrounds a destination while a pipeline runs."""

    pipeline_id: str
    spark: SparkSession
    store: DestinationStore


class Destination(ABC):
    """Where tables go."""

    name: ClassVar[str]

    def spark_settings(self) -> dict[str, str]:
        """The Spark settings this destination needs: packages, extensions, catalogs.

        Called before `startup`, and only when Penstock builds the session. Settings from the
        configuration win over these.
        """
        return {}

    def preflight(self) -> list[Finding]:
        """What stands in the way of writing here, for `penstock doctor` and before a start.

        Called before `startup`, without a Spark session. Must leave nothing behind. An error
        keeps the pipeline from starting, before it creates its slot.
        """
        return []

    def startup(self, context: DestinationContext) -> None:  # noqa: B027
        """Called once, before anything else."""

    def shutdown(self) -> None:  # noqa: B027
        """Called once, after the last call; not after a crash."""

    @abstractmethod
    def drop_table_for_copy(self, table: TableSchema) -> None:
        """Make ready for a fresh copy. Idempotent.

        Writes accepted earlier for this table must not appear any more. Drop
        the table or, better, keep it readable and let the next
        `write_table_rows` replace it in one step.
        """

    @abstractmethod
    def write_table_rows(self, table: TableSchema, rows: TableRows) -> WriteResult:
        """Take a whole copied table; called for empty tables too, so that the table exists."""

    @abstractmethod
    def write_events(self, batch: ChangeBatch) -> WriteResult:
        """Take one batch of changes of one table."""

    def position(self, table: TableSchema) -> Lsn | None:  # noqa: ARG002
        """The end of the last batch that is really there since the table's current copy.

        None when there is none, or when the destination cannot tell. Asked at
        start and after a failure, before the first batch.
        """
        return None

    def change_schema(self, change: SchemaChange) -> SchemaChangeAction:
        """Called before the first batch of a new schema version; may be repeated.

        `SET NOT NULL` and its like come here too (`change.only_nullability`). A destination
        whose columns may be NULL anyway goes on.
        """
        go_on = change.only_nullability
        return SchemaChangeAction.CONTINUE if go_on else SchemaChangeAction.ERROR

    def rows_changed(self, table: TableSchema, what: str) -> SchemaChangeAction:  # noqa: ARG002
        """Called when rows came or went at the source and no change tells which.

        A partition was detached, say; `what` says it in words. A destination that keeps
        the changes and not the rows goes on.
        """
        return SchemaChangeAction.RESYNC

    def flush(self, table: TableSchema) -> None:  # noqa: B027
        """Return only when everything accepted for this table is safe."""

    def maintain(self, table: TableSchema) -> None:  # noqa: B027
        """Housekeeping (compaction, say) at a quiet moment of this table; may do nothing."""
