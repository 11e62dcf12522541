"""The copy of one table, from a snapshot of the source into the destination.

The order of the durable steps is the whole point. Until the state says
`finished_copy`, every crash leads back to the start of this file, which first
removes whatever the attempt before left: at the destination, in the store and
on disk. From then on no crash copies again. The copied files live under
`copies/` in the journal, named by the copy's id, which begins with the table's
oid, so that leftovers can be told apart.

Postgres is read once. Its snapshot is given back as soon as the files are
there; a destination that fails is offered the same files again.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, retry_if_exception

from penstock.changes.batches import TableRows
from penstock.destinations.base import WriteStatus
from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.journal.files import sync
from penstock.journal.journal import Journal
from penstock.pipeline.context import Interrupted, PipelineContext
from penstock.pipeline.deliveries import require_answer
from penstock.pipeline.failures import failure_of, passes, retry_delay
from penstock.pipeline.status import Meter
from penstock.postgres.catalog import PublishedTable, published_tables
from penstock.postgres.connection import (
    Session,
    cancelled_when,
    connect,
    current_flush_lsn,
    end_of_record,
)
from penstock.postgres.copy import plan_ranges
from penstock.postgres.copy_targets import copy_targets, fingerprint, rewritten
from penstock.postgres.preflight.identity import require_old_rows
from penstock.postgres.snapshot import ExportedSnapshot, Writers
from penstock.publication_drift.terms import Terms
from penstock.schema import Lsn, TableId, TableSchema
from penstock.spark.extract import Extracted, extract
from penstock.states import DataSync, FinishedCopy, StoredState
from penstock.stores.base import (
    DestinationTableMetadata,
    MetadataStatus,
    Worker,
    schema_at_destination,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("penstock.pipeline.copier")

_RANGES_PER_CONNECTION = 4
_FLUSH_POLL = 0.02
_WRITERS_POLL = 0.05
_WRITERS_LOG = 10.0


class TableGone(Exception):
    """The table is not in the publication any more."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What extraction made, and the view of the source it was made in."""

    table: TableSchema
    terms: Terms
    finished: FinishedCopy
    directory: Path
    files: tuple[str, ...]
    rows: int
    nulled: int

    @property
    def complete(self) -> bool:
        return all(Path(file).exists() for file in self.files)


def remove_leftovers(journal: Journal) -> None:
    """Remove the files of copies that died just after they counted, or whose table left.

    When a pipeline starts: no copy runs then.
    """
    shutil.rmtree(journal.copies_directory, ignore_errors=True)


