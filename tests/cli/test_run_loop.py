"""Whatever ends `penstock run`, its pipeline is shut down before Spark is taken from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from penstock.cli.run import _run
from penstock.cli.signals import StopRequest
from penstock.cli.view import LiveView, View, _Terminal
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline import Pipeline


class FakeStatus:
    error = None

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [],
            "receiver": {"state": "streaming", "reason": None},
            "journal": {"bytes": 0, "end": None},
            "source": {"position": None},
        }


class FakePipeline:
    """One that works until it is shut down; `shutdown` may fail."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._failure = failure

    def start(self) -> None:
        self.calls.append("start")

    def status(self) -> FakeStatus:
        return FakeStatus()

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        self.calls.append("wait")


class RaisingView(View):
    """One that cannot show anything; `before` is done first."""

    def __init__(self, error: BaseException, before: Callable[[], None] = lambda: None) -> None:
        self._error = error
        self._before = before

    def show(self, status: Any) -> None:
        self._before()
        raise self._error


def run(pipeline: FakePipeline, view: View, stop: StopRequest | None = None) -> None:
    _run(cast("Pipeline", pipeline), view, stop or StopRequest("stopping"))


def test_a_terminal_that_is_gone_is_a_request_to_stop() -> None:
    pipeline = FakePipeline()
    run(pipeline, RaisingView(OSError(5, "Input/output error")))
    assert sorted(pipeline.calls) == ["shutdown", "start", "wait"]


def test_a_view_on_a_broken_pipe_does_not_end_the_process() -> None:
    readable, writable = os.pipe()
    file = os.fdopen(writable, "w")
    view = LiveView(_Terminal(file=file, force_terminal=True))
    pipeline = FakePipeline()
    with view:
        os.close(readable)
        run(pipeline, view)
    assert "shutdown" in pipeline.calls
    with suppress(BrokenPipeError):
        file.close()


def test_what_was_not_foreseen_is_raised_after_a_shutdown() -> None:
    pipeline = FakePipeline()
    with pytest.raises(UnicodeError):
        run(pipeline, RaisingView(UnicodeError()))
    assert pipeline.calls == ["start", "shutdown"]


def test_the_first_error_is_raised_and_the_second_logged(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = FakePipeline(PenstockError(ErrorKind.STORE, "the second"))
    with pytest.raises(UnicodeError):
        run(pipeline, RaisingView(UnicodeError()))
    assert "the second" in caplog.text


def test_a_shutdown_that_fails_fails_the_command() -> None:
    stop = StopRequest("stopping")
    pipeline = FakePipeline(PenstockError(ErrorKind.STORE, "not everything was stored"))
    with pytest.raises(PenstockError, match="not everything was stored"):
        run(pipeline, RaisingView(BrokenPipeError(), stop.asked.set), stop)
