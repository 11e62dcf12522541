"""One table's way through the journal.

An applier takes the run of flushes behind its cursor, hands it to the
destination as one batch, and moves the cursor once the batch is durable there.
Between the two a crash is possible; it is healed at the next start, when the
destination tells the end of the last batch that it really has (`open`).

Two positions: `cursor` is durable, in the store; `read_to` runs ahead of it
while the destination has accepted batches that are not safe yet.

Nothing here catches errors. The caller makes the table errored and makes a new
applier for the next attempt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.changes.batches import ChangeBatch
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.failpoints import failpoint
from penstock.journal.manifest import Defect
from penstock.pipeline.batches import BatchSize, Gathering, Run, next_run
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.deliveries import Deliveries, require_answer
from penstock.pipeline.overlap import may_matter, precedes
from penstock.pipeline.status import Meter
from penstock.postgres.connection import connect
from penstock.postgres.preflight.identity import sends_old_rows
from penstock.schema import ZERO_LSN, Lsn, TableSchema
from penstock.states import FinishedCopy, Ready, SyncDone, VisibleXids
from penstock.stores.base import DestinationTableMetadata, MetadataStatus, Worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("penstock.pipeline.applier")

Copied = FinishedCopy | SyncDone | Ready

_MAX_OPEN_DELIVERIES = 16

RESYNC_HINT = "copy the table again: `penstock resync` it"


class ResyncWanted(Exception):
    """The destination wants the table copied again, because of a change."""

    def __init__(self, change: SchemaChange) -> None:
        super().__init__(str(change))
        self.change = change


class Applier:
    """Applies one copied table's changes. Called by one thread at a time."""

    def __init__(
        self,
        context: PipelineContext,
        schema: TableSchema,
        copied: Copied,
        session: SparkSession,
        applied: Meter,
        wake: Callable[[], None],
        publishes_all: Callable[[], bool] = lambda: True,
    ) -> None:
        self._context = context
        self._copy = copied if isinstance(copied, FinishedCopy) else None
        self._copy_id = copied.copy_id
        self._session = session
        self._size = BatchSize(context.config.batch.max_bytes)
        self._gathering = Gathering()
        self._deliveries = Deliveries(wake)
        self.schema = schema
        self.adopted_at = time.monotonic()
        self.cursor = self.read_to = ZERO_LSN
        self._applied = applied
        self._publishes_all = publishes_all
        self.batches = self.nulled = 0
        self._begun: Lsn | None = None

    def open(self) -> None:
        """Find the place to go on from. Call first, once."""
        store, journal = self._context.store, self._context.journal
        table = self.schema
        cursor = store.get_replication_progress(self._worker) or ZERO_LSN
        # A batch that was committed there but not recorded here, because we died
        # in between, must not be sent again: an append would double its rows.
        there = self._context.destination.position(table, self._copy_id)
        if there is not None and there > cursor:
            if there > journal.end:
                raise PenstockError(
                    ErrorKind.JOURNAL,
                    f"the destination has changes up to {there}, but the journal ends at"
                    f" {journal.end}: it was lost or replaced",
                    hint=RESYNC_HINT,
                    table=table.name,
                )
            cursor = store.upsert_replication_progress(self._worker, there)
            logger.info("cursor healed", extra=self._extra(position=str(cursor)))
        if not journal.reaches_back_to(table.id, cursor):
            raise PenstockError(
                ErrorKind.JOURNAL,
                f"the journal does not reach back to {cursor} any more",
                hint=RESYNC_HINT,
                table=table.name,
                position=cursor,
            )
        self.cursor = self.read_to = cursor

    @property
    def _worker(self) -> Worker:
        return Worker.apply(self.schema.id)

    # What there is to do.

    @property
    def pending(self) -> bool:
        return bool(self._context.journal.pending(self.schema.id, self.read_to))

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything now."""
        return (
            self._batch_due()
            or self._deliveries.settleable
            or self._wants_flush()
            or self.passed_barrier() is not None
        )

    def _batch_due(self) -> bool:
        journal = self._context.journal
        pending = journal.pending(self.schema.id, self.read_to)
        source = self._context.source.last_seen
        waits = self._gathering.goes_on(pending, journal.end, source, self._size.bytes)
        return bool(pending) and not waits

    @property
    def has_open_deliveries(self) -> bool:
        return len(self._deliveries) > 0

    def passed_barrier(self) -> Lsn | None:
        """Where the table equals the source, once that is behind its copy's barrier."""
        if self._copy is None or len(self._deliveries):
            return None
        # The end is read before the pending flushes: a manifest that comes in
        # between is then pending, never passed.
        end = self._context.journal.end
        position = self.cursor if self.pending else max(end, self.cursor)
        return position if position >= self._copy.barrier else None

    def past_barrier(self, position: Lsn) -> None:
        """Drop the filter; `position` is durable in the store from here on."""
        self._move_cursor(position)
        self.read_to = max(self.read_to, position)
        self._copy = None

    # Doing it.

    def step(self) -> None:
        """Do the next thing: settle what has become safe, and hand over one batch."""
        self._settle(self._deliveries.settle())
        if len(self._deliveries) >= _MAX_OPEN_DELIVERIES:
            self.flush()
        run = next_run(self._context.journal, self.schema.id, self.read_to, self._size.bytes)
        if run is None:
            # Idle is the latest moment at which accepted batches become safe.
            if self._wants_flush():
                self.flush()
            return
        self._gathering.ended()
        self._apply(run)
        self._size.after(run)
        self._settle(self._deliveries.settle())

    def flush(self) -> None:
        """Make everything accepted safe, and move the cursor over it."""
        if len(self._deliveries):
            self._context.destination.flush(self.schema)
            self._settle(self._deliveries.flushed())

    def abandon(self) -> None:
        """After a failure: wait until nothing that was accepted can still be written."""
        self._deliveries.abandon()

    def _wants_flush(self) -> bool:
        return self._deliveries.waits_for_flush and not self.pending

    def _apply(self, run: Run) -> None:
        visible = self._copy.visible if self._copy and run.start < self._copy.barrier else None
        if not run.begins_version:
            # Postgres goes on to send partitions under their root's old name. A name that the
            # table has got back, it has in the catalog too, which the watch sees.
            run = replace(run, schema=replace(run.schema, name=self.schema.name))
        files = tuple(self._context.journal.file(segment) for segment in run.segments)
        if not run.schema.same_shape(self.schema) or self._announces(run, visible):
            if visible is not None and precedes(run.schema, files, visible):
                self._pass(run)
                return
            self._change_schema(run.schema)
        else:
            # The catalog's word for NOT NULL may be younger than the rows, or older than the copy.
            run = replace(run, schema=run.schema.nullable_as(self.schema))
        nulled = self._count_nulled(run, visible)
        self._adopt_version(run.schema)
        if not run.segments:
            self._pass(run)
            return
        batch = ChangeBatch(
            self._context.config.id,
            self._copy_id,
            run.schema,
            run.start,
            run.end,
            run.segments,
            files,
            lambda: self._session,
            visible,
            begins_version=self._begun != run.schema.version,
            publishes_all=(publishes_all := self._publishes_all()),
            copied_all=publishes_all and self._is_copied,
        )
        result = self._context.destination.write_events(batch)
        self._deliveries.add(run.end, require_answer(result, run.schema))
        self._begun = run.schema.version
        self.read_to = run.end
        self.batches += 1
        self.nulled += nulled
        self._applied.add(batch.counts.total)
        logger.debug(
            "batch handed over",
            extra=self._extra(start=str(run.start), end=str(run.end), changes=batch.counts.total),
        )

    @property
    def _is_copied(self) -> bool:
        return self._context.config.table_sync_copy.includes(str(self.schema.name))

    def _announces(self, run: Run, visible: VisibleXids | None) -> bool:
        """Whether the source says of this run that rows which the destination has hold other
        values from here on, or that columns are NOT NULL or no longer so."""
        note = run.schema.note
        if note is None or not run.begins_version:
            return False
        seen = visible is not None and visible.contains(note.xid)
        change = SchemaChange(self.schema, run.schema)
        return not seen and (change.rewrites or bool(change.nullability))

    def _pass(self, run: Run) -> None:
        """Go on behind a run that has nothing, or nothing more, for the destination."""
        self.flush()
        self.read_to = run.end
        self._move_cursor(run.end)

    def _count_nulled(self, run: Run, visible: VisibleXids | None) -> int:
        """How many values are NULL only because their type cannot hold them.

        They are refused, unless `on_unrepresentable` is `null`; those in a key always are:
        rows that NULL names would be taken for one.
        """
        strict = self._context.config.on_unrepresentable == "error"
        key = {column.name for column in run.schema.key}
        count = 0
        for segment in run.segments:
            for defect in segment.defects:
                if may_matter(defect, self._context.journal.file(segment), visible):
                    if defect.unsent:
                        self._require_old_rows(run, defect)
                        continue
                    if strict or defect.column in key:
                        raise self._unrepresentable(run, defect, in_key=defect.column in key)
                    count += defect.count
        return count

    def _require_old_rows(self, run: Run, defect: Defect) -> None:
        config = self._context.config
        with connect(config.pg_connection, f"{config.id}_watch") as session:
            if not sends_old_rows(session, config.publication_name):
                return
        raise PenstockError(
            ErrorKind.SOURCE_SCHEMA,
            f"the replica identity of partition {defect.row} does not cover the key of the table"
            " that it is published under: its updates and deletes cannot be matched to rows",
            hint="run the statement that `penstock doctor` has for it, then `penstock resync` the"
            " table",
            table=self.schema.name,
            position=run.end,
        )

    def _unrepresentable(self, run: Run, defect: Defect, *, in_key: bool) -> PenstockError:
        instead = "" if in_key else ", or set on_unrepresentable: null"
        kind = run.schema.column(defect.column).type
        cannot, other = "is no UTF-8 (the database is SQL_ASCII)", ""
        if not kind.is_text:
            cannot = f"{kind.kind} cannot hold"
            other = ", or carry the column as a string (column_types:"
            other += f" {{{self.schema.name}: {{{defect.column}: string}}}})"
        return PenstockError(
            ErrorKind.DATA_UNREPRESENTABLE,
            f"{self.schema.name}: column {defect.column} of the row {shorten(defect.row)} has the"
            f" value {shorten(defect.value)}, which {cannot}",
            hint=f"mend the value in Postgres and resync the table{other}{instead}",
            table=self.schema.name,
            position=run.end,
        )

    def follow(self, published: TableSchema) -> None:
        """Take in a change of the table that no row has shown yet."""
        if not self.pending:
            # Two of them may find the journal at the same place.
            version = max(self._context.journal.end, Lsn(self.schema.version.value + 1))
            self._change_schema(replace(published, version=version))

    def _change_schema(self, new: TableSchema) -> None:
        change = SchemaChange(self.schema, new)
        self._require_allowed(change)
        # What was accepted belongs to the old shape: it must be safe, and behind
        # the cursor, before the shape changes, or a crash would replay it into
        # the new one.
        self.flush()
        self._record_version(new, MetadataStatus.APPLYING)
        action = self._context.destination.change_schema(change)
        # Killed here, the destination has the new shape and the store does not know: the
        # same change comes again.
        failpoint("schema_changed")
        logger.info("table changed", extra=self._extra(change=str(change), action=action.value))
        match action:
            case SchemaChangeAction.CONTINUE:
                self._record_version(new, MetadataStatus.APPLIED)
                self._adopt(new)
            case SchemaChangeAction.RESYNC:
                raise ResyncWanted(change)
            case SchemaChangeAction.ERROR:
                raise self._refusal(change, "which the destination does not follow", RESYNC_HINT)

    def _require_allowed(self, change: SchemaChange) -> None:
        policy = self._context.config.schema_change_policy
        if change.only_nullability:
            return  # which no reader sees
        if policy == "freeze" or (policy == "additive" and not change.additive):
            raise self._refusal(
                change,
                f"which schema_change_policy: {policy} does not allow",
                "change it back, if it shall stay as it was, then `penstock resync` the table,"
                " which copies it as it is",
            )

    def _refusal(self, change: SchemaChange, why: str, hint: str) -> PenstockError:
        return PenstockError(
            ErrorKind.SOURCE_SCHEMA,
            f"the table changed ({change}), {why}",
            hint=hint,
            table=self.schema.name,
            position=change.new.version,
        )

    def _adopt(self, schema: TableSchema) -> None:
        self.schema = schema
        self.adopted_at = time.monotonic()

    def _adopt_version(self, new: TableSchema) -> None:
        """Note a later version of the same shape; there is nothing to change for it."""
        if new.version > self.schema.version:
            self._record_version(new, MetadataStatus.APPLIED)
            self._adopt(new)

    def _record_version(self, schema: TableSchema, status: MetadataStatus) -> None:
        store = self._context.store
        destination_id = self._context.destination.table_identifier(schema)
        mask = (True,) * len(schema.columns)
        if status is MetadataStatus.APPLIED:
            # Not before: a change that fails comes again, maybe as a later version, which
            # would take this one for what the destination has.
            store.store_table_schema(schema)
        store.store_destination_table_metadata(
            schema.id, DestinationTableMetadata(destination_id, schema.version, status, mask)
        )
        if status is MetadataStatus.APPLIED:
            # Last: a change that is still to be repeated begins with the version before it.
            store.prune_table_schemas({schema.id: schema.version})

    def _settle(self, durable: Lsn | None) -> None:
        if durable is not None:
            # Killed here, the destination has the batch and the store does not
            # know: `open` asks the destination for its position.
            failpoint("batch_committed")
            self._move_cursor(durable)

    def _move_cursor(self, position: Lsn) -> None:
        if position > self.cursor:
            self.cursor = self._context.store.upsert_replication_progress(self._worker, position)
            failpoint("cursor_moved")

    def _extra(self, **fields: object) -> dict[str, object]:
        return {"table": str(self.schema.name), **fields}
