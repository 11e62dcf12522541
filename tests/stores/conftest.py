"""Both databases a `SqlStore` can live in, for tests that must hold on each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import EmbeddedPostgres

pytest.register_assert_rewrite("penstock.testing.store_contract")

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def store_database(server: EmbeddedPostgres) -> Iterator[str]:
    """One database for a module's tests; making one for each takes longer than the tests."""
    name = f"store_{next(_numbers)}"
    server.create_database(name)
    yield name
    server.drop_database(name)


@pytest.fixture
def postgres_url(server: EmbeddedPostgres, store_database: str) -> Iterator[str]:
    """A database without a store in it, as a URL through the socket."""
    where = f"host={server.host}&port={server.port}&connect_timeout=120"
    yield f"postgresql://postgres@/{store_database}?{where}"
    with server.connect(store_database) as connection:
        connection.execute("DROP SCHEMA IF EXISTS penstock CASCADE")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store, in each database in turn."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found
