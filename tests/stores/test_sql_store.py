from __future__ import annotations

import pytest

from penstock.stores import SqlStore
from penstock.testing.store_contract import MakeStore, StoreContract


class TestSqlStoreOnSqlite(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path) -> MakeStore:
        return lambda: SqlStore(f"sqlite:///{tmp_path}/store.db")


class TestSqlStoreOnPostgres(StoreContract):
    @pytest.fixture
    def make_store(self, database) -> MakeStore:
        return lambda: SqlStore(database.dsn)
