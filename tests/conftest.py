"""What most tests need: one server, a database each, and one Spark session."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from penstock.testing import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Database:
    """A database that one test has for itself."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self, **parameters: Any) -> psycopg.Connection[Any]:
        """A connection as superuser, in autocommit mode unless told otherwise."""
        return self.server.connect(self.name, **parameters)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedPostgres]:
    """A server that all tests share; one that kills its server makes its own.

    Not below pytest's own directory: when root runs the tests the server is
    another user's, and the next pytest to start closes that directory to others.
    """
    with (
        tempfile.TemporaryDirectory(prefix="penstock-tests-") as directory,
        EmbeddedPostgres(Path(directory) / "postgres") as server,
    ):
        yield server


@pytest.fixture
def database(server: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database, dropped afterwards together with its replication slots."""
    name = f"test_{next(_numbers)}"
    server.create_database(name)
    yield Database(server, name)
    server.drop_database(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of all tests, as penstock builds it, on two cores."""
    from penstock.spark.session import build_session

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = build_session(
        "penstock-tests",
        master="local[2]",
        config={
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(warehouse),
        },
    )
    yield session
    session.stop()
