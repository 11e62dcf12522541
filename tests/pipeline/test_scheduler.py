"""Who gets to work, and how tables leave, without a source and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread, current_thread
from unittest.mock import MagicMock

import pytest

from penstock.changes.batches import ChangeBatch
from penstock.config import JournalConfig, PgConnection, PipelineConfig, TableSyncCopy
from penstock.destinations.base import WriteResult, WriteStatus
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.requests import Action, Request, Requests
from penstock.pipeline.retention import Retention
from penstock.pipeline.scheduler import Scheduler
from penstock.pipeline.source_watch import Membership
from penstock.postgres.catalog import PublishedTable
from penstock.publication_drift.terms import Terms
from penstock.schema import TableSchema
from penstock.states import MANUAL, Errored, Init, Ready, stage_of
from penstock.stores import MemoryStore
from penstock.stores.base import DestinationTableMetadata, MetadataStatus, TableStateOperation
from penstock.testing.postgres import wait_for
from tests.pipeline.doubles import ScriptedDestination
from tests.pipeline.journals import HandMadeJournal, table

A, B = table(1, "a"), table(2, "b")
LIMIT = 180.0
RESYNC_A = Request(A.id, Action.RESYNC)


class Maintained(ScriptedDestination):
    """Takes every batch unread, and keeps house for as long as it is told.

    `results` has the tables whose batches are not durable at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept = Event()
        self.results: dict[str, WriteResult] = {}

    def write_events(self, batch: ChangeBatch) -> WriteResult:
        self._note("write", str(batch.table.name))
        return self.results.get(str(batch.table.name), WriteStatus.DURABLE)

    def maintain(self, table: TableSchema) -> None:
        self._note("maintain", str(table.name))
        assert self.kept.wait(LIMIT)


class AwayStore(MemoryStore):
    """Has to be asked some times before it lets anything go."""

    refusals = 0

    def apply_table_state_operation(self, operation: TableStateOperation) -> None:
        if self.refusals:
            self.refusals -= 1
            raise PenstockError(ErrorKind.STORE, "the store is away")
        super().apply_table_state_operation(operation)


class Overtaken(Event):
    """Once `behind` is there, it happens right after a turn of the scheduler found no wake."""

    behind: Callable[[], None] | None = None

    def is_set(self) -> bool:
        found, behind = super().is_set(), self.behind
        if not found and behind and current_thread().name == "penstock-scheduler":
            self.behind = None
            behind()
        return found


