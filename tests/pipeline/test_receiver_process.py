"""The supervision of a child process, with children that are small scripts."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.config import JournalConfig, PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.outbox import LogEvents, Outbox
from penstock.pipeline.receiver_process import ReceiverProcess, ReceiverState, revealed
from penstock.testing.owned_process import is_alive
from penstock.testing.postgres import wait_for

STREAM_UNTIL_TOLD = """
    import json, os, signal, sys
    config = json.loads(sys.stdin.readline())
    print(json.dumps({"event": "streaming"}), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.stdin.read()
"""

Supervise = Callable[[str], ReceiverProcess]


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    return PipelineConfig(
        id="shop",
        publication_name="p",
        pg_connection=PgConnection(host="nowhere", password="hush"),
        journal=JournalConfig(location=str(tmp_path / "journal")),
    )


@pytest.fixture
def failures() -> list[PenstockError]:
    return []


@pytest.fixture
def supervise(
    config: PipelineConfig, failures: list[PenstockError], tmp_path: Path
) -> Iterator[Supervise]:
    started: list[ReceiverProcess] = []

    def start(script: str) -> ReceiverProcess:
        path = tmp_path / "child.py"
        path.write_text(textwrap.dedent(script))
        process = ReceiverProcess(config, failures.append, (sys.executable, str(path)))
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.stop()


def streaming(process: ReceiverProcess) -> bool:
    return process.report.state is ReceiverState.STREAMING


def test_it_streams_and_stops_when_told(
    supervise: Supervise, failures: list[PenstockError]
) -> None:
    process = supervise(STREAM_UNTIL_TOLD)
    wait_for(lambda: streaming(process))
    pid = process.report.pid
    assert pid is not None
    process.stop()
    assert process.report.state is ReceiverState.STOPPED
    assert not psutil.pid_exists(pid)
    assert not failures


def test_a_killed_receiver_is_started_again(
    supervise: Supervise, failures: list[PenstockError]
) -> None:
    process = supervise(STREAM_UNTIL_TOLD)
    wait_for(lambda: streaming(process))
    first = process.report.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: streaming(process) and process.report.pid not in (None, first))
    assert process.report.restarts == 1
    assert not failures


def test_a_fatal_error_fails_the_pipeline_with_it(
    supervise: Supervise, failures: list[PenstockError]
) -> None:
    process = supervise("""
        import json, sys
        print(json.dumps({"event": "error", "kind": "source.slot", "message": "the slot is lost",
                          "hint": "resync"}), flush=True)
        sys.exit(1)
    """)
    wait_for(lambda: bool(failures))
    assert failures[0].kind is ErrorKind.SOURCE_SLOT
    assert failures[0].message == "the slot is lost"
    assert failures[0].hint == "resync"
    assert process.report.state is ReceiverState.FAILED
    assert process.report.restarts == 0


def test_one_that_never_streams_is_given_up(
    supervise: Supervise, failures: list[PenstockError]
) -> None:
    supervise("raise SystemExit(3)")
    wait_for(lambda: bool(failures))
    assert failures[0].kind is ErrorKind.INTERNAL
    assert "exit code 3" in failures[0].message


def test_one_that_cannot_be_started_is_tried_again(
    supervise: Supervise, failures: list[PenstockError], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = refuse_processes(monkeypatch, times=2)
    process = supervise(STREAM_UNTIL_TOLD)
    wait_for(lambda: streaming(process))
    assert len(refusals) == process.report.restarts == 2
    assert not failures


def test_one_that_never_can_be_started_is_given_up(
    supervise: Supervise, failures: list[PenstockError], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_processes(monkeypatch, times=100)
    process = supervise(STREAM_UNTIL_TOLD)
    wait_for(lambda: bool(failures))
    assert os.strerror(errno.EAGAIN) in failures[0].message
    assert process.report.state is ReceiverState.FAILED


def refuse_processes(monkeypatch: pytest.MonkeyPatch, times: int) -> list[OSError]:
    """Have the system give no process for that many times; the refusals so far."""
    refusals: list[OSError] = []

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        if len(refusals) < times:
            refusals.append(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
            raise refusals[-1]
        return started(*arguments, **options)

    started = subprocess.Popen
    monkeypatch.setattr("penstock.pipeline.receiver_process.subprocess.Popen", popen)
    return refusals


@pytest.mark.parametrize(
    "line",
    [
        *(b"\xff", b"null", b"[]", b"[" * 100_000, b"x" * 3_000_000),
        *(b'{"event": []}', b'{"event": {}}', b'{"event": 1}'),
    ],
    ids=lambda line: line.decode(errors="replace")[:20],
)
def test_what_is_no_event_ends_nothing(
    supervise: Supervise,
    failures: list[PenstockError],
    line: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = supervise(f"""
        import sys
        for line in (b'{{"event": "streaming"}}', {line!r}, b'{{"event": "paused"}}'):
            sys.stdout.buffer.write(line + b"\\n")
        sys.stdout.flush()
        sys.stdin.read()
    """)
    wait_for(lambda: process.report.state is ReceiverState.PAUSED, limit=30)
    assert "no event" in caplog.text
    assert process.report.restarts == 0
    assert not failures


def test_what_the_receiver_logs_is_logged_here(
    config: PipelineConfig,
    failures: list[PenstockError],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The real one, which finds no server."""
    nowhere = PgConnection(host=str(config.journal_path))
    process = ReceiverProcess(config.model_copy(update={"pg_connection": nowhere}), failures.append)
    process.start()
    try:
        wait_for(lambda: "receiving interrupted" in caplog.messages)
    finally:
        process.stop()
    record = next(each for each in caplog.records if each.message == "receiving interrupted")
    assert (record.name, record.levelname) == ("penstock.journal.receiver", "WARNING")
    assert str(config.journal_path) in vars(record)["reason"]
    assert "interrupted" not in capfd.readouterr().err
    assert not failures


def test_log_events_keep_name_level_and_fields(
    supervise: Supervise, failures: list[PenstockError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "penstock.quiet")
    caplog.set_level("DEBUG", "penstock")
    process = supervise("""
        import json, sys
        def log(**fields):
            print(json.dumps({"event": "log", "extra": {}, **fields}), flush=True)
        log(logger="penstock.journal.x", level=10, message="100 %s", stack="Traceback",
            extra={"level_given": int(sys.argv[1]), "name": "mine", "exc_info": 1})
        log(logger="penstock.quiet", level=30, message="unheard")
        log(logger=None, level="high", message=1)
        log(logger="penstock.journal.x", level=20, message="no fields", extra=[])
        print(json.dumps({"event": "paused"}), flush=True)
        sys.stdin.read()
    """)
    wait_for(lambda: process.report.state is ReceiverState.PAUSED)
    [record] = [each for each in caplog.records if each.name == "penstock.journal.x"]
    assert (record.getMessage(), record.levelname) == ("100 %s", "DEBUG")
    assert vars(record)["level_given"] == logging.DEBUG
    assert (record.exc_info, record.exc_text) == (None, "Traceback")
    assert "unheard" not in caplog.messages
    assert caplog.messages.count("receiver logged something that is no record") == 2
    assert process.report.restarts == 0
    assert not failures


def test_the_last_words_of_one_that_dies_are_in_the_error(
    supervise: Supervise, failures: list[PenstockError], caplog: pytest.LogCaptureFixture
) -> None:
    supervise("""
        import sys
        sys.stderr.buffer.write(b"no text: \\xff\\n")
        raise LookupError("nothing\\nfound")
    """)
    wait_for(lambda: bool(failures))
    assert failures[0].message.endswith("exit code 1: LookupError: nothing")
    said = {vars(each).get("line") for each in caplog.records}
    assert {"no text: \ufffd", "LookupError: nothing", "found"} <= said


def test_a_parent_that_does_not_read_blocks_nobody_who_logs() -> None:
    readable, writable = os.pipe()
    gone: list[bool] = []
    outbox = Outbox(writable, on_gone=lambda: gone.append(True))
    handler = LogEvents(outbox)
    for _ in range(5000):
        handler.handle(logging.makeLogRecord({"msg": "x" * 10_000, "set": {1}, "name": "n"}))
    outbox.put({"event": "paused"})
    with os.fdopen(readable) as lines:
        first = json.loads(lines.readline())
        assert first["extra"] == {"set": "{1}"}
        assert len(first["message"]) < 10_000
        logged = [first]
        while (event := json.loads(lines.readline()))["event"] == "log":
            logged.append(event)
        handler.handle(logging.makeLogRecord({"msg": "again", "name": "n"}))
        last = json.loads(lines.readline())
        # How many wait when is chance: the one who writes may have got to work late.
        left_out = sum(event["extra"].get("left_out", 0) for event in (*logged, last))
        assert len(logged) < 2000
        assert len(logged) + left_out == 5000
    handler.handle(logging.makeLogRecord({"msg": "to nobody", "name": "n"}))
    outbox.close()
    assert gone == [True]
    os.close(writable)


def test_a_supervision_that_fails_fails_the_pipeline(
    supervise: Supervise, failures: list[PenstockError], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int | None] = []

    def fail(process: ReceiverProcess, line: str) -> None:
        pids.append(process.report.pid)
        raise KeyError("unforeseen")

    monkeypatch.setattr(ReceiverProcess, "_take", fail)
    process = supervise(STREAM_UNTIL_TOLD)
    wait_for(lambda: bool(failures), limit=30)
    [failure], [pid] = failures, pids
    assert failure.kind is ErrorKind.INTERNAL
    assert "KeyError: 'unforeseen'" in failure.message
    assert process.report.state is ReceiverState.FAILED
    assert pid is not None
    assert not psutil.pid_exists(pid), "a receiver that nobody listens to"


def test_events_show_in_the_report(supervise: Supervise) -> None:
    process = supervise("""
        import json, sys
        print("not an event", flush=True)
        print(json.dumps({"event": "reconnecting", "reason": "server closed"}), flush=True)
        sys.stdin.read()
    """)
    wait_for(lambda: process.report.state is ReceiverState.RECONNECTING)
    assert process.report.reason == "server closed"
    assert process.settled


def test_the_secret_goes_through_standard_input_alone(supervise: Supervise, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    process = supervise(f"""
        import json, os, sys
        line = sys.stdin.readline()
        open({str(seen)!r} + ".new", "w").write(
            json.dumps([json.loads(line), sys.argv, dict(os.environ)]))
        os.rename({str(seen)!r} + ".new", {str(seen)!r})
        print(json.dumps({{"event": "streaming"}}), flush=True)
        sys.stdin.read()
    """)
    wait_for(lambda: streaming(process))
    sent, arguments, environment = json.loads(seen.read_text())
    assert sent["pg_connection"]["password"] == "hush"
    assert "hush" not in str(arguments)
    assert "hush" not in str(environment)


def test_the_child_gets_a_configuration_it_can_read(config: PipelineConfig) -> None:
    text = json.dumps(revealed(config))
    again = PipelineConfig.model_validate_json(text)
    assert again == config.model_copy(
        update={"journal": JournalConfig(location=str(config.journal_path))}
    )
    assert "connect_timeout" not in again.pg_connection.model_fields_set, "it may be in the URI"


def test_the_child_sees_the_end_of_its_input_when_its_parent_dies(tmp_path: Path) -> None:
    """However suddenly: the parent here is killed."""
    child = tmp_path / "child.py"
    child.write_text(textwrap.dedent(STREAM_UNTIL_TOLD))
    parent = tmp_path / "parent.py"
    parent.write_text(
        textwrap.dedent(f"""
        import signal, sys
        from penstock.config import PgConnection, PipelineConfig
        from penstock.pipeline.receiver_process import ReceiverProcess
        from penstock.testing.postgres import wait_for
        config = PipelineConfig(id="x", publication_name="p", pg_connection=PgConnection())
        process = ReceiverProcess(config, print, (sys.executable, {str(child)!r}))
        process.start()
        wait_for(lambda: process.settled)
        print(process.report.pid, flush=True)
        signal.pause()
        """)
    )
    with psutil.Popen([sys.executable, str(parent)], stdout=-1, text=True) as owner:
        pid = int(owner.stdout.readline())
        receiver = psutil.Process(pid)
        owner.kill()
    wait_for(lambda: not is_alive(receiver))
