"""What becomes of maintenance that fails."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock.config import PgConnection, PipelineConfig
from penstock.destinations import MemoryDestination
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.journal import Journal
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.maintenance import MaintenanceThread
from penstock.stores import MemoryStore
from penstock.testing.postgres import wait_for


class Failing:
    """A retention that meets one trouble after the other."""

    def __init__(self, *troubles: Exception) -> None:
        self._troubles = list(troubles)

    def retire(self) -> int:
        raise self._troubles.pop(0)


def test_only_what_passes_is_borne(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.maintenance._INTERVAL", 0.001)
    config = PipelineConfig(id="t", publication_name="p", pg_connection=PgConnection())
    nothing: Any = None
    context = PipelineContext(
        config, MemoryStore(), Journal(tmp_path), MemoryDestination(), nothing
    )
    retention: Any = Failing(
        PenstockError(ErrorKind.STORE, "the store is locked"), OSError("full"), KeyError("oid")
    )
    failures: list[PenstockError] = []
    failed = Event()

    def fail(error: PenstockError) -> None:
        failures.append(error)
        failed.set()

    maintenance = MaintenanceThread(context, nothing, retention, fail)
    maintenance.start()
    wait_for(failed.is_set)
    maintenance.stop()
    [failure] = failures
    assert failure.kind is ErrorKind.INTERNAL
    assert "KeyError: 'oid'" in failure.message
