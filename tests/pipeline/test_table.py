"""What a table wants to do next, without a source and without Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from unittest.mock import MagicMock

import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.requests import Action, Request, Requests
from penstock.pipeline.source_watch import Membership
from penstock.pipeline.table import Job, PipelineTable
from penstock.postgres.catalog import PublishedTable
from penstock.publication_drift.terms import Terms
from penstock.schema import ZERO_LSN, Lsn, TableId, TableSchema
from penstock.states import MANUAL, Errored, Init, Ready, RetryPolicy, StoredState
from penstock.stores import MemoryStore
from tests.pipeline.doubles import ScriptedDestination
from tests.pipeline.journals import HandMadeJournal, table

READY = Ready("c1")
RETRIED = Errored("r", "s", RetryPolicy("timed", datetime(2024, 1, 1, tzinfo=UTC)), READY)
SCHEMA = table()


class Maintained(ScriptedDestination):
    """Counts how often it was told to keep house."""

    def maintain(self, table: TableSchema) -> None:
        self._note("maintain", str(table.name))


class AwayStore(MemoryStore):
    """Takes nothing while it is `away`."""

    away = False

    def update_table_states(self, updates: Mapping[TableId, StoredState]) -> None:
        if self.away:
            raise PenstockError(ErrorKind.STORE, "the store is away")
        super().update_table_states(updates)


class Clock(Event):
    """Time passes only while somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        self.pauses.append(timeout)
        return self.is_set()


class Bench:
    """A copied table, and what it works with."""

    def __init__(self, root: Path) -> None:
        self.clock = Clock()
        self.journal = HandMadeJournal(root)
        self.store = AwayStore()
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
            config, self.store, self.journal.reader, self.destination, MagicMock(), self.clock
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


@pytest.mark.parametrize("state", [READY, RETRIED])
def test_a_table_that_failed_after_many_batches_goes_on_before_it_is_maintained(
    bench: Bench, state: StoredState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.maintenance._EVERY_SECONDS", 0.0)
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
    monkeypatch.setattr("penstock.pipeline.maintenance._EVERY_SECONDS", 0.0)
    one = bench.table(READY)
    one.batches = 64
    one.run(Job.MAINTAIN)
    assert do(one) is Job.APPLY
    assert do(one) is None
    assert bench.destination.called("maintain", "public.t") == 0


@pytest.fixture
def away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose store is away."""
    monkeypatch.setattr("penstock.pipeline.failures.time", bench.clock)
    bench.store.away = True
    return bench


def test_a_store_that_is_away_for_minutes_is_waited_for(away: Bench) -> None:
    one = away.table(RETRIED)
    while away.clock.now < 500:
        assert do(one) is Job.APPLY
    assert away.clock.pauses[:4] == [0.2, 0.4, 0.8, 1.6]
    assert max(away.clock.pauses) == away.clock.pauses[-1] == 30
    away.store.away = False
    do(one)
    assert one.state == READY
    # The next time has nothing to do with it.
    away.store.away = True
    away.clock.now += 1000
    one.state = RETRIED
    one.run(Job.APPLY)
    assert away.clock.pauses[-1] == 0.2


def test_a_store_that_stays_away_fails_the_pipeline(away: Bench) -> None:
    one = away.table(RETRIED)

    def go_on() -> None:
        while away.clock.now < 3600:
            do(one)

    with pytest.raises(PenstockError, match="the store is away"):
        go_on()
    assert 600 <= away.clock.now < 660


def test_a_table_that_fails_while_the_store_is_away_is_errored_afterwards(
    away: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(table: TableSchema) -> None:
        raise PenstockError(ErrorKind.DESTINATION_CONNECTION, "the lake is away too")

    monkeypatch.setattr(away.destination, "position", fail)
    one = away.table(READY)
    for _ in range(10):
        do(one)
        assert one.state == READY
    away.store.away = False
    do(one)
    assert isinstance(one.state, Errored)
    assert one.state.attempts == 1


def test_an_errored_table_says_why_its_changes_were_dropped(bench: Bench) -> None:
    bench.journal.flush(200, bench.journal.segment(SCHEMA), schemas=(SCHEMA,))
    one = bench.table(RETRIED)
    one.drop_changes(bench.journal.reader.end, "they kept too much")
    assert isinstance(one.state, Errored)
    assert one.state.interrupted == Init()
    assert "up to 0/C8 were dropped, because they kept too much" in one.state.reason
    assert bench.journal.reader.held_back(SCHEMA.id) == 0


def test_a_request_stays_until_the_new_state_is_stored_and_is_answered_once(away: Bench) -> None:
    one, request = away.table(READY), Request(SCHEMA.id, Action.RESYNC)
    requests = Requests(away.journal.reader.root)
    requests.add(request)
    one.errand = errand = partial(requests.answer, request, one.resync)
    assert do(one) is Job.APPLY
    assert one.state == READY
    assert requests.pending() == [request]
    away.store.away, one.errand = False, errand
    do(one)
    assert one.state == Init()
    assert requests.pending() == []
    one.enter(READY)
    one.errand = errand  # by one who saw the request just before
    do(one)
    assert one.state == READY


def test_a_table_that_has_to_be_copied_again_has_got_nowhere(bench: Bench) -> None:
    bench.journal.flush(200)
    one = bench.table(READY)
    do(one)
    assert one.position == Lsn(200)
    filtered = replace(one.published, row_filter="(id > 1)", terms=Terms(frozenset(), "(id > 1)"))
    one.see(filtered, Membership((filtered,), Lsn(200), time.monotonic(), Lsn(200)))
    assert one.unsettled
    assert one.position == ZERO_LSN
    assert do(one) is Job.APPLY
    assert one.state == Init()


def test_what_is_asked_of_a_table_that_waits_for_an_operator_is_its_next_job(bench: Bench) -> None:
    one = bench.table(Errored("r", "s", MANUAL, READY))
    assert one.next_job() is None
    one.errand = one.retry
    assert do(one) is Job.APPLY
    assert one.state == READY
