"""The supervision of a child process, with children that are small scripts."""

from __future__ import annotations

import errno
import json
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
from penstock.pipeline.receiver_process import ReceiverProcess, ReceiverState, revealed
from penstock.testing.owned_process import is_alive
from penstock.testing.waiting import wait_for

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
    [b"\xff", b"null", b"[]", b"[" * 100_000, b'{"event": []}', b'{"event": {}}', b'{"event": 1}'],
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
    assert "KeyError('unforeseen')" in failure.message
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
        from penstock.testing.waiting import wait_for
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
