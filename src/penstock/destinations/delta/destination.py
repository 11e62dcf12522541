"""Tables as Delta tables, each change exactly once.

Every commit bears a mark (`mark`): the copy that the table stems from and the end
of the batch. So after a crash the table itself tells where to go on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from penstock.destinations.base import Destination, DestinationContext, WriteStatus
from penstock.destinations.delta import location, statements
from penstock.destinations.delta.failures import explained, is_conflict
from penstock.destinations.delta.mark import Mark, newest
from penstock.destinations.delta.mirror import Mirror
from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.schema import Lsn, TableName, TableSchema
from penstock.spark.changes import ChangeBatch, TableRows
from penstock.states import copy_id_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("penstock.destinations.delta")

Naming = Callable[[TableName], str]

_ATTEMPTS = 4
_RECENT_COMMITS = 20
"""How many commits are looked at for a mark before all of them are."""

_DEFAULTS = "spark.databricks.delta.properties.defaults."
# Delta writes a commit a second for a busy table and lists its log for each. A
# month of them, the usual retention, would make that slow.
_PROPERTIES = {"enableDeletionVectors": "true", "logRetentionDuration": "interval 1 day"}
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


class DeltaDestination(Destination):
    """Keeps each table at `root/<schema>/<table>`.

    `mode="mirror"` keeps tables equal to the source; `"history"` appends every
    change with its envelope. `naming` says where below the root a table goes.
    `spark` is the session to work in; without it, the pipeline's own.
    """

    name: ClassVar[str] = "delta"

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
        self._lock = threading.Lock()

    def path(self, name: TableName) -> str:
        """Where a table is."""
        return f"{self.root}/{self._naming(name)}"

    def startup(self, context: DestinationContext) -> None:
        location.require_writable(self.root)
        self._started = context

    @property
    def _context(self) -> DestinationContext:
        if self._started is None:
            raise PenstockError(ErrorKind.INVALID_STATE, "DeltaDestination is not started")
        return self._started

    def _new_session(self) -> SparkSession:
        return (self.spark or self._context.spark).newSession()

    # Copies.

    def drop_table_for_copy(self, table: TableSchema) -> None:
        """Keeps the table, which stays readable until the copy replaces it in one commit."""
        directory = location.local(self.path(table.name))
        if directory is not None:
            with explained(table.name, str(directory)):
                location.clear_litter(directory, table.name)

    def write_table_rows(self, table: TableSchema, rows: TableRows) -> WriteStatus:
        path = self.path(table.name)
        require_distinct_names(table)
        with explained(table.name, path):
            Mark(self._context.pipeline_id, table.id, rows.id).sign(rows.session)
            self._set_properties(rows.session, table)
            if not self._take_over(table, rows, path):
                self._replace(table, rows, path)
        return WriteStatus.DURABLE

    def _take_over(self, table: TableSchema, rows: TableRows, path: str) -> bool:
        """Make the copied files a table where they are not one yet; rewrites nothing."""
        directory = location.local(path)
        if (
            directory is None
            or self.mode != "mirror"
            or not rows.files
            or needs_mapping(table)
            or location.has_commits(directory)
            or not location.can_move(rows.files, directory)
        ):
            return False
        location.move_in(rows.files, directory, rows.id)
        failpoint("files_moved")
        rows.session.sql(f"CONVERT TO DELTA parquet.{statements.quoted(path)} NO STATISTICS")
        location.forget_note(directory)
        return True

    def _replace(self, table: TableSchema, rows: TableRows, path: str) -> None:
        """Replace the table, rows and columns, in one commit; make it where there is none."""
        frame = rows.dataframe
        if self.mode == "history":
            frame = _as_history(table, frame)
        writer = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.save(path)

    def _set_properties(self, session: SparkSession, table: TableSchema) -> None:
        for name, value in _PROPERTIES.items():
            session.conf.set(_DEFAULTS + name, value)
        mapping = "name" if needs_mapping(table) else "none"
        session.conf.set(_DEFAULTS + "columnMapping.mode", mapping)

    # Changes.

    def write_events(self, batch: ChangeBatch) -> WriteStatus:
        table = batch.table
        path = self.path(table.name)
        with explained(table.name, path, batch.end):
            Mark(self._context.pipeline_id, table.id, batch.copy_id, batch.end).sign(batch.session)
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    self._write_batch(batch, path)
                    break
                except Exception as error:
                    # Compaction, ours or the user's, came in between. Nothing was
                    # committed, and the fence would not let it in twice.
                    if attempt == _ATTEMPTS or not is_conflict(error):
                        raise
                    logger.debug(
                        "batch repeated after a conflict", extra={"table": str(table.name)}
                    )
        return WriteStatus.DURABLE

    def _write_batch(self, batch: ChangeBatch, path: str) -> None:
        if self.mode == "mirror":
            Mirror(path, batch).apply()
        else:
            batch.changes.write.format("delta").mode("append").save(path)

    def position(self, table: TableSchema) -> Lsn | None:
        copy_id = copy_id_of(self._context.store.get_table_state(table.id))
        path = self.path(table.name)
        if copy_id is None or not self._exists(path):
            return None
        with explained(table.name, path):
            mark = self._mark(path)
        if mark is None or mark.table_id != table.id or mark.copy_id != copy_id:
            return None
        return mark.position

    def _exists(self, path: str) -> bool:
        directory = location.local(path)
        if directory is not None:
            return location.has_commits(directory)
        from delta.tables import DeltaTable

        return bool(DeltaTable.isDeltaTable(self._new_session(), path))

    def _mark(self, path: str) -> Mark | None:
        history = f"DESCRIBE HISTORY {statements.table_at(path)}"
        session = self._new_session()
        mark = None
        for query in (f"{history} LIMIT {_RECENT_COMMITS}", history):
            rows = session.sql(query).select("userMetadata").collect()
            mark = newest(row[0] for row in rows)
            if mark and not mark.carried:
                break
        return mark


def require_distinct_names(table: TableSchema) -> None:
    """Refuse columns that differ in case alone: Delta cannot keep them apart."""
    seen: dict[str, str] = {}
    for column in table.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise PenstockError(
                ErrorKind.DESTINATION_SCHEMA,
                f"columns {other!r} and {column.name!r} differ in case alone, which Delta"
                " does not tell apart",
                hint="leave one out with a column list in the publication, or rename it",
                table=table.name,
            )


def needs_mapping(table: TableSchema) -> bool:
    """Whether a column has a name that Parquet's own names cannot carry in Delta."""
    return any(_NEEDS_MAPPING & set(column.name) for column in table.columns)


def _as_history(table: TableSchema, rows: DataFrame) -> DataFrame:
    """Copied rows as changes: `op` is `r`, for read, before every change there is."""
    from pyspark.sql import functions as F  # noqa: N812

    from penstock.spark.frames import envelope_schema

    given = {
        "op": F.lit("r"),
        "commit_lsn": F.lit(0),
        "tx_ordinal": F.lit(0),
        "after": F.struct("*"),
    }
    return rows.select(
        *[
            given.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in envelope_schema(table).fields
        ]
    )
