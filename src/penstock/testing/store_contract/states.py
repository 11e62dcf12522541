"""The states of tables, with their history."""

from __future__ import annotations

import pytest

from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn, TableId
from penstock.states import MANUAL, Catchup, DataSync, Errored, Init, Ready, StoredState
from penstock.stores.base import PipelineStore
from penstock.testing.store_contract.foundation import (
    CUSTOMERS,
    EVERY_STATE,
    FINISHED_COPY,
    ORDERS,
    UNKNOWN,
    Restart,
    StoreTests,
)


class StatesContract(StoreTests):
    """States are kept with those before them, and can be rolled back."""

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
