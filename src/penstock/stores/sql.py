"""The store in a database: SQLite by default, Postgres where several machines look on.

A `SqlStore` is a cache in front of tables. Reads answer from the cache. A write
goes to the tables in one transaction and, once that is durable, to the cache:
killed between the two, the process loses a cache that it would lose anyway. The
storage lock is held over both, so that the cache sees writes in the order in
which the database committed them.

Other processes may read the same storage (`penstock status`) and even write it
(`penstock retry`); `load_*` brings the cache up to date with them. Because of
them every rule that depends on what is stored (the next place in a history,
progress that never goes back) is decided by the database, not by the cache.

A connection that breaks during COMMIT leaves open whether the write happened; it
is reported as failed, and every write may be repeated.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, SecretStr
from sqlalchemy import Connection, Table, and_, bindparam, case, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock.config import Secret, SecretText
from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import Init, StoredState, state_from_json, state_to_json
from penstock.stores.base import (
    DeleteTable,
    DestinationTableMetadata,
    PrepareForCopy,
    ResetForResync,
    TableStateOperation,
    Worker,
    WorkerKind,
)
from penstock.stores.database import Database
from penstock.stores.records import CachedStore, Records, nothing_to_roll_back, require_storable
from penstock.stores.tables import (
    DESTINATION_METADATA,
    MIGRATIONS,
    PIPELINES,
    PROGRESS,
    TABLE_SCHEMAS,
    TABLE_STATES,
    migrate,
    require_known,
    stored_version,
)


class SqlStore(CachedStore):
    """Keeps everything in the database at `url`, for each pipeline apart.

    `url` is `sqlite:///path` or `postgresql://...`. With `create=False`, `open`
    neither creates nor migrates anything: for a process that only reads.
    """

    class Settings(BaseModel):
        """What a configuration file gives a `SqlStore`."""

        url: SecretText = Secret("sqlite:///penstock.db")

    def __init__(self, url: str | SecretStr, *, create: bool = True) -> None:
        super().__init__()
        self._url = url if isinstance(url, SecretStr) else SecretStr(url)
        self._database = Database(self._url.get_secret_value())
        self._create = create
        self._storage = threading.RLock()

    def __repr__(self) -> str:
        return f"SqlStore({self._database.place!r})"

    def for_reading(self) -> SqlStore:
        """Return a store over the same database that creates and migrates nothing."""
        return SqlStore(self._url, create=False)

    def preflight(self) -> None:
        """Raise if the database cannot be read, or its file not be created."""
        with self._storage:
            try:
                if self._database.exists():
                    with self._database.read("the version") as connection:
                        stored_version(connection)
                else:
                    self._database.require_creatable()
            finally:
                self._database.close()

    def open(self, pipeline_id: str) -> None:
        with self._storage:
            self._require_free(pipeline_id)
            if self._pipeline_id == pipeline_id:
                return
            try:
                self._make_ready()
                self._pipeline_id = pipeline_id
                if self._create:
                    # A predecessor that was killed may have a commit under way in
                    # the server. It holds the pipeline's row, so wait for that row.
                    with self._write("the pipeline"):
                        pass
                self.load_table_states()
                self.load_table_schemas()
                self.load_destination_tables_metadata()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        with self._storage:
            with self._lock:
                self._pipeline_id = None
                self._records = Records()
            self._database.close()

    def _make_ready(self) -> None:
        place = self._database.place
        version = 0
        if self._create or self._database.exists():
            with self._database.read("the version") as connection:
                version = stored_version(connection)
        require_known(version, place)
        if version == len(MIGRATIONS):
            return
        if not self._create:
            raise PenstockError(
                ErrorKind.STORE,
                f"there is no store at {place}"
                if version == 0
                else f"the store {place} has version {version}, not yet {len(MIGRATIONS)}",
                hint="start the pipeline; it makes the store ready",
            )
        with self._database.write("the tables") as connection:
            migrate(connection, place)

    # Schema versions

    def get_table_schema(self, table_id: TableId, snapshot_id: Lsn) -> TableSchema | None:
        found = super().get_table_schema(table_id, snapshot_id)
        if found is None:
            # Another process may have stored it since the cache was filled.
            self.load_table_schemas()
            found = super().get_table_schema(table_id, snapshot_id)
        return found

    def load_table_schemas(self) -> int:
        with self._storage:
            with self._database.read("schema versions") as connection:
                rows = connection.execute(
                    select(TABLE_SCHEMAS.c.schema).where(self._own(TABLE_SCHEMAS))
                ).scalars()
                with self._database.decoding("a schema version", self.pipeline_id):
                    schemas = [TableSchema.from_json(json.loads(row)) for row in rows]
            with self._lock:
                self._records.schemas = {}
                self._records.put_schemas(schemas)
            return len(schemas)

    def store_table_schema(self, schema: TableSchema) -> None:
        with self._storage:
            with self._write(f"a schema version of {schema.name}") as connection:
                self._put(
                    connection,
                    TABLE_SCHEMAS,
                    {"table_oid": schema.id.oid, "version": schema.version},
                    {"schema": json.dumps(schema.to_json())},
                )
            with self._lock:
                self._records.put_schemas([schema])

    def prune_table_schemas(self, retentions: Mapping[TableId, Lsn]) -> int:
        columns = TABLE_SCHEMAS.c
        removed = 0
        with self._storage:
            with self._write("pruned schema versions") as connection:
                for table_id, boundary in retentions.items():
                    own = self._own(TABLE_SCHEMAS, table_id)
                    in_force = connection.execute(
                        select(func.max(columns.version)).where(own, columns.version <= boundary)
                    ).scalar()
                    if in_force is not None:
                        removed += connection.execute(
                            delete(TABLE_SCHEMAS).where(own, columns.version < in_force)
                        ).rowcount
            with self._lock:
                self._records.prune_schemas(retentions)
        return removed

    # States, with progress

    def load_table_states(self) -> int:
        columns = TABLE_STATES.c
        newest = (
            select(columns.table_oid, func.max(columns.sequence).label("sequence"))
            .where(self._own(TABLE_STATES))
            .group_by(columns.table_oid)
            .subquery()
        )
        current = select(columns.table_oid, columns.state).join(
            newest,
            and_(
                self._own(TABLE_STATES),
                columns.table_oid == newest.c.table_oid,
                columns.sequence == newest.c.sequence,
            ),
        )
        with self._storage:
            with self._database.read("table states") as connection:
                with self._database.decoding("a table state", self.pipeline_id):
                    states = {
                        TableId(oid): state_from_json(json.loads(state))
                        for oid, state in connection.execute(current)
                    }
                progress = {
                    Worker(WorkerKind(row.worker), TableId(row.table_oid)): row.lsn
                    for row in connection.execute(select(PROGRESS).where(self._own(PROGRESS)))
                }
            with self._lock:
                self._records.states = states
                self._records.progress = progress
            return len(states)

    def update_table_states(self, updates: Mapping[TableId, StoredState]) -> None:
        require_storable(updates.values())
        with self._storage:
            with self._write("table states") as connection:
                self._append_states(connection, updates)
            with self._lock:
                self._records.states.update(updates)

    def _append_states(
        self, connection: Connection, updates: Mapping[TableId, StoredState]
    ) -> None:
        if not updates:
            return
        columns = TABLE_STATES.c
        next_sequence = (
            select(func.coalesce(func.max(columns.sequence), 0) + 1)
            .where(self._own(TABLE_STATES), columns.table_oid == bindparam("of_table"))
            .scalar_subquery()
        )
        connection.execute(
            insert(TABLE_STATES).values(pipeline_id=self.pipeline_id, sequence=next_sequence),
            [
                {
                    "of_table": table_id.oid,
                    "table_oid": table_id.oid,
                    "state": json.dumps(state_to_json(state)),
                }
                for table_id, state in updates.items()
            ],
        )

    def rollback_table_state(self, table_id: TableId) -> StoredState:
        own = self._own(TABLE_STATES, table_id)
        columns = TABLE_STATES.c
        with self._storage:
            with self._write("a table state") as connection:
                newest = connection.execute(
                    select(columns.sequence, columns.state)
                    .where(own)
                    .order_by(columns.sequence.desc())
                    .limit(2)
                ).all()
                if len(newest) < 2:
                    raise nothing_to_roll_back(table_id)
                with self._database.decoding("a table state", self.pipeline_id):
                    state = state_from_json(json.loads(newest[1].state))
                connection.execute(
                    delete(TABLE_STATES).where(own, columns.sequence == newest[0].sequence)
                )
            with self._lock:
                self._records.states[table_id] = state
        return state

    def upsert_replication_progress(self, worker: Worker, lsn: Lsn) -> Lsn:
        with self._storage:
            with self._write("replication progress") as connection:
                statement = self._insert(PROGRESS).values(
                    pipeline_id=self.pipeline_id,
                    worker=str(worker.kind),
                    table_oid=worker.table_id.oid,
                    lsn=lsn,
                )
                ahead = statement.excluded.lsn
                stored: Lsn = connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=list(PROGRESS.primary_key),
                        set_={
                            "lsn": case((ahead > PROGRESS.c.lsn, ahead), else_=PROGRESS.c.lsn),
                        },
                    ).returning(PROGRESS.c.lsn)
                ).scalar_one()
            with self._lock:
                self._records.progress[worker] = stored
        return stored

    def delete_replication_progress(self, worker: Worker) -> None:
        with self._storage:
            with self._write("replication progress") as connection:
                connection.execute(
                    delete(PROGRESS).where(
                        self._own(PROGRESS, worker.table_id), PROGRESS.c.worker == str(worker.kind)
                    )
                )
            with self._lock:
                self._records.progress.pop(worker, None)

    # Destination metadata

    def load_destination_tables_metadata(self) -> int:
        columns = DESTINATION_METADATA.c
        with self._storage:
            with self._database.read("destination metadata") as connection:
                rows = connection.execute(
                    select(columns.table_oid, columns.metadata).where(
                        self._own(DESTINATION_METADATA)
                    )
                )
                with self._database.decoding("destination metadata", self.pipeline_id):
                    metadata = {
                        TableId(oid): DestinationTableMetadata.from_json(json.loads(data))
                        for oid, data in rows
                    }
            with self._lock:
                self._records.metadata = metadata
            return len(metadata)

    def store_destination_table_metadata(
        self, table_id: TableId, metadata: DestinationTableMetadata
    ) -> None:
        with self._storage:
            with self._write("destination metadata") as connection:
                self._put(
                    connection,
                    DESTINATION_METADATA,
                    {"table_oid": table_id.oid},
                    {"metadata": json.dumps(metadata.to_json())},
                )
            with self._lock:
                self._records.metadata[table_id] = metadata

    # Lifecycle

    def apply_table_state_operation(self, operation: TableStateOperation) -> None:
        with self._storage:
            with self._write("a table's lifecycle") as connection:
                match operation:
                    case PrepareForCopy(table_id):
                        self._forget(connection, table_id, _OF_A_COPY)
                    case DeleteTable(table_id):
                        self._forget(connection, table_id, (*_OF_A_COPY, TABLE_STATES))
                    case ResetForResync():
                        oids = connection.execute(
                            select(TABLE_STATES.c.table_oid)
                            .where(self._own(TABLE_STATES))
                            .distinct()
                        ).scalars()
                        self._append_states(connection, {TableId(oid): Init() for oid in oids})
                        connection.execute(
                            delete(PROGRESS).where(
                                self._own(PROGRESS), PROGRESS.c.worker == str(WorkerKind.APPLY)
                            )
                        )
            with self._lock:
                self._records.apply(operation)

    def _forget(self, connection: Connection, table_id: TableId, tables: tuple[Table, ...]) -> None:
        for table in tables:
            connection.execute(delete(table).where(self._own(table, table_id)))

    # What the statements share

    @contextmanager
    def _write(self, what: str) -> Iterator[Connection]:
        """A transaction of this pipeline, alone among all processes that write for it."""
        pipeline_id = self.pipeline_id
        with self._database.write(what) as connection:
            # On Postgres the row's lock is what makes writers follow each other;
            # an SQLite transaction has the whole file to itself already.
            row = self._insert(PIPELINES).values(pipeline_id=pipeline_id)
            connection.execute(row.on_conflict_do_nothing())
            connection.execute(
                select(PIPELINES.c.pipeline_id).where(self._own(PIPELINES)).with_for_update()
            )
            yield connection

    def _own(self, table: Table, table_id: TableId | None = None) -> Any:
        """This pipeline's rows, or those of one of its tables."""
        mine = table.c.pipeline_id == self.pipeline_id
        return mine if table_id is None else and_(mine, table.c.table_oid == table_id.oid)

    def _insert(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """An INSERT that knows ON CONFLICT, which the dialects spell alike."""
        if self._database.is_postgres:
            return postgresql.insert(table)
        return sqlite.insert(table)

    def _put(
        self, connection: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]
    ) -> None:
        """Insert a row, or replace the one with this key."""
        statement = self._insert(table).values(pipeline_id=self.pipeline_id, **key, **values)
        connection.execute(
            statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)
        )


_OF_A_COPY = (DESTINATION_METADATA, TABLE_SCHEMAS, PROGRESS)
