"""Whole pipelines: real Postgres, receiver and Spark, with a destination that obeys the test."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock import PgConnection, Pipeline, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.journal import Journal
from penstock.pipeline import read_status
from penstock.pipeline.requests import Action, Request, Requests
from penstock.pipeline.status import TableFailure
from penstock.schema import TableId
from penstock.spark.extract import extract
from penstock.states import Errored, Init
from penstock.stores import MemoryStore, SqlStore
from penstock.testing.postgres import wait_for
from tests.conftest import Database
from tests.pipeline.conftest import TIMEOUT, Source
from tests.pipeline.doubles import ScriptedDestination


def state(pipeline: Pipeline, table: str) -> str:
    return pipeline.status().table(f"public.{table}").state.name


def oid(source: Source, table: str) -> TableId:
    row = source.connection.execute("SELECT %s::regclass::oid", [table]).fetchone()
    assert row is not None
    return TableId(row[0])


def test_tables_are_copied_then_streamed_and_resumed(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        assert source.mirrored("a") == source.rows("a")
        assert source.mirrored("b") == []
        source.execute(
            "INSERT INTO b VALUES (1, 'one'), (2, 'two')",
            "UPDATE a SET v = 'changed' WHERE id <= 10",
            "UPDATE a SET id = id + 1000 WHERE id BETWEEN 20 AND 25",
            "DELETE FROM a WHERE id > 90 AND id <= 100",
        )
        source.catch_up(pipeline)
        assert source.mirrored("a") == source.rows("a")
        assert source.mirrored("b") == source.rows("b")
        status = pipeline.status()
        assert status.ready
        assert status.table("public.a").work.rows_copied == 100
        assert status.table("public.a").work.changes_applied == 26
        assert (status.work.rows_copied, status.work.changes_applied) == (100, 28)
        assert status.receiver.state == "streaming"
    source.execute(
        "INSERT INTO a VALUES (5000, 'while it was down')",
        "TRUNCATE b",
        "CREATE TABLE keyless (v text)",
        "ALTER PUBLICATION pub ADD TABLE keyless",
    )
    with source.pipeline() as pipeline:
        source.catch_up(pipeline)
        assert source.mirrored("a") == source.rows("a")
        assert source.mirrored("b") == []
    assert "public.keyless: has no usable replica identity" in caplog.text
    assert source.destination.called("copy", "public.a") == 1, "it never copies again"


def test_a_table_truncated_under_its_copy_is_copied_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot does not keep rows from a TRUNCATE, but changes before that are streamed."""
    source.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, v int, big text)",
        "ALTER TABLE wide ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO wide VALUES (1, 1, repeat('x', 10000))",
        "ALTER PUBLICATION pub ADD TABLE wide",
    )
    extracted = []

    def watched(session: Any, connection: Any, table: Any, *arguments: Any, **options: Any) -> Any:
        if table.name.name == "wide":
            if not extracted:
                source.execute(
                    "UPDATE wide SET v = 2",
                    "TRUNCATE wide",
                    "INSERT INTO wide VALUES (2, 2, repeat('y', 10000))",
                )
            extracted.append(table)
        return extract(session, connection, table, *arguments, **options)

    monkeypatch.setattr("penstock.pipeline.copier.extract", watched)
    with source.pipeline() as pipeline:
        pipeline.wait_until_ready(TIMEOUT)
        source.catch_up(pipeline)
        assert source.mirrored("wide") == source.rows("wide")
    assert len(extracted) == 2


def test_starting_twice_is_an_error_before_anything_happens(source: Source) -> None:
    pipeline = source.pipeline()
    pipeline.start()
    with pytest.raises(PenstockError, match="started already") as caught:
        pipeline.start()
    assert caught.value.kind is ErrorKind.INVALID_STATE
    assert pipeline.status().running


def test_what_stands_in_the_way_is_told_before_anything_is_made(source: Source) -> None:
    source.execute("DROP PUBLICATION pub")
    pipeline = source.pipeline()
    with pytest.raises(PenstockError, match="pub"):
        pipeline.start()
    assert not pipeline.config.journal_path.exists()
    assert source.destination.calls == []
    slots = source.connection.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s",
        [pipeline.config.slot_name],
    ).fetchone()
    assert slots == (0,)


