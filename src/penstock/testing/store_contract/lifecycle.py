"""Copies, resets and deletions, and several that use one storage at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.errors import PenstockError
from penstock.schema import Lsn, TableId
from penstock.states import DataSync, Init, Ready
from penstock.stores.base import PipelineStore, Worker
from penstock.testing.store_contract.foundation import (
    CUSTOMERS,
    LAST_LSN,
    ORDERS,
    PIPELINE,
    UNKNOWN,
    MakeStore,
    Restart,
    StoreTests,
    applied,
    load_everything,
    table_schema,
)


class LifecycleContract(StoreTests):
    """What belongs to a table comes and goes together, whoever else writes."""

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
        self.assert_empty(other)
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
