"""Tables as Delta tables, each change exactly once.

Every commit bears a mark (`mark`): the copy that the table stems from and the end
of the batch. So after a crash the table itself tells where to go on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel

from penstock.changes.batches import ChangeBatch, TableRows
from penstock.destinations.base import Destination, DestinationContext, WriteStatus
from penstock.destinations.delta import history, location, statements
from penstock.destinations.delta.alteration import plan
from penstock.destinations.delta.compaction import Backlog, compact
from penstock.destinations.delta.durability import Durability
from penstock.destinations.delta.failures import explained, is_conflict, reaching
from penstock.destinations.delta.first_commit import has_local_times, write_first_commit
from penstock.destinations.delta.log import user_metadata
from penstock.destinations.delta.mark import Mark, newest
from penstock.destinations.delta.mirror import Mirror
from penstock.destinations.delta.ownership import (
    Places,
    require_not_begun,
    require_own,
    require_replaceable,
    require_same_copy,
)
from penstock.destinations.delta.properties import (
    can_have_vectors,
    needs_mapping,
    properties_of,
    require_distinct_names,
)
from penstock.destinations.delta.session import SPARK_SETTINGS
from penstock.destinations.schema_change import SchemaChange, SchemaChangeAction
from penstock.directories import require_writable
from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.findings import Finding
from penstock.schema import Lsn, TableId, TableName, TableSchema
from penstock.spark.session import own_session
from penstock.states import copy_id_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("penstock.destinations.delta")

Naming = Callable[[TableName], str]

_ATTEMPTS = 4
_LOOK_SECONDS = 60.0
_RECENT_COMMITS = 20
"""How many commits are looked at for a mark before all of them are."""

_DEFAULTS = "spark.databricks.delta.properties.defaults."


class DeltaDestination(Destination):
    """Keeps each table at `root/<schema>/<table>`.

    `mode="mirror"` keeps tables equal to the source; `"history"` appends every
    change with its envelope. `naming` says where below the root a table goes.
    `spark` is the session to work in; without it, the pipeline's own.
    """

    name: ClassVar[str] = "delta"

    class Settings(BaseModel):
        """What a configuration file gives a `DeltaDestination`."""

        root: str = "./lake"
        mode: Literal["mirror", "history"] = "mirror"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        spark: SparkSession | None = None,
        catalog: str | None = None,
        mode: Literal["mirror", "history"] = "mirror",
        naming: Naming = location.table_path,
    ) -> None:
        if catalog is not None:
            raise PenstockError(
                ErrorKind.CONFIG,
                "DeltaDestination cannot register tables in a catalog yet",
                hint=f"leave `catalog` out and read the tables by path, under {os.fspath(root)}",
            )
        if mode not in ("mirror", "history"):
            raise PenstockError(
                ErrorKind.CONFIG,
                f"DeltaDestination has no mode {mode!r}",
                hint='use mode="mirror" or mode="history"',
            )
        self.root = location.absolute(root)
        self.mode = mode
        self.spark = spark
        self._naming = naming
        self._started: DestinationContext | None = None
        self._backlog = Backlog()
        self._found: dict[str, float] = {}
        self._places = Places()
        self._durability = Durability()

    def spark_settings(self) -> dict[str, str]:
        return dict(SPARK_SETTINGS)

    def preflight(self) -> list[Finding]:
        if (directory := location.local(self.root)) is not None:
            kind = ErrorKind.DESTINATION_REJECTED
            require_writable(directory, "lake directory", "destination.root", kind)
        return []

    def path(self, name: TableName) -> str:
        """Where a table is."""
        return f"{self.root}/{self._naming(name)}"

    def table_identifier(self, table: TableSchema) -> str:
        return self.path(table.name)

    def startup(self, context: DestinationContext) -> None:
        location.require_writable(self.root)
        self._started = context
        if location.local(self.root) is None:
            with reaching(self.root):
                self._exists(self.root)

    @property
    def _context(self) -> DestinationContext:
        if self._started is None:
            raise PenstockError(
                ErrorKind.INVALID_STATE,
                "DeltaDestination is not started",
                hint="call startup() first, as a pipeline does",
            )
        return self._started

    def _new_session(self) -> SparkSession:
        return own_session(self.spark or self._context.spark)

    @contextmanager
    def _writing(self, name: TableName, path: str, position: Lsn | None = None) -> Iterator[None]:
        with explained(name, path, position), self._durability.writing(path):
            yield

    # Copies.

    def drop_table_for_copy(self, table: TableSchema, previous: TableSchema | None) -> None:  # noqa: ARG002
        """Keeps the table, which stays readable until the copy replaces it in one commit."""
        path = self.path(table.name)
        self._places.take(table, path)
        directory = location.local(path)
        if directory is not None:
            with explained(table.name, str(directory)):
                location.clear_litter(directory, table.name, self._context.pipeline_id)

    def write_table_rows(self, table: TableSchema, rows: TableRows) -> WriteStatus:
        path = self.path(table.name)
        require_distinct_names(table)
        mark = Mark(self._context.pipeline_id, table.id, rows.id, table_name=str(table.name))
        with self._writing(table.name, path):
            if self.mode == "history":
                self._add_copy(table, rows, path, mark)
            elif not self._take_over(table, rows, path, mark):
                self._replace(table, rows, path, mark)
        self._places.leave(path)
        return WriteStatus.DURABLE

    def _add_copy(self, table: TableSchema, rows: TableRows, path: str, mark: Mark) -> None:
        """Append a copy to the history; begin one where there is none."""
        exists = self._exists(path)
        newest = self._mark(path) if exists else None
        if exists and newest is None:
            require_replaceable(table.name, path, newest, mark)
        require_own(table, path, newest, mark, self._copy_of)
        place = history.copy_place(path, rows, newest, mark)
        if place.behind is not None:
            self._fit_history(table, path)
        elif newest is not None:
            self._prepare(table, rows.session, path)
        self._set_defaults(table, rows.session)
        history.write_copy(rows, path, place)

    def _take_over(self, table: TableSchema, rows: TableRows, path: str, mark: Mark) -> bool:
        """Make the copied files a table where there is none yet; rewrites nothing."""
        from penstock.spark.frames import spark_schema

        directory = location.local(path)
        if (
            directory is None
            or needs_mapping(table)
            or location.has_commits(directory)
            or not location.can_move(rows.files, directory)
        ):
            return False
        files = location.move_in(rows, directory, mark.pipeline_id)
        failpoint("files_moved")
        schema, properties = spark_schema(table).json(), properties_of(table)
        write_first_commit(directory, files, table, schema, mark, properties)
        location.forget_note(directory)
        return True

    def _replace(self, table: TableSchema, rows: TableRows, path: str, mark: Mark) -> None:
        """Replace the table, rows and columns, in one commit; make it where there is none."""
        if self._exists(path):
            newest = self._mark(path)
            require_replaceable(table.name, path, newest, mark)
            require_own(table, path, newest, mark, self._copy_of)
            self._prepare(table, rows.session, path)
        mark.sign(rows.session)
        self._set_defaults(table, rows.session)
        writer = rows.dataframe.write.format("delta").mode("overwrite")
        writer.option("overwriteSchema", "true").save(path)

    def _copy_of(self, table_id: TableId) -> str | None:
        return copy_id_of(self._context.store.get_table_state(table_id))

    def _set_defaults(self, table: TableSchema, session: SparkSession) -> None:
        for name, value in properties_of(table).items():
            session.conf.set(_DEFAULTS + name.removeprefix("delta."), value)

    def _prepare(
        self,
        table: TableSchema,
        session: SparkSession,
        path: str,
        *,
        mapping: bool = False,
        widening: bool = False,
    ) -> None:
        """Let an existing table have what its new columns ask for; changes no row."""
        at = statements.table_at(path)
        found = session.sql(f"DESCRIBE DETAIL {at}").select("tableFeatures", "properties").head()
        if found is None:
            return
        features, properties = found
        wanted = {}
        if has_local_times(table) and "timestampNtz" not in features:
            wanted["delta.feature.timestampNtz"] = "supported"
        if properties.get("delta.columnMapping.mode", "none") == "none" and (
            mapping or needs_mapping(table)
        ):
            wanted["delta.columnMapping.mode"] = "name"
        if widening and properties.get("delta.enableTypeWidening") != "true":
            wanted["delta.enableTypeWidening"] = "true"
        if not can_have_vectors(table) and properties.get("delta.enableDeletionVectors") == "true":
            wanted["delta.enableDeletionVectors"] = "false"
        if wanted:
            settings = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
            session.sql(f"ALTER TABLE {at} SET TBLPROPERTIES ({settings})")

    # Changes.

    def write_events(self, batch: ChangeBatch) -> WriteStatus:
        table = batch.table
        path = self.path(table.name)
        with self._writing(table.name, path, batch.end):
            whose = self._context.pipeline_id, table.id, batch.copy_id
            mark = Mark(*whose, batch.end, table_name=str(table.name))
            self._require_table(table, path, mark, batch.start)
            mark.sign(batch.session)
            _repeated(table, lambda: self._write_batch(batch, path))
        self._backlog.add(table.id)
        return WriteStatus.DURABLE

    def change_schema(self, change: SchemaChange) -> SchemaChangeAction:
        """A mirror follows in place where it can. Else it is copied again, and readers see
        the old table until the new one is there.

        A history is never replaced: what it holds cannot be had again. It takes
        new columns into `before` and `after`, and keeps those that are gone; their
        types may widen, and nothing else.
        """
        kept = self.mode == "history" or not change.rewrites
        if change.new.same_columns(change.old) and kept:
            return SchemaChangeAction.CONTINUE
        if self.mode == "mirror":
            return self._alter(change)
        path = self.path(change.new.name)
        if self.path(change.old.name) != path:
            return SchemaChangeAction.ERROR
        with self._writing(change.new.name, path, change.new.version):
            if self._exists(path):
                _repeated(change.new, lambda: self._fit_history(change.new, path))
        return SchemaChangeAction.CONTINUE

    def _fit_history(self, table: TableSchema, path: str) -> None:
        """Let a history take rows of this table: in wider columns, where that is enough."""
        session = self._new_session()
        wider = history.require_fit(session, table, path)
        self._prepare(table, session, path, widening=bool(wider))
        if wider:
            if (mark := self._mark(path)) is not None:
                mark.carry().sign(session)
            history.widen(session, path, wider)

    def _alter(self, change: SchemaChange) -> SchemaChangeAction:
        table, path = change.new, self.path(change.new.name)
        alteration = plan(change)
        if alteration is None or not self._exists(path):
            return SchemaChangeAction.RESYNC
        require_distinct_names(table)

        def alter() -> None:
            session = self._new_session()
            self._prepare(
                table,
                session,
                path,
                mapping=alteration.maps_columns,
                widening=alteration.widens_types,
            )
            if (mark := self._mark(path)) is not None:
                mark.carry().sign(session)
            alteration.apply(session, path)

        with self._writing(table.name, path, table.version):
            _repeated(table, alter)
        return SchemaChangeAction.CONTINUE

    def rows_changed(self, table: TableSchema, what: str) -> SchemaChangeAction:  # noqa: ARG002
        mirror = self.mode == "mirror"
        return SchemaChangeAction.RESYNC if mirror else SchemaChangeAction.CONTINUE

    def _require_table(self, table: TableSchema, path: str, mark: Mark, start: Lsn) -> None:
        """Refuse to go on without the copy: an append would make a table of its own, or add to
        somebody else's. And where a part of the batch is there already."""
        # Looking is quick on a local filesystem only.
        found, now = self._found.get(mark.copy_id), time.monotonic()
        if location.local(path) is None and found is not None and now < found + _LOOK_SECONDS:
            return
        if not self._exists(path):
            raise PenstockError(
                ErrorKind.DESTINATION_REJECTED,
                f"the table is gone: nothing is at {path}",
                hint="copy it again: `penstock resync` it",
                table=table.name,
            )
        newest = self._mark(path)
        require_same_copy(table.name, path, newest, mark)
        require_not_begun(table.name, path, newest, mark, start)
        self._found[mark.copy_id] = now

    def _write_batch(self, batch: ChangeBatch, path: str) -> None:
        if self.mode == "mirror":
            Mirror(path, batch).apply()
        else:
            writer = batch.changes.write.format("delta").mode("append")
            writer.option("mergeSchema", "true").save(path)

    def position(self, table: TableSchema, copy_id: str) -> Lsn | None:
        path = self.path(table.name)
        if not self._exists(path):
            return None
        with self._writing(table.name, path):  # what is told is what the cursor will stand on
            mark = self._mark(path)
        if mark is None or mark.table_id != table.id or mark.copy_id != copy_id:
            return None
        if mark.position is None and mark.went_on:
            return mark.copied_behind  # what comes before is there from before the copy
        return mark.position

    def maintain(self, table: TableSchema) -> None:
        """Put small files together when many have gathered."""
        if not self._backlog.take(table.id):
            return
        path = self.path(table.name)
        with self._writing(table.name, path):
            try:
                compact(self._new_session(), path, self._mark(path))
            except Exception as error:
                if not is_conflict(error):
                    raise
                logger.debug("compaction gave way to a batch", extra={"table": str(table.name)})

    def _exists(self, path: str) -> bool:
        directory = location.local(path)
        if directory is not None:
            return location.has_commits(directory)
        from delta.tables import DeltaTable

        return bool(DeltaTable.isDeltaTable(self._new_session(), path))

    def _mark(self, path: str) -> Mark | None:
        directory = location.local(path)
        if directory is not None:
            return newest(user_metadata(directory))
        history = f"DESCRIBE HISTORY {statements.table_at(path)}"
        session = self._new_session()
        mark = None
        for query in (f"{history} LIMIT {_RECENT_COMMITS}", history):
            rows = session.sql(query).select("userMetadata").collect()
            mark = newest(row[0] for row in rows)
            if mark and not mark.carried:
                break
        return mark


def _repeated(table: TableSchema, write: Callable[[], None]) -> None:
    """Write, and again when somebody else's commit came in between.

    Compaction, ours or the user's. Nothing was committed then, and the fence would not
    let a batch in twice.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            write()
            return
        except Exception as error:
            if attempt == _ATTEMPTS or not is_conflict(error):
                raise
            logger.debug("repeated after a conflict", extra={"table": str(table.name)})
