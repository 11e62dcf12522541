"""What a look at the source does when it fails."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from penstock.config import PgConnection, PipelineConfig
from penstock.destinations import MemoryDestination
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.journal import Journal
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.receiver_process import ReceiverReport, ReceiverState
from penstock.pipeline.source_watch import Membership, SourceWatch
from penstock.pipeline.status import JournalStatus, PipelineStatus
from penstock.stores import MemoryStore
from penstock.testing.postgres import wait_for
from tests.conftest import Database


class Watched:
    """A source that is looked at all the time; `trouble` is raised when a look is taken in."""

    def __init__(self, database: Database, root: Path) -> None:
        config = PipelineConfig(
            id="t",
            publication_name="pub",
            pg_connection=PgConnection(uri=database.dsn),
            replication_lag_refresh_interval_ms=10,
        )
        self.context = PipelineContext(
            config,
            MemoryStore(),
            Journal(root),
            MemoryDestination(),
            None,  # type: ignore[arg-type]  # nothing here needs Spark
        )
        self.trouble: Exception | None = None
        self.looks = 0
        self.failures: list[PenstockError] = []
        self.failed = Event()
        self.watch = SourceWatch(self.context, self._see, self._fail)

    def _see(self, membership: Membership) -> None:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble

    def _fail(self, error: PenstockError) -> None:
        self.failures.append(error)
        self.failed.set()


@pytest.fixture
def watched(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    monkeypatch.setattr("penstock.pipeline.source_watch._MEMBERSHIP_SECONDS", 0.0)
    monkeypatch.setattr("penstock.pipeline.source_watch._MEMBERSHIP_SHARE", 1.0)
    with database.connect() as connection:
        connection.execute("CREATE PUBLICATION pub")
    watched = Watched(database, tmp_path)
    yield watched
    watched.watch.stop()


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (PenstockError(ErrorKind.STORE, "the store is locked"), "the store is locked"),
    ],
)
def test_a_look_that_a_disk_or_a_store_has_failed_is_repeated(
    watched: Watched, trouble: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched.trouble = trouble
    watched.watch.start()
    wait_for(lambda: watched.looks >= 2, "another look")
    watched.trouble, looks = None, watched.looks
    wait_for(lambda: watched.looks > looks + 1, "a look that is taken in")
    assert not watched.failures
    warning = next(r for r in caplog.records if "look at the source failed" in r.message)
    assert warning.levelname == "WARNING"
    assert told in warning.__dict__["reason"]
    assert watched.watch.status.problem != told, "the source is well"


def test_what_is_not_received_is_told_by_its_age(watched: Watched) -> None:
    watched.watch.start()
    wait_for(lambda: watched.watch.status.unreceived_seconds > 0.1)  # the journal is empty
    lag = PipelineStatus(
        "t",
        True,
        ReceiverReport(ReceiverState.PAUSED),
        watched.watch.status,
        JournalStatus.of(watched.context.journal),
        (),
    ).lag_seconds
    assert lag > 0.1


def test_a_look_that_is_wanted_comes_at_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.source_watch._MEMBERSHIP_SECONDS", 3600.0)
    watched.watch.start()
    watched.watch.look_now()
    wait_for(lambda: watched.looks == 1)


def test_a_look_that_fails_for_another_reason_fails_the_pipeline(watched: Watched) -> None:
    watched.trouble = KeyError("oid")
    watched.watch.start()
    wait_for(watched.failed.is_set)
    [failure] = watched.failures
    assert failure.kind is ErrorKind.INTERNAL
    assert "KeyError: 'oid'" in failure.message


def test_a_look_that_fails_while_the_pipeline_stops_is_nobodys_failure(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def stop_and_fail(membership: Membership) -> None:
        watched.context.stopping.set()
        raise KeyError("oid")

    watched.watch._on_membership = stop_and_fail
    watched.watch.start()
    wait_for(lambda: not watched.watch._thread.is_alive(), limit=30)
    assert "source watch failed" in caplog.text
    assert not watched.failures
