from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from penstock.config import PgConnection, PipelineConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.failures import Failure, errored, failure_of, run_reporting
from penstock.states import MANUAL, Ready

CONFIG = PipelineConfig(
    id="t",
    publication_name="p",
    pg_connection=PgConnection(),
    table_error_retry_delay_ms=1000,
    table_error_retry_max_delay_ms=5000,
    table_error_retry_max_attempts=4,
)
PASSING = Failure(ErrorKind.DESTINATION_CONNECTION, "no answer", "wait", True, "no answer")


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (PenstockError(ErrorKind.DESTINATION_CONNECTION, "gone"), True),
        (PenstockError(ErrorKind.DATA_UNREPRESENTABLE, "infinity"), False),
        (PenstockError(ErrorKind.SOURCE_PRIVILEGE, "no"), False),
        (psycopg.OperationalError("server closed the connection"), True),
        (TimeoutError("too late"), True),
        (RuntimeError("something of the destination's own"), True),
    ],
)
def test_what_passes_by_itself_is_retried(error: Exception, passing: bool) -> None:
    assert failure_of(error).passing is passing


def test_row_values_do_not_get_into_logs() -> None:
    error = PenstockError(ErrorKind.DATA_UNREPRESENTABLE, "id=1 has the value secret")
    assert "secret" in failure_of(error).reason
    assert "secret" not in failure_of(error).loggable
    assert "secret" not in failure_of(RuntimeError("secret")).loggable


def test_the_reason_is_one_telling_line() -> None:
    error = RuntimeError(
        "An error occurred while calling o1.save.:\njava.io.IOException: full\n\tat"
    )
    assert failure_of(error).reason.endswith("java.io.IOException: full")


def test_delays_grow_to_their_limit_with_jitter() -> None:
    for attempts, seconds in ((1, 1), (2, 2), (3, 4)):
        most = timedelta(seconds=seconds)
        before = datetime.now(UTC)
        state = errored(PASSING, Ready("c"), attempts, CONFIG)
        after = datetime.now(UTC)
        assert state.retry_policy.at is not None
        assert before + 0.75 * most <= state.retry_policy.at <= after + most


def test_after_the_last_attempt_somebody_has_to_look() -> None:
    state = errored(PASSING, Ready("c"), 4, CONFIG)
    assert state.retry_policy == MANUAL
    assert "given up after 4 attempts" in state.reason


def test_an_error_keeps_the_state_that_it_interrupted() -> None:
    assert errored(PASSING, Ready("c"), 1, CONFIG).interrupted == Ready("c")


@pytest.mark.parametrize(
    ("trouble", "kind", "message"),
    [
        (PenstockError(ErrorKind.STORE, "it is away"), ErrorKind.STORE, "it is away"),
        (KeyError("oid"), ErrorKind.INTERNAL, "the clock failed: KeyError: 'oid'"),
    ],
)
def test_what_ends_a_thread_is_reported(trouble: Exception, kind: ErrorKind, message: str) -> None:
    def loop() -> None:
        raise trouble

    failures: list[PenstockError] = []
    run_reporting(loop, "clock", failures.append)
    [failure] = failures
    assert (failure.kind, failure.message) == (kind, message)
