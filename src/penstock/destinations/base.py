"""The destination contract. Write one class from this file alone.

A destination gets each table whole (`drop_table_for_copy`, then `write_table_rows`) and then
its changes (`position` once, then `write_events` batch after batch; `change_schema` before the
first batch of a new shape).

**Threads.** `spark_settings`, `preflight`, `startup` and `shutdown` are called by one thread.
All other methods are called by worker threads: never two at once for one table, but several at
once for different tables.

**Answers.** A write method says how safe the data is. Any other answer is an error.

- `WriteStatus.DURABLE`: the data survives a crash, and so does everything accepted before it.
- `WriteStatus.ACCEPTED`: taken, not yet safe. The table's cursor waits for a later `DURABLE`,
  a completed Future, or `flush`.
- a `concurrent.futures.Future`: accepted now; durable, or failed, when it completes.

**Repetition.** After a crash or a failure, calls are repeated from the last durable point, and
batches may come with other boundaries. A destination that commits a batch together with its end
reports that end in `position` and gets each change once. Any other makes its writes idempotent.

**Errors.** An exception makes this one table errored; other tables continue. A `PenstockError`
whose `kind.retryable` is false waits for an operator. Any other exception is retried with a
growing delay, and waits for an operator after `table_error_retry_max_attempts`.

**Hanging.** There is no deadline: a method that does not return occupies a worker thread, and
`shutdown` waits for it. Use timeouts of your own.
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

    def table_identifier(self, table: TableSchema) -> str:
        """The name of the table's object at the destination, as the store keeps it."""
        return str(table.name)

    @abstractmethod
    def drop_table_for_copy(self, table: TableSchema, previous: TableSchema | None) -> None:
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

    def position(self, table: TableSchema, copy_id: str) -> Lsn | None:  # noqa: ARG002
        """The end of the last batch that is really there since the table's current copy.

        None when there is none, or when the destination cannot tell. Asked at
        start and after a failure, before the first batch.
        """
        return None

    def change_schema(self, change: SchemaChange) -> SchemaChangeAction:
        """Follow a change of the table. Called before the first batch of a new schema version;
        may be repeated, also after it succeeded.

        The default continues where the rows that are there stay right without any action: for
        NOT NULL, and for new columns that are announced to be NULL in them. It has the table
        copied again otherwise.
        """
        harmless = change.only_nullability or change.adds_only_nulls
        return SchemaChangeAction.CONTINUE if harmless else SchemaChangeAction.RESYNC

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
