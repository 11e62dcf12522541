"""A pipeline looked at from outside, by what it has made durable."""

from __future__ import annotations

from collections.abc import Set

from penstock.config import PipelineConfig
from penstock.errors import PenstockError
from penstock.journal.journal import Journal
from penstock.pipeline.receiver_process import ReceiverReport, ReceiverState
from penstock.pipeline.source_watch import source_status
from penstock.pipeline.status import (
    JournalStatus,
    PipelineStatus,
    SourceStatus,
    TableStatus,
    Work,
    position_at,
    shown_state,
    table_lag,
)
from penstock.postgres.catalog import table_names
from penstock.postgres.connection import connect
from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import StoredState, copy_id_of
from penstock.stores.base import PipelineStore, Worker


def read_status(config: PipelineConfig, store: PipelineStore) -> PipelineStatus:
    """The status of a pipeline, whether or not it runs. Opens and closes `store`."""
    journal = Journal(config.journal_path)
    journal.refresh()
    source = _source(config)
    store.open(config.id)
    try:
        store.load_table_states()
        store.load_table_schemas()
        states = store.get_table_states()
        names = _names(store, journal)
        if source.position is not None:  # it could be reached
            names |= _names_at_source(config, states.keys() - names.keys())
        tables = [
            _table(journal, store, table_id, state, names, source.position)
            for table_id, state in states.items()
        ]
    finally:
        store.close()
    state = ReceiverState.UNKNOWN
    if source.slot_active is not None:
        state = ReceiverState.STREAMING if source.slot_active else ReceiverState.STOPPED
    return PipelineStatus(
        config.id,
        source.slot_active,
        ReceiverReport(state),
        source,
        JournalStatus.of(journal),
        tuple(sorted(tables, key=lambda table: table.name)),
    )


def _source(config: PipelineConfig) -> SourceStatus:
    try:
        with connect(config.pg_connection, f"{config.id}_status") as session:
            return source_status(session, config.slot_name)
    except PenstockError as error:
        return SourceStatus(problem=error.message)


def _names(store: PipelineStore, journal: Journal) -> dict[TableId, str]:
    """Names of tables: what the store has, or, for one not copied yet, the journal, which has
    those that were written to."""
    schemas: list[TableSchema] = [*journal.latest_schemas().values(), *store.get_table_schemas()]
    return {schema.id: str(schema.name) for schema in schemas}


def _names_at_source(config: PipelineConfig, unnamed: Set[TableId]) -> dict[TableId, str]:
    """What the source calls tables that nothing of ours has a name of yet, if it tells."""
    if not unnamed:
        return {}
    try:
        with connect(config.pg_connection, f"{config.id}_status") as session:
            return {each: str(name) for each, name in table_names(session, unnamed).items()}
    except PenstockError:
        return {}


def _table(
    journal: Journal,
    store: PipelineStore,
    table_id: TableId,
    state: StoredState,
    names: dict[TableId, str],
    source: Lsn | None,
) -> TableStatus:
    cursor = None
    if copy_id_of(state) is not None:
        cursor = store.get_replication_progress(Worker.apply(table_id))
    position = position_at(journal, table_id, cursor)
    return TableStatus(
        table_id,
        names.get(table_id, f"table {table_id}"),
        shown_state(state),
        cursor,
        position,
        estimated_rows=None,
        work=Work(),
        **table_lag(journal, table_id, position, source),
    )