def test_a_spark_that_cannot_be_stopped_does_not_hide_why_the_start_failed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dead:
        def stop(self) -> None:
            raise ConnectionRefusedError("its JVM was killed")

    class Refusing(ScriptedDestination):
        def startup(self, context: Any) -> None:
            raise PenstockError(ErrorKind.DESTINATION_REJECTED, "the cause")

    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr("penstock.spark.session.build_session", lambda *_, **__: Dead())
    with database.connect() as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY)")
        connection.execute("CREATE PUBLICATION pub FOR TABLE a")
    config = PipelineConfig(
        id=database.name,
        publication_name="pub",
        pg_connection=PgConnection(uri=database.dsn),
        journal={"location": str(tmp_path / "journal")},
    )
    pipeline = Pipeline(config, store=MemoryStore(), destination=Refusing())
    with pytest.raises(PenstockError, match="the cause"):
        pipeline.start()


def test_changes_between_slot_and_snapshot_are_applied_once(source: Source) -> None:
    """Updates that are not idempotent would show a change that came twice or never."""
    source.execute(
        "CREATE TABLE counter (id bigint PRIMARY KEY, n bigint)",
        "INSERT INTO counter SELECT g, 0 FROM generate_series(1, 20) g",
        "ALTER PUBLICATION pub ADD TABLE counter",
    )
    pipeline = source.pipeline()
    pipeline.start()
    for number in range(200):
        source.execute(f"UPDATE counter SET n = n + 1 WHERE id = {number % 20 + 1}")
    pipeline.wait_until_ready(TIMEOUT)
    for number in range(50):
        source.execute(f"UPDATE counter SET n = n + 1 WHERE id = {number % 20 + 1}")
    source.catch_up(pipeline)
    assert source.mirrored("counter") == source.rows("counter")


def test_an_error_sets_only_its_table_aside_and_retries_it(source: Source) -> None:
    # It may be retried as often as it likes until the other table has got its row.
    pipeline = source.pipeline(table_error_retry_max_attempts=10_000)
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    broken = True

    def fail(table: str) -> None:
        if broken and table == "public.a":
            raise RuntimeError("the destination has a bad day")

    source.destination.before_write = fail
    source.execute("INSERT INTO a VALUES (1001, 'waits')", "INSERT INTO b VALUES (1, 'goes on')")
    errors: list[TableFailure] = []

    def errored_now() -> bool:
        # Between two attempts the table is errored; during one it is not.
        error = pipeline.status().table("public.a").error
        errors.extend([error] if error else [])
        return bool(errors)

    wait_for(errored_now)
    wait_for(lambda: source.mirrored("b") == source.rows("b"))
    waiting = pipeline.status().table("public.a")
    assert waiting.position == waiting.cursor, "it has not what the journal has"
    assert waiting.pending_bytes > 0
    assert pipeline.status().lag_seconds >= waiting.lag_seconds > 0
    assert errors[0].reason == "the destination has a bad day"
    assert errors[0].retry == "timed"
    assert state(pipeline, "b") == "ready"
    broken = False
    source.catch_up(pipeline)
    assert state(pipeline, "a") == "ready"
    assert source.mirrored("a") == source.rows("a")


@pytest.mark.parametrize("status", ["durable", "accepted"])
def test_a_table_that_fails_again_and_again_waits_for_operator(source: Source, status: str) -> None:
    def fail(table: str) -> None:
        if table == "public.a":
            raise RuntimeError("no")

    pipeline = source.pipeline(table_error_retry_max_attempts=3)
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.destination.status, source.destination.tells_position = status, False
    if status == "durable":
        source.destination.before_write = fail
    else:
        source.destination.before_flush = fail
    source.execute("INSERT INTO a VALUES (1001, 'waits')")
    with pytest.raises(PenstockError, match="the table is errored: no"):
        source.catch_up(pipeline)
    pipeline.shutdown()
    assert source.destination.called("write", "public.a") == 3

    # Somebody mends it, and says so while the pipeline runs.
    again = source.pipeline()
    again.start()
    assert state(again, "a") == "errored"
    source.destination.before_write = source.destination.before_flush = lambda table: None
    Requests(source.config().journal_path).add(Request(oid(source, "a"), Action.RETRY))
    wait_for(lambda: state(again, "a") == "ready")
    source.catch_up(again)
    assert source.mirrored("a") == source.rows("a")


