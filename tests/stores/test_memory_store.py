"""`MemoryStore` keeps the store contract, and its records through close and open."""

from __future__ import annotations

import pytest

from penstock.errors import ErrorKind, PenstockError
from penstock.states import Init
from penstock.stores import MemoryStore
from penstock.stores.base import PipelineStore, SchemaStore, StateStore, TableStateLifecycleStore
from penstock.testing.store_contract import MakeStore, StoreContract
from penstock.testing.store_contract.foundation import ORDERS


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        store = MemoryStore()
        return lambda: store


def test_a_store_that_is_not_open_answers_nothing() -> None:
    store = MemoryStore()
    with pytest.raises(PenstockError, match="not open") as raised:
        store.get_table_states()
    assert raised.value.kind is ErrorKind.INVALID_STATE
    store.open("shop")
    store.update_table_state(ORDERS, Init())
    store.close()
    with pytest.raises(PenstockError, match="not open"):
        store.update_table_state(ORDERS, Init())


def test_a_store_of_ones_own_is_the_three_contracts_and_no_more() -> None:
    assert PipelineStore.__abstractmethods__ == (
        SchemaStore.__abstractmethods__
        | StateStore.__abstractmethods__
        | TableStateLifecycleStore.__abstractmethods__
    )


def test_a_store_speaks_for_one_pipeline_at_a_time() -> None:
    store = MemoryStore()
    store.open("shop")
    with pytest.raises(PenstockError, match="open for pipeline shop, not crm") as raised:
        store.open("crm")
    assert raised.value.kind is ErrorKind.INVALID_STATE
