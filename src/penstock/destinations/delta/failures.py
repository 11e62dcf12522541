"""What Spark and Delta throw, said in our words."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.destinations.delta.ownership import ONE_DRIVER
from penstock.destinations.delta.session import PACKAGE
from penstock.destinations.delta.statements import LOST_VALUE
from penstock.errors import ErrorKind, PenstockError, UnsentValue, shorten
from penstock.schema import Lsn, TableName

logger = logging.getLogger("penstock.destinations.delta")

_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|Class \S*FileSystem not found")
_FILE_SYSTEM_HINT = (
    "give Spark its package and credentials: for s3a:// (and not s3://),"
    f" spark.jars.packages: {PACKAGE},org.apache.hadoop:hadoop-aws:3.4.2,"
    " spark.hadoop.fs.s3a.access.key and spark.hadoop.fs.s3a.secret.key"
)

_DENIED = re.compile(
    r"Permission denied|AccessDenied|Read-only file system|Mkdirs failed"
    r"|AccessControlException|PERMISSION_DENIED|Not a directory",
    re.IGNORECASE,
)
_UNAUTHENTICATED = re.compile(
    r"InvalidAccessKeyId|NoAuthWithAWS|Unable to load .*credentials|\b401 Unauthorized",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"UnknownHostException|ConnectException|Connection refused|Connection reset"
    r"|SocketTimeoutException|No route to host|SlowDown|\b503\b",
    re.IGNORECASE,
)
_SLOW = re.compile(r"Could not execute broadcast in|TimeoutException", re.IGNORECASE)
_LOST = re.compile(
    r"ExecutorLostFailure|FetchFailed|CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND|OutOfMemoryError"
)
_STOPPED = re.compile(
    r"No active or default Spark session|stopped SparkContext|SparkContext was shut down"
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)


@contextmanager
def explained(table: TableName, path: str, position: Lsn | None = None) -> Iterator[None]:
    """Turn what goes wrong in here into a `PenstockError` about `table`."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise explain(error, table, path, position) from error


@contextmanager
def reaching(root: str) -> Iterator[None]:
    """Turn what is wrong with a root's storage, as long as nobody mends it, into an error."""
    try:
        yield
    except Exception as error:
        told = explain(error, None, root)
        if not told.kind.retryable:
            raise told from error
        # It may pass. The tables will be tried again, and the source need not wait for it.
        logger.warning("the destination cannot be reached yet", extra={"reason": told.message})


def explain(
    error: Exception, table: TableName | None, path: str, position: Lsn | None = None
) -> PenstockError:
    if (unsent := UnsentValue.found_in(error, table, position)) is not None:
        return unsent
    kind, message, hint = _judge(error, path)
    return PenstockError(kind, message, hint=hint, table=table, position=position)


def _judge(error: Exception, path: str) -> tuple[ErrorKind, str, str]:
    text = str(error)
    cause = shorten(first_line(text))
    if is_gone(error) or _STOPPED.search(text):
        return (
            ErrorKind.INTERNAL,
            f"Spark's driver ended while {path} was written: {cause}",
            "its log says why; if it ran out of memory, raise spark.driver.memory",
        )
    if LOST_VALUE in text:
        return (
            ErrorKind.DESTINATION_REJECTED,
            f"{path} lacks a row whose large values Postgres did not resend with its update",
            "copy the table again: `penstock resync` it",
        )
    if is_fenced(error):
        return (
            ErrorKind.DESTINATION_REJECTED,
            f"another driver writes the same table, {path}",
            ONE_DRIVER,
        )
    if is_conflict(error):
        return (
            ErrorKind.DESTINATION_TIMEOUT,
            f"somebody else kept changing {path} while a batch was written: {cause}",
            "leave the table to Penstock, or change it while the pipeline is stopped",
        )
    if _NO_FILE_SYSTEM.search(text):
        return (
            ErrorKind.DESTINATION_REJECTED,
            f"Spark has no file system for {path}: {cause}",
            _FILE_SYSTEM_HINT,
        )
    if _DENIED.search(text):
        return (
            ErrorKind.DESTINATION_REJECTED,
            f"cannot write to {path}: {cause}",
            "give the user that runs Spark the right to write there, or choose another root",
        )
    if _FULL.search(text):
        return (
            ErrorKind.DESTINATION_CONNECTION,
            f"no space left for {path}",
            "make room; the table goes on by itself afterwards",
        )
    if _UNAUTHENTICATED.search(text):
        return (
            ErrorKind.DESTINATION_AUTHENTICATION,
            f"the storage of {path} refuses our credentials: {cause}",
            "set them in the Spark session's Hadoop configuration",
        )
    if _UNREACHABLE.search(text):
        return (
            ErrorKind.DESTINATION_CONNECTION,
            f"the storage of {path} cannot be reached: {cause}",
            "look at the network and at the storage; the table is tried again",
        )
    if _SLOW.search(text):
        return (
            ErrorKind.DESTINATION_TIMEOUT,
            f"Spark took too long to write {path}: {cause}",
            "give Spark more processors or memory; the table is tried again",
        )
    if _LOST.search(text):
        return (
            ErrorKind.DESTINATION_TIMEOUT,
            f"Spark lost a part of its work for {path}: {cause}",
            "the table is tried again; if it comes again, give Spark's executors more memory",
        )
    return (
        ErrorKind.DESTINATION_REJECTED,
        f"Delta refused to write {path}: {cause}",
        "mend what it says, then retry the table; if nothing helps, resync it",
    )


def first_line(text: str) -> str:
    """What an error says first that is meant for people: not whose call it was, nor where."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = re.search(r"\[[A-Z][A-Z_0-9.]+\] .+", text)
    if telling:
        return telling[0].strip()
    lines = [line for line in lines if not line.startswith("An error occurred while calling")]
    return lines[0].removeprefix(": ") if lines else "no reason given"


def is_gone(error: Exception) -> bool:
    """Whether there is no JVM any more to tell what happened.

    Storage is reached from the JVM alone, so a connection that Python itself misses is the JVM's.
    """
    return isinstance(error, ConnectionError) or type(error).__name__ in (
        "Py4JError",
        "Py4JNetworkError",
    )


def is_fenced(error: Exception) -> bool:
    """Whether another driver committed under our fence at the same time."""
    return "ConcurrentTransactionException" in _names(error)


def is_conflict(error: Exception) -> bool:
    """Whether another commit came in between, so that trying again makes sense."""
    names = _names(error)
    return not is_fenced(error) and bool(
        re.search(r"Concurrent\w+Exception|(Metadata|Protocol)ChangedException", names)
    )


def _names(error: Exception) -> str:
    # By name, since Delta's Python classes exist only where its package patched Spark's.
    return f"{type(error).__name__} {str(error)[:500]} {_error_class(error)}"


def _error_class(error: Exception) -> str:
    getter = getattr(error, "getCondition", None)
    return str(getter()) if callable(getter) else ""
