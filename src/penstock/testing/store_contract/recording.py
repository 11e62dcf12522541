"""What is stored comes back whole: schema versions, states, progress, metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import PenstockError
from penstock.schema import Lsn
from penstock.states import Init
from penstock.stores.base import MetadataStatus, PipelineStore, Worker
from penstock.testing.store_contract.foundation import (
    CUSTOMERS,
    LAST_LSN,
    ORDERS,
    PIPELINE,
    UNKNOWN,
    Restart,
    StoreTests,
    applied,
    table_schema,
)


class RecordingContract(StoreTests):
    """What is stored comes back, also after a restart."""

    # A fresh store

    def test_a_new_store_is_empty(self, store: PipelineStore) -> None:
        self.assert_empty(store)

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
