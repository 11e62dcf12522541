"""A slot or a journal that is gone: refused, or everything anew; at the start and while running."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import psycopg
import pytest

from penstock import Pipeline
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.journal import Journal
from penstock.pipeline import runtime
from penstock.pipeline.requests import Action, Request, Requests
from penstock.pipeline.runtime import Runtime
from penstock.schema import Lsn, TableId
from penstock.stores.base import Worker
from penstock.testing.postgres import wait_for
from tests.pipeline.conftest import TIMEOUT, Source


def replicate_and_lose_the_slot(source: Source) -> None:
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
    source.execute(f"SELECT pg_drop_replication_slot('{source.config().slot_name}')")
    source.execute("INSERT INTO a VALUES (1001, 'late')", "DELETE FROM a WHERE id = 1")


def test_a_lost_slot_is_an_error(source: Source) -> None:
    replicate_and_lose_the_slot(source)
    with pytest.raises(PenstockError, match="is gone") as caught:
        source.pipeline().start()
    assert caught.value.kind is ErrorKind.SOURCE_SLOT
    # What the hint says: without the journal, everything is copied again, and nothing is
    # left out that happened since.
    shutil.rmtree(source.config().journal_path)
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.catch_up(pipeline)
    assert source.mirrored("a") == source.rows("a")


def test_a_lost_slot_is_made_again_and_every_table_copied(source: Source) -> None:
    replicate_and_lose_the_slot(source)
    with source.pipeline(invalidated_slot_behavior="recreate") as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO a VALUES (1002, 'streamed')")
        source.catch_up(pipeline)
    assert source.mirrored("a") == source.rows("a")


def test_a_cursor_behind_the_end_of_the_journal_is_of_another(source: Source) -> None:
    """As when the source was set back to an earlier point, and a receiver began a new journal."""
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        table = pipeline.status().table("public.a").id
        source.store.upsert_replication_progress(Worker.apply(table), Lsn(2**60))
    source.execute("INSERT INTO a VALUES (1001, 'before the cursor')")
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.catch_up(pipeline)
    assert source.mirrored("a") == source.rows("a")


def test_a_table_that_is_not_to_be_copied_is_not_emptied_for_a_new_slot(source: Source) -> None:
    settings = {
        "table_sync_copy": {"mode": "except", "tables": ["public.b"]},
        "invalidated_slot_behavior": "recreate",
    }
    with source.pipeline(**settings) as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO b VALUES (1, 'streamed')")
        source.catch_up(pipeline)
        streamed = source.mirrored("b")
        assert streamed
        drop_slot(source, pipeline)
        source.execute("INSERT INTO a VALUES (1001, 'in no slot')", "DELETE FROM b")
        wait_for(lambda: source.mirrored("a") == source.rows("a"))
        wait_for(lambda: pipeline.status().table("public.b").error)
        error = pipeline.status().table("public.b").error
        assert error is not None
        assert "table_sync_copy leaves it out" in error.reason
        assert error.retry == "manual"
        assert source.mirrored("b") == streamed
    # What the hint says.
    with source.pipeline() as pipeline:
        row = source.connection.execute("SELECT 'b'::regclass::oid").fetchone()
        assert row is not None
        Requests(pipeline.config.journal_path).add(Request(TableId(row[0]), Action.RETRY))
        wait_for(lambda: pipeline.status().table("public.b").error is None)
        pipeline.wait_until_ready(TIMEOUT)
        assert source.mirrored("b") == source.rows("b") == []


def test_a_slot_that_is_lost_while_running_is_made_again(source: Source) -> None:
    with source.pipeline(invalidated_slot_behavior="recreate") as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        drop_slot(source, pipeline)
        source.execute("INSERT INTO a VALUES (1001, 'in no slot')", "DELETE FROM a WHERE id = 1")
        wait_for(lambda: source.mirrored("a") == source.rows("a"))
        pipeline.wait_until_ready(TIMEOUT)

        invalidate_slot(source, pipeline)
        source.execute("INSERT INTO a VALUES (1002, 'again')", "DELETE FROM a WHERE id = 2")
        wait_for(lambda: source.mirrored("a") == source.rows("a"))
        source.execute("INSERT INTO b VALUES (1, 'streamed')")
        source.catch_up(pipeline)
        assert source.mirrored("b") == source.rows("b")
        assert pipeline.status().running
        assert pipeline.status().receiver.state == "streaming"
    assert source.destination.called("copy", "public.a") == 3
    assert source.destination.called("shutdown", "") == 1


def test_a_slot_that_is_lost_again_before_the_engine_runs_is_made_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice: while the runtime waits for its slot, and when it is about to run."""
    wait_for_slot, remove = Runtime._wait_for_slot, runtime.remove_leftovers
    waiting: list[Runtime] = []
    starting: list[Runtime] = []

    def lose_slot_of(one: Runtime) -> None:
        drop_slot(source, pipeline)
        wait_for(lambda: one.receiver.report.state == "failed")

    def lose_it_while_waiting(one: Runtime, check: Callable[[], None]) -> None:
        wait_for_slot(one, check)
        waiting.append(one)
        if len(waiting) == 2:
            lose_slot_of(one)
            wait_for_slot(one, check)

    def lose_it_while_starting(journal: Journal) -> None:
        remove(journal)
        starting.append(waiting[-1])
        if len(starting) == 2:
            lose_slot_of(waiting[-1])

    monkeypatch.setattr(Runtime, "_wait_for_slot", lose_it_while_waiting)
    monkeypatch.setattr(runtime, "remove_leftovers", lose_it_while_starting)
    with source.pipeline(invalidated_slot_behavior="recreate") as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        drop_slot(source, pipeline)
        source.execute("INSERT INTO a VALUES (1001, 'in no slot')", "DELETE FROM a WHERE id = 1")
        wait_for(lambda: len(starting) == 3 or pipeline.status().error)
        pipeline.wait_until_ready(TIMEOUT)
        source.execute("INSERT INTO b VALUES (1, 'streamed')")
        source.catch_up(pipeline)
        for table in ("a", "b"):
            assert source.mirrored(table) == source.rows(table)
        assert pipeline.status().running
    assert (len(waiting), len(starting)) == (4, 3)
    assert source.destination.called("shutdown", "") == 1


