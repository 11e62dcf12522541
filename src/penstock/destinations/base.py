"""The destination contract. Write one class from this file alone.

A destination gets tables whole (`write_table_rows`, once per copy) and then
their changes (`write_events`, batch after batch). Calls for one table never
overlap and come in order; calls for different tables come from several threads
at once. An exception sets that one table aside, with the exception's text as the
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

from penstock.postgres.casts import keeps_values
from penstock.schema import ColumnSchema, DdlNote, Lsn, ReplicaIdentity, TableSchema
from penstock.spark.changes import ChangeBatch, TableRows
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


class SchemaChangeAction(Enum):
    CONTINUE = "continue"
    RESYNC = "resync"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """From `old` to `new`; `new.version` is the position at which it begins.

    A column is the same while its number is, whatever it is called. One that was
    dropped and added again under its old name is another, and counts as both.
    """

    old: TableSchema
    new: TableSchema

    @property
    def note(self) -> DdlNote | None:
        """What the source said of it; None where only its outcome is known.

        Without it, rows that were there may hold anything in columns that are new or
        have another type: only Postgres can tell.
        """
        return self.new.note

    @property
    def added(self) -> tuple[ColumnSchema, ...]:
        return _only_in(self.new, self.old)

    @property
    def dropped(self) -> tuple[ColumnSchema, ...]:
        return _only_in(self.old, self.new)

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        return tuple((old.name, new.name) for old, new in self._kept if old.name != new.name)

    @property
    def retyped(self) -> tuple[tuple[ColumnSchema, ColumnSchema], ...]:
        return tuple((old, new) for old, new in self._kept if old.type != new.type)

    @property
    def nullability(self) -> tuple[ColumnSchema, ...]:
        """The columns, as they are now, that have become NOT NULL or are so no longer."""
        return tuple(new for old, new in self._kept if old.nullable != new.nullable)

    @property
    def only_nullability(self) -> bool:
        """Whether that is all: rows look as they did, and hold what they held."""
        return bool(self.nullability) and self.new.same_shape(self.old) and not self.rewrites

    @property
    def _kept(self) -> list[tuple[ColumnSchema, ColumnSchema]]:
        before = {_identity(column): column for column in self.old.columns}
        return [
            (before[_identity(column)], column)
            for column in self.new.columns
            if _identity(column) in before
        ]

    @property
    def rewrites(self) -> bool:
        """Whether the source said that rows which were there may hold other values since:
        in columns that are new, beside what it said of those, or in others. Or whether the
        key may have told other rows apart than it does."""
        note = self.note
        if note is None:
            return self._guesses_key
        return (
            note.rewritten
            # Rows that are cast are written anew, with the defaults of new columns in them,
            # and Postgres keeps no word of those.
            or (note.recast and bool(self.added))
            or not all(keeps_values(old, new, recast=note.recast) for old, new in self._kept)
        )

    @property
    def _guesses_key(self) -> bool:
        """Whether the key is the catalog's, for the stream does not tell it under FULL: it may be
        younger than changes that the stream has under it, of rows that it does not tell apart."""
        keys = [[_identity(column) for column in table.key] for table in (self.old, self.new)]
        full = self.new.identity is ReplicaIdentity.FULL
        return full and bool(self.new.key) and keys[0] != keys[1]

    @property
    def additive(self) -> bool:
        """Whether everything is still there, under its name."""
        gone = self.dropped or self.renamed or self.retyped
        return self.old.name == self.new.name and not gone

    def __str__(self) -> str:
        parts = [f"dropped {column.name}" for column in self.dropped]
        parts += [f"added {column.name}" for column in self.added]
        parts += [f"renamed {old} to {new}" for old, new in self.renamed]
        parts += [f"{column.name} has another type" for _, column in self.retyped]
        if self.old.name != self.new.name:
            parts.append(f"renamed to {self.new.name}")
        if not parts and self.note and self.rewrites:
            parts.append("its rows were rewritten")
        if not parts and not self.only_nullability:
            parts.append("key, replica identity or order of columns")
        parts += [f"{c.name} {'may be' if c.nullable else 'is not'} NULL" for c in self.nullability]
        return ", ".join(parts)


def _identity(column: ColumnSchema) -> tuple[int, str]:
    """Its number; where that is unknown (negative), it is the same only under its name."""
    return (column.number, "") if column.number > 0 else (column.number, column.name)


def _only_in(one: TableSchema, other: TableSchema) -> tuple[ColumnSchema, ...]:
    known = set(map(_identity, other.columns))
    return tuple(column for column in one.columns if _identity(column) not in known)


class Destination(ABC):
    """Where tables go."""

    name: ClassVar[str]

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