def test_a_timed_retry_fires_after_a_restart_too(source: Source) -> None:
    def fail(table: str) -> None:
        raise RuntimeError("no")

    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.destination.before_write = fail
    source.execute("INSERT INTO a VALUES (1001, 'waits')")
    wait_for(lambda: isinstance(source.store.get_table_state(oid(source, "a")), Errored))
    pipeline.shutdown()
    source.destination.before_write = lambda table: None
    again = source.pipeline()
    again.start()
    source.catch_up(again)
    assert source.mirrored("a") == source.rows("a")


def test_a_copy_that_the_destination_refuses_is_offered_again_without_reading_again(
    source: Source,
) -> None:
    attempts: list[str] = []

    def fail_once(table: str) -> None:
        attempts.append(table)
        if attempts.count("public.a") == 1 and table == "public.a":
            raise ConnectionError("not now")

    source.destination.before_copy = fail_once
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    assert source.mirrored("a") == source.rows("a")
    assert source.destination.called("copy", "public.a") == 2
    assert source.destination.called("drop", "public.a") == 1
    assert not list(Journal(pipeline.config.journal_path).copies_directory.iterdir())


def test_a_copy_that_fails_again_and_again_waits_for_operator(source: Source) -> None:
    def fail(table: str) -> None:
        if table == "public.a":
            raise ConnectionError("not now, nor later")

    pipeline = source.pipeline(table_error_retry_max_attempts=3)
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.destination.before_copy = fail
    asked = Requests(pipeline.config.journal_path)
    asked.add(Request(oid(source, "a"), Action.RESYNC))
    wait_for(lambda: state(pipeline, "a") != "ready")
    with pytest.raises(PenstockError, match="given up after 3 attempts"):
        pipeline.wait_until_ready(TIMEOUT)
    assert source.destination.called("copy", "public.a") == 1 + 3
    assert source.destination.called("drop", "public.a") == 1 + 1, "Postgres was read once"
    pipeline.shutdown()

    # It was to be copied again, and is not; what the destination has is not to be lost for it.
    source.destination.before_copy = lambda table: None
    left_out = {"mode": "except", "tables": ["public.a"]}
    again = source.pipeline(table_sync_copy=left_out)
    asked.add(Request(oid(source, "a"), Action.RETRY))
    again.start()
    wait_for(lambda: not asked.pending())
    with pytest.raises(PenstockError, match="table_sync_copy leaves it out"):
        again.wait_until_ready(TIMEOUT)
    assert source.mirrored("a") == source.rows("a")


def test_a_copy_that_cannot_succeed_sets_only_its_table_aside(source: Source) -> None:
    def refuse(table: str) -> None:
        if table == "public.a":
            raise PenstockError(ErrorKind.DESTINATION_REJECTED, "never", hint="give up")

    source.destination.before_copy = refuse
    pipeline = source.pipeline()
    pipeline.start()
    wait_for(lambda: state(pipeline, "a") == "errored" and state(pipeline, "b") == "ready")
    error = pipeline.status().table("public.a").error
    assert error is not None
    assert (error.reason, error.solution, error.retry) == ("never", "give up", "manual")


def test_a_copy_without_an_answer_is_not_recorded(source: Source) -> None:
    source.destination.status = "nothing"
    pipeline = source.pipeline()
    pipeline.start()
    wait_for(lambda: state(pipeline, "a") == "errored")
    error = pipeline.status().table("public.a").error
    assert error is not None
    assert "answered None" in error.reason
    assert error.retry == "manual"


@pytest.mark.parametrize("status", ["accepted", "future"])
def test_shutdown_makes_accepted_writes_safe_before_it_closes(source: Source, status: str) -> None:
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.destination.status = status
    source.execute("INSERT INTO a VALUES (1001, 'accepted')")
    wait_for(lambda: len(source.destination.batches) == 1)
    for future in source.destination.futures:
        future.set_result(None)
    end = source.destination.batches[-1].end
    pipeline.shutdown()
    cursor = source.store_progress(oid(source, "a"))
    assert cursor is not None
    assert cursor >= end
    assert source.destination.calls[-1] == ("shutdown", "")


def test_the_cursor_waits_for_the_destinations_future(source: Source) -> None:
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.destination.status = "future"
    source.execute("INSERT INTO a VALUES (1001, 'later')")
    wait_for(lambda: len(source.destination.batches) == 1)
    end = source.destination.batches[-1].end
    progress = pipeline.status().table("public.a")
    assert progress.cursor is not None
    assert progress.cursor < end
    source.destination.futures[0].set_result(None)
    source.catch_up(pipeline)
    assert (pipeline.status().table("public.a").cursor or progress.cursor) >= end


