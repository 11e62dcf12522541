"""What a failure means for the table that met it: wait and try again, or wait for an operator.

Every exception that leaves a table's work ends here and becomes an `Errored`
state; no other table notices. Trouble that passes by itself is retried at a time
that is stored with the state, so that it fires after a restart too; the delay
grows with each failure since the last success, with jitter, so that many tables
that met the same trouble do not come back at the same moment. What we do not
know (a destination raised something of its own) counts as passing trouble: after
a few attempts it waits for an operator.

The pipeline's own threads are no table's: what ends one of them fails the pipeline.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg

from penstock.config import PipelineConfig
from penstock.destinations.schema_change import SchemaChange
from penstock.errors import DEFECT, ErrorKind, PenstockError, cause, named_cause
from penstock.postgres.connection import translate
from penstock.schema import Lsn
from penstock.states import MANUAL, Errored, Init, RetryPolicy, StoredState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import time
from threading import Event

logger = logging.getLogger("penstock.pipeline.failures")
_FIRST_STORE_PAUSE, _LONGEST_STORE_PAUSE = 0.2, 30.0
_STORE_PATIENCE = 600.0

_AGAIN = "nothing to do if it passes: it is tried again by itself"
_RETRY = "mend the cause, then `penstock retry` the table, or `penstock resync` it"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as a user shall see it. `loggable` holds no row values."""

    kind: ErrorKind
    reason: str
    solution: str
    passing: bool
    loggable: str


def failure_of(error: BaseException) -> Failure:
    """What went wrong, from whatever was raised."""
    if isinstance(error, psycopg.Error):
        error = translate(error, "talking to Postgres")
    if isinstance(error, PenstockError):
        kind = error.kind
        passing = kind.retryable
        about_data = kind in (ErrorKind.DATA_UNREPRESENTABLE, ErrorKind.DATA_DECODE)
        return Failure(
            kind,
            error.message,
            error.hint or (_AGAIN if passing else _RETRY),
            passing,
            str(kind) if about_data else error.message,
        )
    name = type(error).__name__
    kind = ErrorKind.DESTINATION_TIMEOUT if isinstance(error, TimeoutError) else ErrorKind.INTERNAL
    return Failure(kind, cause(error), _AGAIN, True, name)


def passes(error: BaseException) -> bool:
    """Whether trying again can help."""
    return failure_of(error).passing


def errored(
    failure: Failure, interrupted: StoredState, attempts: int, config: PipelineConfig
) -> Errored:
    """The state of a table that failed; `attempts` counts this failure."""
    if not failure.passing:
        return Errored(failure.reason, failure.solution, MANUAL, interrupted, attempts)
    if attempts >= config.table_error_retry_max_attempts:
        reason = f"{failure.reason} (given up after {attempts} attempts)"
        solution = _RETRY if failure.solution == _AGAIN else failure.solution
        return Errored(reason, solution, MANUAL, interrupted, attempts)
    at = datetime.now(UTC) + timedelta(seconds=retry_delay(attempts, config))
    return Errored(
        failure.reason, failure.solution, RetryPolicy("timed", at), interrupted, attempts
    )


def due(state: Errored) -> bool:
    """Whether it is to be tried again by now."""
    retry = state.retry_policy
    return retry.kind == "timed" and retry.at is not None and retry.at <= datetime.now(UTC)


def without_changes(state: Errored, end: Lsn, why: str) -> Errored:
    """The state of a table that was errored for so long that its changes were given up."""
    return Errored(
        f"{state.reason}; its changes up to {end} were dropped, because {why}",
        f"{state.solution}; when it is retried, the table is copied again",
        state.retry_policy,
        Init(),
        state.attempts,
    )


def left_out_of_copies(change: SchemaChange) -> PenstockError:
    """A change that only another copy brings, of a table that must not be copied."""
    return PenstockError(
        ErrorKind.SOURCE_SCHEMA,
        f"the table changed ({change}), which takes another copy to follow, and"
        " table_sync_copy leaves the table out",
        hint="let table_sync_copy include the table, start again and `penstock retry` it",
        table=change.new.name,
        position=change.new.version,
    )


def copied_in_vain(change: SchemaChange) -> PenstockError:
    """A copy that was made after the change, and still does not have it."""
    return PenstockError(
        ErrorKind.INTERNAL,
        f"the table was copied again because of a change ({change}), which the copy lacks",
        hint="this is a defect of penstock; `penstock resync` the table, and report it",
    )


def run_reporting(
    loop: Callable[[], None], name: str, on_failure: Callable[[PenstockError], None]
) -> None:
    """Run a thread's loop; `on_failure` gets what ends it. Nobody would miss the thread."""
    try:
        loop()
    except PenstockError as error:
        on_failure(error)
    except Exception as error:
        logger.exception("%s failed", name)
        message = f"the {name} failed: {named_cause(error)}"
        on_failure(PenstockError(ErrorKind.INTERNAL, message, hint=DEFECT))


def retry_delay(attempts: int, config: PipelineConfig) -> float:
    """How many seconds to wait after so many failures since the last success."""
    grown = config.table_error_retry_delay_ms * 2.0 ** (attempts - 1)
    most = config.table_error_retry_max_delay_ms
    return min(grown, most) * random.uniform(0.75, 1.0) / 1000


def require_spark(spark: SparkSession) -> None:
    """When Spark itself is gone, that is no table's failure."""
    try:
        spark.sql("SELECT 1").collect()
    except Exception as error:
        raise PenstockError(
            ErrorKind.INTERNAL,
            "the Spark session does not answer any more",
            hint="look at the driver's log; if it ran out of memory, raise spark.driver.memory;"
            " then start the pipeline again: nothing is lost",
        ) from error


class StoreOutage:
    """The failures of the store that one table has met since its last success.

    The store may be on the same server as the source, so it may restart or fail over as the
    source does. What the table was doing is repeated after a pause, as after a restart.
    `stopping` ends every pause.
    """

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping
        self._began: float | None = None
        self._pause = _FIRST_STORE_PAUSE

    def bear(self, error: PenstockError, table: str) -> None:
        """Pause, for longer each time; raises `error` when this has been going on for too long."""
        now = time.monotonic()
        if self._began is None:
            self._began = now
        elif now - self._began >= _STORE_PATIENCE:
            raise error
        logger.warning(
            "store failed, trying again",
            extra={"table": table, "reason": error.message, "pause": self._pause},
        )
        self._stopping.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_STORE_PAUSE)

    def over(self) -> None:
        """The store took what it was given."""
        self._began, self._pause = None, _FIRST_STORE_PAUSE
