"""What a table wants to do next, without a source and without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.table import Job, PipelineTable
from penstock.postgres.catalog import PublishedTable
from penstock.postgres.terms import Terms
from penstock.schema import TableSchema
from penstock.states import Errored, Ready, RetryPolicy, StoredState
from penstock.stores import MemoryStore
from tests.pipeline.doubles import ScriptedDestination
from tests.pipeline.journals import HandMadeJournal, table

READY = Ready("c1")
SCHEMA = table()


class Maintained(ScriptedDestination):
    """Counts how often it was told to keep house."""

    def maintain(self, table: TableSchema) -> None:
        self._note("maintain", str(table.name))


class Bench:
    """A copied table, and what it works with."""

    def __init__(self, root: Path) -> None:
        self.journal = HandMadeJournal(root)
        self.store = MemoryStore()
        self.store.open("t")
        self.destination = Maintained()

    def table(self, state: StoredState) -> PipelineTable:
        config = PipelineConfig(
            id="t",
            publication_name="p",
            pg_connection=PgConnection(),
            journal=JournalConfig(location=str(self.journal.reader.root)),
        )
        context = PipelineContext(
            config, self.store, self.journal.reader, self.destination, MagicMock()
        )
        published = PublishedTable(SCHEMA, None, "r", 0, Terms(frozenset(), None))
        return PipelineTable(context, published, state, lambda: None)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def do(one: PipelineTable) -> Job | None:
    """Do the next job as the scheduler would."""
    one.job = job = one.next_job()
    if job is not None:
        one.run(job)
    return job


@pytest.mark.parametrize(
    "state",
    [READY, Errored("r", "s", RetryPolicy("timed", datetime(2024, 1, 1, tzinfo=UTC)), READY)],
)
def test_a_table_that_failed_after_many_batches_goes_on_before_it_is_maintained(
    bench: Bench, state: StoredState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.upkeep._EVERY_SECONDS", 0.0)
    one = bench.table(state)
    one.batches = 64
    assert do(one) is Job.APPLY
    assert one.state == READY
    assert do(one) is Job.MAINTAIN
    assert bench.destination.called("maintain", "public.t") == 1
    assert do(one) is None


def test_maintenance_with_nothing_to_maintain_is_not_due_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.upkeep._EVERY_SECONDS", 0.0)
    one = bench.table(READY)
    one.batches = 64
    one.run(Job.MAINTAIN)
    assert do(one) is Job.APPLY
    assert do(one) is None
    assert bench.destination.called("maintain", "public.t") == 0
