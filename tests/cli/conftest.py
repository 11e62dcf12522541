"""A command line to call, and a configuration to call it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from penstock.spark.session import SHORT_LIVED
from tests.cli.command import Penstock, Running, WriteConfig


@pytest.fixture
def penstock(tmp_path: Path) -> Penstock:
    directory = tmp_path / "somewhere"
    directory.mkdir()
    return Penstock(directory)


@pytest.fixture
def start(penstock: Penstock) -> Iterator[Callable[..., Running]]:
    """Starts a command; whatever it left behind is ended after the test."""
    started: list[Running] = []

    def start(*arguments: str | Path, terminal: int | None = None) -> Running:
        started.append(Running(penstock.directory, *arguments, terminal=terminal))
        return started[-1]

    yield start
    for running in started:
        running.end()


@pytest.fixture
def write_config(penstock: Penstock) -> WriteConfig:
    """Writes penstock.yaml for a connection, with `settings` in place of the defaults."""

    def write(dsn: str, **settings: Any) -> Path:
        connection = psycopg.conninfo.conninfo_to_dict(dsn)
        connection |= settings.pop("pg_connection", {})
        config = {
            "id": "shop",
            "publication_name": "shop_pub",
            "pg_connection": connection,
            "journal": {"location": "journal"},
            "destination": {"root": "lake"},
            "store": {"url": "sqlite:///store.db"},
            "spark": {"master": "local[2]", "config": dict(SHORT_LIVED)},
            **settings,
        }
        path = penstock.directory / "penstock.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    return write