def test_a_slot_that_is_invalidated_while_running_ends_the_pipeline(source: Source) -> None:
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    invalidate_slot(source, pipeline)
    with pytest.raises(PenstockError, match="is lost: wal_removed") as caught:
        pipeline.wait()
    assert caught.value.kind is ErrorKind.SOURCE_SLOT
    assert "invalidated_slot_behavior: recreate" in str(caught.value.hint)


def drop_slot(source: Source, pipeline: Pipeline) -> None:
    slot = pipeline.config.slot_name

    def dropped() -> bool:
        try:
            source.connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
        except psycopg.errors.ObjectInUse:
            source.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                f" WHERE slot_name = '{slot}'"
            )
            return False
        return True

    wait_for(dropped)


def invalidate_slot(source: Source, pipeline: Pipeline) -> None:
    """By more WAL than the server keeps, while the receiver does not read."""
    import psutil

    pid = pipeline.status().receiver.pid
    assert pid is not None
    slot = pipeline.config.slot_name
    receiver = psutil.Process(pid)
    receiver.suspend()
    try:
        source.execute(
            "ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()"
        )

        def lost() -> bool:
            source.execute(
                "SELECT pg_logical_emit_message(true, 'x', 'x')", "SELECT pg_switch_wal()"
            )
            source.execute("CHECKPOINT")
            row = source.connection.execute(
                "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", [slot]
            ).fetchone()
            return row == ("lost",)

        wait_for(lost)
    finally:
        source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
        receiver.resume()
