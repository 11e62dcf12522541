"""A second server of an older version, and what the tests of this room share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from penstock.config import PgConnection
from penstock.postgres.connection import Session, connect
from penstock.testing import EmbeddedPostgres

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def older_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    directory = tmp_path_factory.mktemp("postgres16")
    with EmbeddedPostgres(directory, 16, {"fsync": "off"}) as server:
        yield server


@pytest.fixture(params=["newest", "older"])
def source(request: pytest.FixtureRequest) -> Iterator[PgConnection]:
    """A database of its own on each server version that there is."""
    server = request.getfixturevalue("server" if request.param == "newest" else "older_server")
    name = f"source_{next(_numbers)}"
    server.create_database(name)
    yield PgConnection(uri=server.dsn(name))
    server.drop_database(name)


@pytest.fixture
def session(source: PgConnection) -> Iterator[Session]:
    with connect(source, "test") as session:
        yield session


@pytest.fixture
def role(session: Session) -> Iterator[str]:
    """A role that may log in and nothing else."""
    name = "penstock_someone"
    session.execute(f'CREATE ROLE "{name}" LOGIN')
    yield name
    session.execute(f'REASSIGN OWNED BY "{name}" TO postgres')
    session.execute(f'DROP OWNED BY "{name}"')
    session.execute(f'DROP ROLE "{name}"')


@pytest.fixture
def someone(source: PgConnection, role: str) -> PgConnection:
    """The same database, as that role."""
    return source.model_copy(update={"user": role})
