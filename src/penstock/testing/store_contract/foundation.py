"""What the parts of the contract share: a store to try, one after a restart, and samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

import pytest

from penstock.schema import (
    STRING,
    ZERO_LSN,
    ColumnSchema,
    Lsn,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)
from penstock.states import (
    MANUAL,
    NO_RETRY,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    RetryPolicy,
    StoredState,
    SyncDone,
    VisibleXids,
)
from penstock.stores.base import DestinationTableMetadata, MetadataStatus, PipelineStore, Worker

MakeStore = Callable[[], PipelineStore]
Restart = Callable[[PipelineStore], PipelineStore]

PIPELINE = "contract"
ORDERS, CUSTOMERS, UNKNOWN = TableId(16_384), TableId(4_294_967_295), TableId(1)
LAST_LSN = Lsn(2**64 - 1)

FINISHED_COPY = FinishedCopy(
    "copy-1", VisibleXids(740, 2**32 + 5, (741, 2**32 + 1)), Lsn.parse("16/B374D848")
)
EVERY_STATE: tuple[StoredState, ...] = (
    Init(),
    DataSync(),
    FINISHED_COPY,
    FinishedCopy("copy-2", VisibleXids(1, 1), ZERO_LSN),
    SyncDone("copy-1", LAST_LSN),
    Ready("copy-1"),
    Errored("a value's text: 'é☃\"\\\n", "mend it", MANUAL, Ready("copy-1"), attempts=3),
    Errored("", "", NO_RETRY, Init()),
    Errored(
        "twice",
        "wait",
        RetryPolicy("timed", datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)),
        Errored("once", "wait", MANUAL, FINISHED_COPY),
    ),
)


def table_schema(table_id: TableId = ORDERS, version: Lsn = ZERO_LSN) -> TableSchema:
    """A version of a table with a composite key, awkward names and nested types."""
    array = ValueType(ValueKind.ARRAY, element=ValueType(ValueKind.DECIMAL, 12, 2), delimiter=";")
    return TableSchema(
        table_id,
        TableName('odd "schema"', "Bestellungen ☃"),
        (
            ColumnSchema("id", 1, ValueType(ValueKind.LONG), 20, nullable=False, key_position=1),
            ColumnSchema("shop", 3, STRING, 1043, 24, "varchar(20)", False, 0),
            ColumnSchema("prices", 4, array, 1231, type_name="numeric(12,2)[]"),
        ),
        ReplicaIdentity.FULL,
        version,
    )


def applied(snapshot_id: Lsn = ZERO_LSN) -> DestinationTableMetadata:
    return DestinationTableMetadata(
        "lake/shop/orders", snapshot_id, MetadataStatus.APPLIED, (True, False, True)
    )


def load_everything(store: PipelineStore) -> None:
    """What a pipeline does at start."""
    store.load_table_states()
    store.load_table_schemas()
    store.load_destination_tables_metadata()


class StoreTests:
    """The stores that a test gets."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Makes closed stores on one storage, empty at the start of each test."""
        raise NotImplementedError("override the fixture make_store")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Iterator[PipelineStore]:
        store = make_store()
        store.open(PIPELINE)
        yield store
        store.close()

    @pytest.fixture
    def restart(self, make_store: MakeStore) -> Iterator[Restart]:
        """Closes a store; gives the one that a restarted process would have."""
        with ExitStack() as opened:

            def restarted(store: PipelineStore) -> PipelineStore:
                store.close()
                store = make_store()
                opened.callback(store.close)
                store.open(PIPELINE)
                load_everything(store)
                return store

            yield restarted

    def now_and_after_restart(
        self, store: PipelineStore, restart: Restart
    ) -> Iterator[PipelineStore]:
        yield store
        yield restart(store)

    def versions(self, store: PipelineStore) -> dict[TableId, list[int]]:
        found: dict[TableId, list[int]] = {}
        for schema in store.get_table_schemas():
            found.setdefault(schema.id, []).append(schema.version.value)
        return {table_id: sorted(versions) for table_id, versions in found.items()}

    def fill(self, store: PipelineStore) -> None:
        """Two tables with a history, a schema version, progress of both workers and metadata."""
        for table_id in (ORDERS, CUSTOMERS):
            store.update_table_state(table_id, Init())
            store.update_table_state(table_id, DataSync())
            store.store_table_schema(table_schema(table_id))
            store.store_destination_table_metadata(table_id, applied())
            store.upsert_replication_progress(Worker.apply(table_id), Lsn(50))
            store.upsert_replication_progress(Worker.table_sync(table_id), Lsn(60))

    def assert_copy(self, store: PipelineStore, table_id: TableId) -> None:
        assert store.get_table_schema(table_id, LAST_LSN) == table_schema(table_id)
        assert store.get_destination_table_metadata(table_id) == applied()
        assert store.get_replication_progress(Worker.apply(table_id)) == Lsn(50)
        assert store.get_replication_progress(Worker.table_sync(table_id)) == Lsn(60)

    def assert_no_copy(self, store: PipelineStore, table_id: TableId) -> None:
        assert store.get_table_schema(table_id, LAST_LSN) is None
        assert store.get_destination_table_metadata(table_id) is None
        assert store.get_replication_progress(Worker.apply(table_id)) is None
        assert store.get_replication_progress(Worker.table_sync(table_id)) is None

    def assert_empty(self, store: PipelineStore) -> None:
        assert store.load_table_states() == 0
        assert store.load_table_schemas() == 0
        assert store.load_destination_tables_metadata() == 0
        assert store.get_table_states() == {}
        assert store.get_table_schemas() == []
        assert store.get_table_state(UNKNOWN) is None
        assert store.get_table_schema(UNKNOWN, LAST_LSN) is None
        assert store.get_replication_progress(Worker.apply(UNKNOWN)) is None
        assert store.get_destination_table_metadata(UNKNOWN) is None
        assert store.get_applied_destination_table_metadata(UNKNOWN) is None
