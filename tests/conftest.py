"""What most tests need: one server, a database each, and one Spark session."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from penstock.testing import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)
_OWN_ROOT = pytest.StashKey[Path]()


# How long an example takes says more about the machine than about the code.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

COMPLAINTS = ("ERROR", "FATAL", "WARNING", "unexpected EOF", "could not")


@dataclass(frozen=True)
class Database:
    """A database that one test has for itself."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def logged(self) -> list[str]:
        """What the server has written to its log so far."""
        return self.server.log.read_text(errors="replace").splitlines()

    def connect(self, **parameters: Any) -> psycopg.Connection[Any]:
        """A connection as superuser, in autocommit mode unless told otherwise."""
        return self.server.connect(self.name, **parameters)


def pytest_configure(config: pytest.Config) -> None:
    """Give this run temporary directories of its own.

    Pytest's are below one directory for all runs, and each start closes that to
    other users; when root runs the tests the servers are another user's, and a
    second run would take the first one's data away from under it.
    """
    if "PYTEST_DEBUG_TEMPROOT" not in os.environ:
        root = tempfile.mkdtemp(prefix="penstock-tests-")
        os.environ["PYTEST_DEBUG_TEMPROOT"] = root
        config.stash[_OWN_ROOT] = Path(root)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Leave the directories there only when something failed in them."""
    root = session.config.stash.get(_OWN_ROOT, None)
    if root is not None and exitstatus == 0:
        session.config.add_cleanup(lambda: shutil.rmtree(root, ignore_errors=True))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server that all tests of a worker share; one that kills its server makes its own.

    PENSTOCK_TEST_POSTGRES is its version, where it is not to be the newest of the wheel.
    """
    version = int(os.environ.get("PENSTOCK_TEST_POSTGRES", "18"))
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), version) as server:
        yield server


@pytest.fixture(scope="session")
def other_servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[int], EmbeddedPostgres]]:
    """A server of any version there is, made when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def started(version: int) -> EmbeddedPostgres:
            directory = tmp_path_factory.mktemp(f"postgres{version}")
            return stack.enter_context(EmbeddedPostgres(directory, version, {"fsync": "off"}))

        yield started


def skip_what_came_later(request: pytest.FixtureRequest, server: EmbeddedPostgres) -> None:
    """Leave out a test of something that this version of Postgres does not have yet."""
    since = request.node.get_closest_marker("since")
    if since is not None and server.version < since.args[0]:
        pytest.skip(f"what it is about came with Postgres {since.args[0]}")


@pytest.fixture
def database(request: pytest.FixtureRequest, server: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database, dropped afterwards together with its replication slots."""
    skip_what_came_later(request, server)
    name = f"test_{next(_numbers)}"
    server.create_database(name)
    yield Database(server, name)
    server.drop_database(name)


@pytest.fixture
def older_database(other_servers: Callable[[int], EmbeddedPostgres]) -> Iterator[Database]:
    """The same on a server of the wheel's older version."""
    name, server = f"test_{next(_numbers)}", other_servers(16)
    server.create_database(name)
    yield Database(server, name)
    server.drop_database(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of all tests of a worker, as penstock builds it, on two cores.

    The tests of the command line and of the demo have drivers of their own, which run
    generated code.
    """
    from penstock.destinations.delta.session import SPARK_SETTINGS
    from penstock.spark.session import INTERPRETED, build_session

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = build_session(
        "penstock-tests",
        master="local[2]",
        config=SPARK_SETTINGS | INTERPRETED | {"spark.sql.warehouse.dir": str(warehouse)},
    )
    yield session
    session.stop()
