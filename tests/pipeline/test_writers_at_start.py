"""Transactions that write while a pipeline starts: in the copy or in the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from penstock import Pipeline
from penstock.journal.source import rightful_owner
from penstock.journal.writer import JournalWriter
from penstock.postgres.connection import connect
from penstock.testing.postgres import wait_for
from tests.pipeline.conftest import TIMEOUT, Source


@pytest.fixture
def copied_or_waiting(source: Source, caplog: pytest.LogCaptureFixture) -> Callable[[str], bool]:
    caplog.set_level("INFO", "penstock.pipeline.copier")

    def found(table: str) -> bool:
        copied = source.destination.called("copy", table) > 0
        return copied or "waiting for transactions" in caplog.text

    return found


def expect_by_copy_alone(source: Source, pipeline: Pipeline, table: str) -> None:
    pipeline.wait_until_ready(TIMEOUT)
    source.catch_up(pipeline)
    assert source.mirrored(table) == source.rows(table)
    assert source.destination.called("write", f"public.{table}") == 0


def test_who_wrote_before_a_table_was_added_to_a_slot_without_a_journal(
    source: Source, copied_or_waiting: Callable[[str], bool]
) -> None:
    """A first start died between the slot and the journal's first manifest."""
    pipeline = source.pipeline()
    config = pipeline.config
    with connect(config.pg_connection, "test") as session:
        JournalWriter(config.journal_path).claim(rightful_owner(config, session))
    source.execute(
        f"SELECT pg_create_logical_replication_slot('{config.slot_name}', 'pgoutput')",
        "CREATE TABLE late (id bigint PRIMARY KEY, v text)",
    )
    with source.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO late VALUES (1, 'before it was published')")
        source.execute("ALTER PUBLICATION pub ADD TABLE late")
        pipeline.start()
        wait_for(lambda: copied_or_waiting("public.late"))
        writer.commit()
    expect_by_copy_alone(source, pipeline, "late")


def test_a_commit_of_before_the_slot_that_waits_for_a_standby(
    source: Source, copied_or_waiting: Callable[[str], bool]
) -> None:
    """The slot does not send it, and no snapshot sees it while it waits.

    A slot is made when two sets of transactions have ended, one after the other. Who begins
    after the second was noted, and commits before it has ended, is before the slot.
    """
    pipeline = source.pipeline()
    starting = Thread(target=pipeline.start)
    insert = "INSERT INTO a VALUES (1001, 'committed')"
    with (
        source.database.connect(autocommit=False) as first,
        source.database.connect(autocommit=False) as second,
        source.database.connect() as writer,
        standby_that_never_answers(source),
    ):
        committing = Thread(target=lambda: writer.execute(insert))
        noted = first.execute("SELECT pg_current_xact_id()::text").fetchone()
        starting.start()
        wait_for(lambda: waited_for(source) == noted)
        noted = second.execute("SELECT pg_current_xact_id()::text").fetchone()
        first.rollback()
        wait_for(lambda: waited_for(source) == noted)
        committing.start()
        wait_for(lambda: waits_for_standby(source))
        second.rollback()
        wait_for(lambda: copied_or_waiting("public.a"))
        assert waits_for_standby(source)
    committing.join()
    starting.join()
    expect_by_copy_alone(source, pipeline, "a")


@contextmanager
def standby_that_never_answers(source: Source) -> Iterator[None]:
    """Who connects from now on does not wait for it."""
    source.execute(
        f"ALTER DATABASE {source.database.name} SET synchronous_commit = local",
        "ALTER SYSTEM SET synchronous_standby_names = 'ghost'",
        "SELECT pg_reload_conf()",
    )
    try:
        yield
    finally:
        source.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


def waited_for(source: Source) -> tuple[str] | None:
    """The transaction that somebody waits for."""
    return source.connection.execute(
        "SELECT transactionid::text FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
    ).fetchone()


def waits_for_standby(source: Source) -> bool:
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    return source.connection.execute(query).fetchone() is not None
