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

from penstock.testing.store_contract.foundation import MakeStore
from penstock.testing.store_contract.lifecycle import LifecycleContract
from penstock.testing.store_contract.recording import RecordingContract
from penstock.testing.store_contract.states import StatesContract

__all__ = ["MakeStore", "StoreContract"]


class StoreContract(RecordingContract, StatesContract, LifecycleContract):
    """Inherit this, override `make_store`, and every test of the contract runs."""