class Bench:
    """A scheduler over a journal made by hand. Its tables were copied before."""

    def __init__(self, root: Path) -> None:
        self.journal = HandMadeJournal(root)
        self.store = AwayStore()
        self.store.open("t")
        self.destination = Maintained()
        self.failures: list[PenstockError] = []
        config = PipelineConfig(
            id="t",
            publication_name="p",
            pg_connection=PgConnection(),
            journal=JournalConfig(location=str(root)),
            table_sync_copy=TableSyncCopy(mode="none"),
        )
        self.context = PipelineContext(
            config, self.store, self.journal.reader, self.destination, MagicMock()
        )
        self.scheduler = Scheduler(self.context, self.failures.append)
        self.requests = Requests(self.journal.reader.root)
        for one in (A, B):
            self.store.update_table_state(one.id, Ready("c1"))
            self.store.store_table_schema(one)
            self.store.store_destination_table_metadata(
                one.id,
                DestinationTableMetadata("x", one.version, MetadataStatus.APPLIED, (True, True)),
            )

    def publish(self, *tables: TableSchema) -> None:
        """Have the scheduler look at a publication of these."""
        published = (PublishedTable(one, None, "r", 0, Terms(frozenset(), None)) for one in tables)
        end = self.journal.reader.end
        self.scheduler.set_membership(Membership(tuple(published), end, 0.0, end))

    def change(self, changed: TableSchema) -> None:
        """Have a change in the journal."""
        end = self.journal.reader.end.value + 10
        self.journal.flush(end, self.journal.segment(changed), schemas=(changed,))
        self.scheduler.wake()

    def wait_for_calls(self, call: str, of: TableSchema, times: int) -> None:
        wait_for(
            lambda: self.destination.called(call, str(of.name)) == times,
            f"{call} of {of.name} for the {times}. time",
            limit=LIMIT,
        )

    def names(self) -> list[str]:
        return [one.name for one in self.scheduler.tables()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.destination.kept.set()
    bench.scheduler.stop()


def test_no_table_waits_for_the_maintenance_of_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.maintenance._EVERY_SECONDS", 0.0)
    monkeypatch.setattr("penstock.pipeline.maintenance._QUIET_SECONDS", 0.0)
    bench.publish(A, B)
    bench.scheduler.start()
    bench.change(A)
    bench.wait_for_calls("maintain", A, 1)
    for times in (1, 2, 3):
        bench.change(B)
        bench.wait_for_calls("write", B, times)
    assert bench.destination.called("maintain", str(B.name)) == 0
    bench.destination.kept.set()
    bench.wait_for_calls("maintain", B, 1)


def test_of_tables_that_are_due_at_once_one_is_maintained(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.maintenance._EVERY_SECONDS", 0.0)
    monkeypatch.setattr("penstock.pipeline.maintenance._QUIET_SECONDS", 3600.0)
    bench.publish(A, B)
    bench.scheduler.start()
    for one in (A, B):
        bench.change(one)
        bench.wait_for_calls("write", one, 1)
    one, other = bench.scheduler.tables()

    def make_due() -> None:
        one.batches = other.batches = 64

    wait_for(lambda: bench.scheduler.between_jobs(one, make_due), limit=LIMIT)
    bench.scheduler.wake()
    wait_for(lambda: any(call == "maintain" for call, _ in bench.destination.calls), limit=LIMIT)
    for changed in (A, B):
        bench.change(changed)
    [busy] = [name for call, name in bench.destination.calls if call == "maintain"]
    free = A if busy == str(B.name) else B
    bench.wait_for_calls("write", free, 2)


def test_a_table_that_leaves_while_the_store_is_away_is_let_go_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.scheduler._FORGET_PAUSE", 0.0)
    bench.store.refusals = 3
    bench.publish(B)  # a left while no pipeline ran
    assert bench.store.refusals == 2
    bench.scheduler.start()
    bench.publish()
    wait_for(lambda: bench.names() == [] or bench.failures, limit=LIMIT)
    bench.publish()
    assert bench.failures == []
    assert bench.store.get_table_states() == {}


def test_a_table_that_is_not_to_be_copied_is_not_emptied_when_it_comes_back(bench: Bench) -> None:
    bench.publish(A, B)
    bench.scheduler.start()
    bench.publish(A)
    wait_for(lambda: bench.names() == [str(A.name)], limit=LIMIT)
    bench.publish(A, B)
    wait_for(lambda: isinstance(bench.store.get_table_state(B.id), Errored), limit=LIMIT)
    state = bench.store.get_table_state(B.id)
    assert isinstance(state, Errored)
    assert "table_sync_copy leaves it out" in state.reason
    assert bench.destination.called("drop", str(B.name)) == 0


def test_an_errored_table_does_not_keep_a_name_that_is_anothers(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Or that one would never be copied, and keep all its changes until the journal is full."""
    bench.store.update_table_state(A.id, Errored("no", "mend it", MANUAL, Ready("c1")))
    successor = table(3, "a")
    bench.publish(table(1, "a_broken"), B, successor)
    assert caplog.messages == ["table is errored"], "who starts a pipeline is told"
    bench.scheduler.start()
    Retention(bench.context, bench.scheduler).retire()
    bench.wait_for_calls("drop", successor, times=1)
    state = bench.store.get_table_state(A.id)
    assert isinstance(state, Errored)
    assert "because another table is called public.a now" in state.reason
    assert state.interrupted == Init()


def test_a_wake_that_comes_in_the_middle_of_a_turn_is_not_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.scheduler._LOOK_AROUND", 3600.0)
    bench.scheduler._wake = wake = Overtaken()
    bench.publish(A, B)
    bench.scheduler.start()
    wait_for(lambda: bench.scheduler._settled, limit=LIMIT)
    wake.behind = lambda: bench.publish(B)
    wait_for(lambda: bench.names() == [str(B.name)], limit=LIMIT)


def test_a_resync_that_waits_for_the_destination_holds_up_no_other_table(bench: Bench) -> None:
    writing: Future[None] = Future()
    writing.set_running_or_notify_cancel()
    bench.destination.results[str(A.name)] = writing
    bench.publish(A, B)
    bench.scheduler.start()
    bench.change(A)
    bench.wait_for_calls("write", A, 1)
    one = bench.scheduler.tables()[0]
    wait_for(lambda: one.job is None, limit=LIMIT)
    bench.requests.add(RESYNC_A)
    asking = Thread(target=bench.scheduler.answer, args=(bench.requests,), daemon=True)
    asking.start()
    try:
        wait_for(lambda: one.job and one.errand is None, limit=LIMIT)
        bench.change(B)
        bench.wait_for_calls("write", B, 1)
        assert bench.names() == [str(A.name), str(B.name)]
        assert bench.requests.pending() == [RESYNC_A]
        assert bench.store.get_table_state(A.id) == Ready("c1"), "the write may still come"
    finally:
        writing.set_result(None)
    wait_for(lambda: not bench.requests.pending(), limit=LIMIT)
    state = bench.store.get_table_state(A.id)
    assert state is not None
    assert stage_of(state) == Init()


def test_a_request_outlives_a_pipeline_that_has_only_seen_it(bench: Bench) -> None:
    bench.requests.add(RESYNC_A)
    bench.publish(A)
    bench.scheduler.answer(bench.requests)
    assert bench.requests.pending() == [RESYNC_A]
    bench.scheduler.start()
    wait_for(lambda: not bench.requests.pending(), limit=LIMIT)
    state = bench.store.get_table_state(A.id)
    assert state is not None
    assert stage_of(state) == Init()