def test_a_killed_receiver_is_replaced_and_nothing_is_lost(source: Source) -> None:
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    pid = pipeline.status().receiver.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    source.execute("INSERT INTO a VALUES (1001, 'after the kill')")
    source.catch_up(pipeline)
    assert source.mirrored("a") == source.rows("a")
    assert pipeline.status().receiver.restarts == 1


@pytest.mark.parametrize("closes", [True, False])
def test_a_fatal_error_of_the_receiver_ends_the_pipeline(source: Source, closes: bool) -> None:
    if not closes:
        source.destination.before_shutdown = refuse_to_close
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    slot = pipeline.config.slot_name
    pid = pipeline.status().receiver.pid
    assert pid is not None
    source.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
    wait_for(lambda: _drop_slot(source, slot))
    with pytest.raises(PenstockError) as caught:
        pipeline.wait()
    assert caught.value.kind is ErrorKind.SOURCE_SLOT
    assert not pipeline.status().running
    assert source.destination.calls[-1] == ("shutdown", "")


def refuse_to_close() -> None:
    raise RuntimeError("it does not close")


def test_whoever_waits_returns_when_the_destination_does_not_close(source: Source) -> None:
    source.destination.before_shutdown = refuse_to_close
    pipeline = source.pipeline()
    pipeline.start()
    waiting = Thread(target=pipeline.wait, daemon=True)
    waiting.start()
    with pytest.raises(RuntimeError, match="it does not close"):
        pipeline.shutdown()
    waiting.join(TIMEOUT)
    assert not waiting.is_alive()


