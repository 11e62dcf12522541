"""Servers of other versions, and what the tests of this room share.

Beside the newest of the wheel and its older one there may be installed ones, as
`penstock.testing.installation` finds them; some have extensions that the wheel lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from penstock.config import PgConnection
from penstock.postgres.connection import Session, connect
from penstock.testing import EmbeddedPostgres
from penstock.testing.installation import installed_versions
from tests.conftest import skip_what_came_later

_numbers = itertools.count(1)


OTHERS = sorted({16, *installed_versions()} - {18})


@pytest.fixture(params=["newest", *OTHERS])
def source(
    request: pytest.FixtureRequest, other_servers: Callable[[int], EmbeddedPostgres]
) -> Iterator[PgConnection]:
    """A database of its own on each server version that there is."""
    newest = request.param == "newest"
    server = request.getfixturevalue("server") if newest else other_servers(request.param)
    skip_what_came_later(request, server)
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