class Copier:
    """Copies one table, once. `enter` stores a state, `keep` the terms that the copy was
    made on; `rows` counts rows as they come. `failures` are those since the last success, and
    grow with each that is borne with here.
    """

    def __init__(
        self,
        context: PipelineContext,
        table: TableSchema,
        session: SparkSession,
        enter: Callable[[StoredState], None],
        keep: Callable[[Terms], None],
        rows: Meter,
        failures: int = 0,
    ) -> None:
        self._context = context
        self._table = table
        self.failures = failures
        self._session = session
        self._enter = enter
        self._keep = keep
        self._rows = rows
        self.nulled = 0

    def copy(self, *, begun: bool = False) -> TableSchema:
        """Copy the table and record it as finished; its schema as it was copied.

        `begun` says that an earlier attempt got as far as `data_sync`.
        """
        context = self._context
        started = time.monotonic()
        previous = schema_at_destination(context.store, self._table.id)
        known = context.store.get_destination_table_metadata(self._table.id) is not None
        self._refuse_to_empty(known=known and not begun)
        with context.retiring:
            # From here on nothing of this table leaves the journal: the snapshot
            # may miss a change that has been received already.
            self._enter(DataSync())
        context.destination.drop_table_for_copy(self._table, previous)
        if known:
            # The store forgets that the destination has the table, which it keeps until the
            # copy is there. If none comes, and the table is left out then, nobody would know.
            note_departure(context.journal, self._table.id)
        context.store.prepare_table_state_for_copy(self._table.id)
        self._remove_leftovers()
        copied = self._extract()
        # Killed here, the copy starts again with a new snapshot; the files are leftovers.
        failpoint("copy_extracted")
        self._write(copied)
        # Killed here, the destination has a table that no state knows: the next
        # copy replaces it.
        failpoint("copy_written")
        self._record(copied)
        shutil.rmtree(copied.directory, ignore_errors=True)
        logger.info(
            "table copied",
            extra={
                "table": str(copied.table.name),
                "rows": copied.rows,
                "nulled": copied.nulled,
                "seconds": round(time.monotonic() - started, 3),
            },
        )
        self.nulled = copied.nulled
        return copied.table

    def _refuse_to_empty(self, *, known: bool) -> None:
        """A table that is left out gets an empty copy, once, to begin with. A second one would
        take the place of all that the destination has, if the table is `known` there."""
        context, table = self._context, self._table
        if context.config.table_sync_copy.includes(str(table.name)):
            return
        if known or has_departed(context.journal, table.id):
            raise PenstockError(
                ErrorKind.SOURCE_CONFIGURATION,
                "the table has to be copied again (its slot or its changes were lost, it left the"
                " publication for a while, or a resync was asked for), and table_sync_copy leaves"
                " it out: it would be emptied",
                hint="let table_sync_copy include the table, start again and `penstock retry` it",
                table=table.name,
            )

    def _remove_leftovers(self) -> None:
        for directory in self._context.journal.copies_directory.glob(f"{self._table.id}-*"):
            shutil.rmtree(directory, ignore_errors=True)

    def _wait_for_writers(self, settled: Terms | None = None) -> Terms:
        """The terms of now, when nobody writes who began to before this. On `settled` ones, who
        did has been waited for."""
        with self._session_of_now() as session:
            published = self._published(session)
            if published.partitioned:
                # Not within the snapshot: it would keep the partitions locked, and somebody
                # who waits to alter one would keep out those who read for the copy.
                require_old_rows(session, self._context.config.publication_name, published.schema)
            terms = published.terms
            if settled is not None and settled.send_the_same(terms):
                return terms
            writers, log_at = Writers(session, self._table), time.monotonic()
            while left := writers.left():
                if time.monotonic() >= log_at:
                    logger.info(
                        "waiting for transactions that write to the table",
                        extra={"table": str(self._table.name), "transactions": left},
                    )
                    log_at = time.monotonic() + _WRITERS_LOG
                self._pause(_WRITERS_POLL)
            return terms

    def _pause(self, seconds: float) -> None:
        if self._context.stopping.wait(seconds):
            raise Interrupted

    def _extract(self) -> Copied:
        terms = self._wait_for_writers()
        while (copied := self._extract_once(terms)) is None:
            logger.info(
                "table was altered, truncated or rewritten while it was copied, copying it again",
                extra={"table": str(self._table.name)},
            )
            self._remove_leftovers()
            self._pause(0)
            terms = self._wait_for_writers(terms)
        return copied

    def _extract_once(self, terms: Terms) -> Copied | None:
        """The copied files; None where the snapshot's rows are not all in them, or where the
        table is published on other `terms` now than when its writers were waited for."""
        config = self._context.config
        copy_id = f"{self._table.id}-{time.time_ns() // 1_000_000:x}-{secrets.token_hex(3)}"
        directory = self._context.journal.copies_directory / copy_id
        directory.mkdir(parents=True)
        with (
            ExportedSnapshot(config.pg_connection, f"{config.id}_snapshot") as snapshot,
            # Sizes, and what the publication says, wait for who has locked the table.
            cancelled_when(self._context.stopping.is_set, snapshot.connection),
        ):
            failpoint("snapshot_taken")
            barrier = end_of_record(snapshot.connection, snapshot.barrier)
            published = self._published(snapshot.connection)
            if not published.terms.send_the_same(terms):
                return None
            before = fingerprint(snapshot.connection, published.schema)
            try:
                read = self._read(snapshot, published, directory)
            except PenstockError:
                if self._fingerprint() == before:
                    raise
                return None
            # Rows are the snapshot's, but whoever reads them goes by the names of now: under
            # a name may be another column since, or another table.
            if rewritten(snapshot.connection, published.schema) or self._fingerprint() != before:
                return None
            self._wait_for_durability(snapshot.connection, barrier)
        finished = FinishedCopy(copy_id, snapshot.visible, barrier)
        return Copied(
            published.schema,
            published.terms,
            finished,
            directory,
            read.files,
            read.rows,
            read.nulled,
        )

    def _fingerprint(self) -> str | None:
        with self._session_of_now() as session:
            return fingerprint(session, self._table)

    @contextmanager
    def _session_of_now(self) -> Iterator[Session]:
        """Outside the snapshot, and not for longer than the pipeline runs."""
        config = self._context.config
        with (
            closing(connect(config.pg_connection, f"{config.id}_copy")) as session,
            cancelled_when(self._context.stopping.is_set, session),
        ):
            yield session

    def _wait_for_durability(self, session: Session, barrier: Lsn) -> None:
        """Until the source itself cannot lose what the snapshot saw.

        Transactions that commit asynchronously are visible before they are on
        disk. If the server crashed then, the copy would have rows that the source
        has not, and the ids of their transactions would be given out again, to
        changes that we would leave out. The snapshot's own session tells: it does
        not survive a crash.
        """
        while current_flush_lsn(session) < barrier:
            self._pause(_FLUSH_POLL)

    def _published(self, session: Session) -> PublishedTable:
        """The table as a session sees it: it may have changed since it was found."""
        config = self._context.config
        found = published_tables(
            session, config.publication_name, config.column_types, self._table.id
        )
        if not found:
            raise TableGone
        if found[0].refusal is not None:
            raise found[0].refusal
        return found[0]

    def _read(
        self, snapshot: ExportedSnapshot, published: PublishedTable, directory: Path
    ) -> Extracted:
        config = self._context.config
        if not config.table_sync_copy.includes(str(published.schema.name)):
            return Extracted((), 0, 0, 0)
        targets = [
            (target.name.quoted, target.blocks)
            for target in copy_targets(snapshot.connection, published.schema)
        ]
        counted = 0

        def count(rows: int) -> None:
            nonlocal counted
            self._rows.add(rows - counted)
            counted = rows

        return extract(
            self._session,
            config.pg_connection,
            published.schema,
            plan_ranges(targets, config.max_copy_connections_per_table * _RANGES_PER_CONNECTION),
            snapshot.id,
            directory,
            on_unrepresentable=config.on_unrepresentable,
            row_filter=published.row_filter,
            connections=config.max_copy_connections_per_table,
            progress=count,
            stop=self._context.stopping,
        )

    def _write(self, copied: Copied) -> None:
        """Hand the files over, again and again while the trouble is of the passing kind."""
        config = self._context.config
        rows = TableRows(
            copied.finished.copy_id,
            copied.table,
            copied.files,
            copied.rows,
            lambda: self._session,
            copied.finished.barrier,
        )
        retrying = Retrying(
            # A destination that failed after it had taken files over cannot be
            # offered them again: then the whole copy is repeated.
            retry=retry_if_exception(lambda error: passes(error) and copied.complete),
            stop=lambda _: self.failures + 1 >= config.table_error_retry_max_attempts,
            wait=lambda _: retry_delay(self.failures + 1, config),
            sleep=self._pause,
            before_sleep=self._note_retry,
            reraise=True,
        )
        for attempt in retrying:
            with attempt:
                answer = self._context.destination.write_table_rows(copied.table, rows)
                match require_answer(answer, copied.table):
                    case Future() as future:
                        future.result()
                    case WriteStatus.ACCEPTED:
                        self._context.destination.flush(copied.table)

    def _note_retry(self, state: RetryCallState) -> None:
        self.failures += 1
        error = state.outcome.exception() if state.outcome else None
        logger.warning(
            "destination did not take the copy, trying again",
            extra={
                "table": str(self._table.name),
                "reason": failure_of(error).loggable if error else None,
                "attempt": self.failures,
            },
        )

    def _record(self, copied: Copied) -> None:
        """Make the copy count. The state comes last: without it the rest is redone."""
        store, table = self._context.store, copied.table
        store.store_table_schema(table)
        store.store_destination_table_metadata(
            table.id,
            DestinationTableMetadata(
                self._context.destination.table_identifier(table),
                table.version,
                MetadataStatus.APPLIED,
                (True,) * len(table.columns),
            ),
        )
        store.upsert_replication_progress(
            Worker.apply(table.id), self._context.journal.first_cursor(table.id)
        )
        self._keep(copied.terms)
        self._enter(copied.finished)
        failpoint("copy_recorded")


def note_departure(journal: Journal, table_id: TableId) -> None:
    """Note, in `<journal>/departed/<oid>`, that the destination keeps a table the store forgets.

    When a table leaves the publication, the store forgets it. If the table comes back, it is
    copied again. But if `table_sync_copy` excludes it, its copy is empty and would replace what
    was streamed before. The same happens when a table that is being copied again is excluded
    before that copy is done. Durable when this returns. Noting it again does no harm.
    """
    directory = journal.root / "departed"
    directory.mkdir(exist_ok=True)
    (directory / str(table_id.oid)).touch()
    sync(directory)


def has_departed(journal: Journal, table_id: TableId) -> bool:
    """Whether the destination has the table from an earlier time in the publication."""
    return (journal.root / "departed" / str(table_id.oid)).exists()