def test_a_destination_that_does_not_close_does_not_hide_why_the_start_failed(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise PenstockError(ErrorKind.SOURCE_SLOT, "the cause")

    monkeypatch.setattr("penstock.pipeline.pipeline.Runtime.start", fail)
    source.destination.before_shutdown = refuse_to_close
    with pytest.raises(PenstockError, match="the cause"):
        source.pipeline().start()


def _drop_slot(source: Source, slot: str) -> bool:
    import psycopg

    try:
        source.connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    except psycopg.errors.ObjectInUse:
        source.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        return False
    return True


def test_a_table_added_while_running_is_copied_and_streamed(source: Source) -> None:
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.execute(
        "CREATE TABLE late (id bigint PRIMARY KEY, v text)",
        "INSERT INTO late VALUES (1, 'was there')",
        "ALTER PUBLICATION pub ADD TABLE late",
        "INSERT INTO late VALUES (2, 'came after')",
    )
    source.catch_up(pipeline)
    assert source.mirrored("late") == source.rows("late")
    source.execute("INSERT INTO late VALUES (3, 'streamed')")
    source.catch_up(pipeline)
    assert source.mirrored("late") == source.rows("late")


def test_a_transaction_that_was_writing_when_its_table_was_added_is_not_lost(
    source: Source,
) -> None:
    """What it wrote before the table was published is not in the stream, whenever it commits."""
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.execute("CREATE TABLE late (id bigint PRIMARY KEY, v text)")
    with source.database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO late VALUES (1, 'before it was published')")
        source.execute("ALTER PUBLICATION pub ADD TABLE late")
        wait_for(lambda: any(t.name == "public.late" for t in pipeline.status().tables))
        wait_for(lambda: state(pipeline, "late") == "data_sync")
        source.execute("INSERT INTO late VALUES (2, 'meanwhile')")
        writer.commit()
    pipeline.wait_until_ready(TIMEOUT)
    source.catch_up(pipeline)
    assert source.mirrored("late") == source.rows("late")


def test_a_table_that_leaves_the_publication_is_let_go(source: Source) -> None:
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    table_id = oid(source, "b")
    source.execute("INSERT INTO b VALUES (1, 'kept')")
    source.catch_up(pipeline)
    source.execute("ALTER PUBLICATION pub DROP TABLE b")
    wait_for(lambda: [t.name for t in pipeline.status().tables] == ["public.a"])
    assert source.store.get_table_state(table_id) is None
    assert source.mirrored("b") == [{"id": 1, "v": "kept"}]


def test_the_journal_keeps_only_what_somebody_needs(source: Source) -> None:
    def fail(table: str) -> None:
        if table == "public.b":
            raise PenstockError(ErrorKind.DESTINATION_REJECTED, "no")

    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.destination.before_write = fail
    source.execute("INSERT INTO b VALUES (1, 'set aside')", "INSERT INTO a VALUES (1001, 'x')")
    wait_for(lambda: state(pipeline, "b") == "errored")
    wait_for(lambda: source.mirrored("a") == source.rows("a"))
    journal = Journal(pipeline.config.journal_path)
    kept = journal.segments_directory / str(oid(source, "b"))
    gone = journal.segments_directory / str(oid(source, "a"))
    wait_for(lambda: not list(gone.glob("*")), "the applied segments go")
    assert len(list(kept.glob("*"))) == 1


def test_an_errored_table_that_holds_too_much_is_copied_again(source: Source) -> None:
    def fail(table: str) -> None:
        if table == "public.b":
            raise PenstockError(ErrorKind.DESTINATION_REJECTED, "no")

    pipeline = source.pipeline(journal={"max_table_bytes": 1000})
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    source.destination.before_write = fail
    source.execute("INSERT INTO b SELECT g, md5(g::text) FROM generate_series(1, 1000) g")

    def dropped() -> bool:
        error = pipeline.status().table("public.b").error
        return error is not None and "were dropped" in error.reason

    wait_for(dropped)
    stored = source.store.get_table_state(oid(source, "b"))
    assert isinstance(stored, Errored)
    assert stored.interrupted == Init()
    wait_for(lambda: pipeline.status().table("public.b").pending_bytes == 0)
    source.destination.before_write = lambda table: None
    Requests(source.config().journal_path).add(Request(oid(source, "b"), Action.RETRY))
    wait_for(lambda: state(pipeline, "b") == "ready")
    source.catch_up(pipeline)
    assert source.mirrored("b") == source.rows("b")
    assert source.destination.called("copy", "public.b") == 2


def test_tables_that_are_not_to_be_copied_start_empty(source: Source) -> None:
    copy: dict[str, Any] = {"mode": "except", "tables": ["public.a"]}
    pipeline = source.pipeline(table_sync_copy=copy)
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    assert source.mirrored("a") == []
    assert source.destination.called("copy", "public.a") == 1, "so that the table exists"
    source.execute("INSERT INTO a VALUES (1001, 'from now on')")
    source.catch_up(pipeline)
    assert source.mirrored("a") == [{"id": 1001, "v": "from now on"}]


def test_the_status_can_be_read_from_outside(source: Source, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    pipeline = source.pipeline(store=SqlStore(url))
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    running = read_status(pipeline.config, SqlStore(url, create=False))
    assert running.running
    assert running.ready
    assert [table.name for table in running.tables] == ["public.a", "public.b"]
    assert running.to_json()["tables"][0]["state"] == "ready"
    pipeline.shutdown()
    assert read_status(pipeline.config, SqlStore(url, create=False)).running is False


def test_a_finished_copy_is_never_repeated(source: Source) -> None:
    """Stopped right after the copy was recorded, before its barrier was passed."""
    pipeline = source.pipeline()
    pipeline.start()
    pipeline.wait_until_ready(TIMEOUT)
    pipeline.shutdown()
    history = source.store.history(oid(source, "a"))
    assert [state.name for state in history] == [
        "init",
        "data_sync",
        "finished_copy",
        "sync_done",
        "ready",
    ]
    source.store.open(pipeline.config.id)
    source.store.update_table_state(oid(source, "a"), history[2])
    source.store.close()
    source.execute("UPDATE a SET v = 'later' WHERE id = 1")
    again = source.pipeline()
    again.start()
    again.wait_until_ready(TIMEOUT)
    source.catch_up(again)
    assert source.mirrored("a") == source.rows("a")
    assert source.destination.called("copy", "public.a") == 1

    # Unless the source was promoted meanwhile: then it may lack what the copy has.
    again.shutdown()
    terms = again.config.journal_path / "terms" / f"{oid(source, 'a')}.json"
    terms.write_text(json.dumps(json.loads(terms.read_text()) | {"timeline": 99}))
    source.store.open(pipeline.config.id)
    source.store.update_table_state(oid(source, "a"), history[2])
    source.store.close()
    with source.pipeline() as promoted:
        wait_for(lambda: source.destination.called("copy", "public.a") == 2)
        promoted.wait_until_ready(TIMEOUT)
    assert json.loads(terms.read_text())["timeline"] == 1


def test_a_pipeline_without_a_start_cannot_be_waited_for(source: Source) -> None:
    with pytest.raises(PenstockError, match="was not started"):
        source.pipeline().wait()
