"""The behaviour every store must have, as tests that a store's author inherits.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(tmp_path / "store")

`make_store` is all that a subclass gives: a function that makes a new, closed
store object; the objects it makes for one test share one storage, empty at
first. (A store that lives in its object may give the same object each time.)

In the test modules that use it, or their `conftest.py`, before importing it:
`pytest.register_assert_rewrite("penstock.testing.store_contract")`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.errors import ErrorKind, PenstockError
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
    Catchup,
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
from penstock.stores.base import (
    DestinationTableMetadata,
    MetadataStatus,
    PipelineStore,
    Worker,
)

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


class StoreContract:
    """Inherit this, override `make_store`, and every test of the contract runs."""

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

    # A fresh store

    def test_a_new_store_is_empty(self, store: PipelineStore) -> None:
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

    def test_opening_an_open_store_again_for_its_pipeline_keeps_all(
        self, store: PipelineStore
    ) -> None:
        store.update_table_state(ORDERS, Init())
        store.open(PIPELINE)
        store.load_table_states()
        assert store.get_table_state(ORDERS) == Init()

    # Schema versions

    def test_the_newest_version_at_or_before_a_position_is_in_force(
        self, store: PipelineStore
    ) -> None:
        # Positions on both sides of 2^32, so that no text order passes for the real one.
        versions = [Lsn(0xF), Lsn(0x10), Lsn(2**32 + 2), Lsn(0xA_0000_0000)]
        for version in (versions[2], versions[0], versions[3], versions[1]):
            store.store_table_schema(table_schema(ORDERS, version))

        def in_force(position: int) -> Lsn | None:
            schema = store.get_table_schema(ORDERS, Lsn(position))
            return schema.version if schema else None

        assert in_force(0xE) is None
        assert in_force(0xF) == versions[0]
        assert in_force(0x10) == versions[1]
        assert in_force(2**32 + 1) == versions[1]
        assert in_force(2**32 + 2) == versions[2]
        assert in_force(0x9_FFFF_FFFF) == versions[2]
        assert in_force(LAST_LSN.value) == versions[3]
        assert store.get_table_schema(CUSTOMERS, LAST_LSN) is None

    def test_a_schema_version_comes_back_whole(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        schema = table_schema(ORDERS, LAST_LSN)
        store.store_table_schema(schema)
        assert store.get_table_schema(ORDERS, LAST_LSN) == schema
        assert restart(store).get_table_schema(ORDERS, LAST_LSN) == schema

    def test_storing_a_version_again_replaces_it(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        first = table_schema(ORDERS, Lsn(7))
        second = replace(first, columns=first.columns[:1])
        store.store_table_schema(first)
        store.store_table_schema(second)
        assert store.get_table_schemas() == [second]
        assert restart(store).get_table_schemas() == [second]

    def test_every_version_of_every_table_is_listed_and_counted(self, store: PipelineStore) -> None:
        schemas = [
            table_schema(ORDERS),
            table_schema(ORDERS, Lsn(9)),
            table_schema(CUSTOMERS, Lsn(3)),
        ]
        for schema in schemas:
            store.store_table_schema(schema)
        assert store.load_table_schemas() == 3
        assert sorted(store.get_table_schemas(), key=lambda s: (s.id, s.version)) == schemas

    def test_pruning_keeps_the_version_in_force_and_all_later_ones(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        for version in (0, 10, 20, 30):
            store.store_table_schema(table_schema(ORDERS, Lsn(version)))
            store.store_table_schema(table_schema(CUSTOMERS, Lsn(version)))

        assert store.prune_table_schemas({ORDERS: Lsn(25)}) == 2
        assert self.versions(store) == {ORDERS: [20, 30], CUSTOMERS: [0, 10, 20, 30]}
        assert store.prune_table_schemas({ORDERS: Lsn(20), CUSTOMERS: Lsn(10)}) == 1
        assert self.versions(store) == {ORDERS: [20, 30], CUSTOMERS: [10, 20, 30]}
        assert store.get_table_schema(CUSTOMERS, Lsn(9)) is None

        store = restart(store)
        assert self.versions(store) == {ORDERS: [20, 30], CUSTOMERS: [10, 20, 30]}

    def test_pruning_before_the_first_version_removes_nothing(self, store: PipelineStore) -> None:
        store.store_table_schema(table_schema(ORDERS, Lsn(10)))
        assert store.prune_table_schemas({ORDERS: Lsn(9), UNKNOWN: LAST_LSN}) == 0
        assert store.prune_table_schemas({}) == 0
        assert self.versions(store) == {ORDERS: [10]}

    # States

    @pytest.mark.parametrize("state", EVERY_STATE, ids=lambda state: str(state.name))
    def test_a_state_comes_back_with_all_it_carries(
        self, store: PipelineStore, restart: Restart, state: StoredState
    ) -> None:
        store.update_table_state(ORDERS, state)
        assert store.get_table_state(ORDERS) == state
        assert restart(store).get_table_state(ORDERS) == state

    def test_states_of_many_tables_are_set_and_counted_together(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        states: dict[TableId, StoredState] = {ORDERS: FINISHED_COPY, CUSTOMERS: Init()}
        store.update_table_states(states)
        store.update_table_states({})
        assert store.get_table_states() == states
        assert store.load_table_states() == 2
        assert restart(store).get_table_states() == states

    def test_an_update_replaces_only_the_tables_it_names(self, store: PipelineStore) -> None:
        store.update_table_states({ORDERS: Init(), CUSTOMERS: Init()})
        store.update_table_state(ORDERS, DataSync())
        assert store.get_table_states() == {ORDERS: DataSync(), CUSTOMERS: Init()}

    @pytest.mark.parametrize(
        "refused",
        [Catchup(Lsn(1)), Errored("r", "s", MANUAL, Catchup(Lsn(1)))],  # type: ignore[arg-type]
    )
    def test_catchup_is_never_stored_and_an_update_is_all_or_none(
        self, store: PipelineStore, restart: Restart, refused: StoredState
    ) -> None:
        store.update_table_state(CUSTOMERS, Init())
        with pytest.raises(PenstockError) as raised:
            store.update_table_states({ORDERS: Init(), CUSTOMERS: refused, UNKNOWN: Init()})
        assert raised.value.kind is ErrorKind.INVALID_STATE
        assert store.get_table_states() == {CUSTOMERS: Init()}
        assert restart(store).get_table_states() == {CUSTOMERS: Init()}

    def test_what_a_reader_does_to_the_states_it_got_changes_nothing(
        self, store: PipelineStore
    ) -> None:
        store.update_table_state(ORDERS, Init())
        store.get_table_states().clear()
        assert store.get_table_states() == {ORDERS: Init()}

    def test_rollback_steps_back_one_state_at_a_time(self, store: PipelineStore) -> None:
        for state in (Init(), DataSync(), FINISHED_COPY, Ready("copy-1")):
            store.update_table_state(ORDERS, state)
        store.update_table_state(CUSTOMERS, Init())

        assert store.rollback_table_state(ORDERS) == FINISHED_COPY
        assert store.get_table_state(ORDERS) == FINISHED_COPY
        assert store.rollback_table_state(ORDERS) == DataSync()
        store.update_table_state(ORDERS, Ready("copy-2"))
        assert store.rollback_table_state(ORDERS) == DataSync()
        assert store.get_table_states() == {ORDERS: DataSync(), CUSTOMERS: Init()}

    def test_history_outlives_the_process(self, store: PipelineStore, restart: Restart) -> None:
        for state in (Init(), DataSync(), FINISHED_COPY):
            store.update_table_state(ORDERS, state)
        store = restart(store)
        assert store.rollback_table_state(ORDERS) == DataSync()
        store = restart(store)
        assert store.get_table_state(ORDERS) == DataSync()
        assert store.rollback_table_state(ORDERS) == Init()

    def test_the_same_state_again_is_a_step_of_its_own(self, store: PipelineStore) -> None:
        store.update_table_state(ORDERS, Init())
        store.update_table_state(ORDERS, Init())
        assert store.rollback_table_state(ORDERS) == Init()
        with pytest.raises(PenstockError):
            store.rollback_table_state(ORDERS)

    def test_rollback_without_an_earlier_state_is_an_error_that_changes_nothing(
        self, store: PipelineStore
    ) -> None:
        store.update_table_state(ORDERS, Init())
        for table_id in (ORDERS, UNKNOWN):
            with pytest.raises(PenstockError) as raised:
                store.rollback_table_state(table_id)
            assert raised.value.hint
        assert store.get_table_states() == {ORDERS: Init()}

    # Progress

    def test_progress_moves_forward_and_never_back(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        worker = Worker.apply(ORDERS)
        steps = [(0, 0), (0xF, 0xF), (0x10, 0x10), (0xF, 0x10), (0x10, 0x10)]
        steps += [(2**32, 2**32), (2**32 - 1, 2**32), (LAST_LSN.value, LAST_LSN.value)]
        for asked, stored in steps:
            assert store.upsert_replication_progress(worker, Lsn(asked)) == Lsn(stored)
            assert store.get_replication_progress(worker) == Lsn(stored)
        assert restart(store).get_replication_progress(worker) == LAST_LSN

    def test_each_worker_has_its_own_progress(self, store: PipelineStore, restart: Restart) -> None:
        progress = {
            Worker.apply(ORDERS): Lsn(1),
            Worker.table_sync(ORDERS): Lsn(2),
            Worker.apply(CUSTOMERS): Lsn(3),
        }
        for worker, lsn in progress.items():
            store.upsert_replication_progress(worker, lsn)
        for each in self.now_and_after_restart(store, restart):
            assert {
                worker: each.get_replication_progress(worker) for worker in progress
            } == progress

    def test_deleted_progress_begins_anew(self, store: PipelineStore, restart: Restart) -> None:
        apply, sync = Worker.apply(ORDERS), Worker.table_sync(ORDERS)
        store.upsert_replication_progress(apply, Lsn(100))
        store.upsert_replication_progress(sync, Lsn(100))
        store.delete_replication_progress(apply)
        store.delete_replication_progress(apply)
        assert store.get_replication_progress(apply) is None
        assert store.get_replication_progress(sync) == Lsn(100)
        assert store.upsert_replication_progress(apply, Lsn(5)) == Lsn(5)
        assert restart(store).get_replication_progress(apply) == Lsn(5)

    # Destination metadata

    def test_metadata_comes_back_whole_and_is_replaced(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        store.store_destination_table_metadata(ORDERS, applied())
        later = replace(applied(LAST_LSN), column_mask=())
        store.store_destination_table_metadata(ORDERS, later)
        store.store_destination_table_metadata(CUSTOMERS, applied())
        assert store.load_destination_tables_metadata() == 2
        for each in self.now_and_after_restart(store, restart):
            assert each.get_destination_table_metadata(ORDERS) == later
            assert each.get_applied_destination_table_metadata(ORDERS) == later
            assert each.get_destination_table_metadata(CUSTOMERS) == applied()

    def test_metadata_of_a_change_under_way_is_not_taken_for_applied(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        applying = replace(applied(Lsn(9)), status=MetadataStatus.APPLYING)
        store.store_destination_table_metadata(ORDERS, applying)
        store = restart(store)
        assert store.get_destination_table_metadata(ORDERS) == applying
        with pytest.raises(PenstockError) as raised:
            store.get_applied_destination_table_metadata(ORDERS)
        assert raised.value.hint
        store.store_destination_table_metadata(ORDERS, applied(Lsn(9)))
        assert store.get_applied_destination_table_metadata(ORDERS) == applied(Lsn(9))

    # Lifecycle

    def test_preparing_a_copy_deletes_what_the_last_copy_left_and_keeps_the_state(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        self.fill(store)
        store.prepare_table_state_for_copy(ORDERS)
        for each in self.now_and_after_restart(store, restart):
            assert each.get_table_states() == {ORDERS: DataSync(), CUSTOMERS: DataSync()}
            self.assert_no_copy(each, ORDERS)
            self.assert_copy(each, CUSTOMERS)
            store = each
        assert store.rollback_table_state(ORDERS) == Init()  # its history too

    def test_preparing_a_copy_forgets_progress_so_that_it_may_begin_earlier(
        self, store: PipelineStore
    ) -> None:
        self.fill(store)
        store.prepare_table_state_for_copy(ORDERS)
        worker = Worker.apply(ORDERS)
        assert store.upsert_replication_progress(worker, Lsn(1)) == Lsn(1)

    def test_a_reset_sets_all_states_to_init_and_deletes_apply_progress_only(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        self.fill(store)
        store.reset_table_states_for_resync()
        for each in self.now_and_after_restart(store, restart):
            assert each.get_table_states() == {ORDERS: Init(), CUSTOMERS: Init()}
            for table_id in (ORDERS, CUSTOMERS):
                assert each.get_replication_progress(Worker.apply(table_id)) is None
                assert each.get_replication_progress(Worker.table_sync(table_id)) == Lsn(60)
                assert each.get_destination_table_metadata(table_id) == applied()
                assert each.get_table_schema(table_id, LAST_LSN) == table_schema(table_id)
            store = each
        assert store.rollback_table_state(ORDERS) == DataSync()

    def test_deleting_a_table_forgets_everything_of_it_and_nothing_else(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        self.fill(store)
        store.delete_table_state(ORDERS)
        for each in self.now_and_after_restart(store, restart):
            assert each.get_table_states() == {CUSTOMERS: DataSync()}
            self.assert_no_copy(each, ORDERS)
            self.assert_copy(each, CUSTOMERS)
            store = each
        store.update_table_state(ORDERS, Init())
        with pytest.raises(PenstockError):
            store.rollback_table_state(ORDERS)

    def test_lifecycle_operations_on_unknown_tables_and_empty_stores_are_harmless(
        self, store: PipelineStore
    ) -> None:
        store.reset_table_states_for_resync()
        store.prepare_table_state_for_copy(UNKNOWN)
        store.delete_table_state(UNKNOWN)
        assert store.load_table_states() == 0
        self.fill(store)
        store.prepare_table_state_for_copy(UNKNOWN)
        store.delete_table_state(UNKNOWN)
        assert store.load_table_states() == 2

    # Several threads, objects and pipelines

    def test_threads_may_write_and_read_at_once(
        self, store: PipelineStore, restart: Restart
    ) -> None:
        threads, rounds = 8, 10
        start = threading.Barrier(threads)
        shared = Worker.apply(UNKNOWN)

        def work(number: int) -> None:
            table_id = TableId(1000 + number)
            start.wait()
            for step in range(1, rounds + 1):
                position = Lsn(step * threads + number)
                assert store.upsert_replication_progress(shared, position) >= position
                store.update_table_states({table_id: Ready(f"{step}")})
                assert store.get_table_state(table_id) == Ready(f"{step}")
                store.store_table_schema(table_schema(table_id, Lsn(step)))
                assert store.get_table_schema(table_id, LAST_LSN) is not None
                store.get_table_states()
                store.get_table_schemas()

        with ThreadPoolExecutor(threads) as executor:
            list(executor.map(work, range(threads)))

        for each in self.now_and_after_restart(store, restart):
            assert each.get_replication_progress(shared) == Lsn(rounds * threads + threads - 1)
            assert set(each.get_table_states().values()) == {Ready(f"{rounds}")}
            assert len(each.get_table_schemas()) == threads * rounds

    def test_loading_shows_what_another_object_has_written(
        self, store: PipelineStore, make_store: MakeStore
    ) -> None:
        other = make_store()
        other.open(PIPELINE)
        self.fill(store)
        load_everything(other)
        assert other.get_table_states() == store.get_table_states()
        assert other.get_table_schemas() == store.get_table_schemas()
        self.assert_copy(other, ORDERS)

        store.upsert_replication_progress(Worker.apply(ORDERS), Lsn(70))
        store.delete_table_state(CUSTOMERS)
        load_everything(other)
        assert other.get_replication_progress(Worker.apply(ORDERS)) == Lsn(70)
        assert other.get_table_states() == {ORDERS: DataSync()}
        self.assert_no_copy(other, CUSTOMERS)
        other.close()

    def test_rules_hold_between_objects_that_have_not_seen_each_other(
        self, store: PipelineStore, make_store: MakeStore
    ) -> None:
        other = make_store()
        other.open(PIPELINE)
        worker = Worker.apply(ORDERS)
        store.upsert_replication_progress(worker, Lsn(50))
        assert other.upsert_replication_progress(worker, Lsn(40)) == Lsn(50)
        assert other.get_replication_progress(worker) == Lsn(50)
        store.update_table_state(ORDERS, Init())
        other.update_table_state(ORDERS, DataSync())
        assert store.rollback_table_state(ORDERS) == Init()
        other.close()

    def test_pipelines_that_share_a_storage_do_not_see_each_other(
        self, store: PipelineStore, make_store: MakeStore
    ) -> None:
        self.fill(store)
        store.close()
        other = make_store()
        other.open("another")
        self.test_a_new_store_is_empty(other)
        with pytest.raises(PenstockError):
            other.rollback_table_state(ORDERS)
        other.update_table_states({ORDERS: Ready("x"), UNKNOWN: Ready("x")})
        other.upsert_replication_progress(Worker.apply(ORDERS), Lsn(1))
        other.reset_table_states_for_resync()
        other.prune_table_schemas({ORDERS: LAST_LSN})
        other.delete_table_state(ORDERS)
        other.close()

        store.open(PIPELINE)
        load_everything(store)
        assert store.get_table_states() == {ORDERS: DataSync(), CUSTOMERS: DataSync()}
        self.assert_copy(store, ORDERS)
        self.assert_copy(store, CUSTOMERS)

    # What the tests share

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
