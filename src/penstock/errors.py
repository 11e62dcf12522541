"""One error type for everything a user may see.

Every `PenstockError` says what happened to what (`message`), what to do about it
(`hint`), which table it concerns, and what kind of trouble it is. The kind
decides whether waiting can help: `kind.retryable` is true for trouble that
passes by itself (a lost connection, a timeout, a full disk), false for trouble that
somebody has to mend (bad data, a missing privilege, an unsupported change).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from penstock.schema import Lsn, TableName

_VALUE_LIMIT = 200


class ErrorKind(StrEnum):
    """What sort of trouble it is, as `group.kind`."""

    SOURCE_CONNECTION = "source.connection"
    SOURCE_AUTHENTICATION = "source.authentication"
    SOURCE_PRIVILEGE = "source.privilege"
    SOURCE_CONFIGURATION = "source.configuration"
    SOURCE_SLOT = "source.slot"
    SOURCE_SNAPSHOT = "source.snapshot"
    SOURCE_SCHEMA = "source.schema"
    DATA_UNREPRESENTABLE = "data.unrepresentable"
    DATA_DECODE = "data.decode"
    DESTINATION_CONNECTION = "destination.connection"
    DESTINATION_TIMEOUT = "destination.timeout"
    DESTINATION_AUTHENTICATION = "destination.authentication"
    DESTINATION_SCHEMA = "destination.schema"
    DESTINATION_REJECTED = "destination.rejected"
    JOURNAL = "journal"
    JOURNAL_DISK = "journal.disk"
    STORE = "store"
    CONFIG = "config"
    INVALID_STATE = "invalid_state"
    INTERNAL = "internal"

    @property
    def retryable(self) -> bool:
        """Whether trying again later can help without anybody doing anything."""
        return self in _RETRYABLE


_RETRYABLE = frozenset(
    {
        ErrorKind.SOURCE_CONNECTION,
        ErrorKind.SOURCE_SNAPSHOT,
        ErrorKind.DESTINATION_CONNECTION,
        ErrorKind.DESTINATION_TIMEOUT,
        ErrorKind.JOURNAL_DISK,
        ErrorKind.STORE,
    }
)


class PenstockError(Exception):
    """What happened to what, and what to do about it."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        hint: str | None = None,
        table: TableName | None = None,
        position: Lsn | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint
        self.table = table
        self.position = position

    def __str__(self) -> str:
        where = "".join(
            part
            for part in (
                f"{self.table}: " if self.table else "",
                self.message,
                f" (at {self.position})" if self.position else "",
            )
        )
        return f"{where}\nhint: {self.hint}" if self.hint else where

    def __reduce__(self) -> tuple[object, ...]:
        # Spark's Python workers send exceptions to the driver pickled.
        return (_rebuild, (self.kind, self.message, self.hint, self.table, self.position))


class UnsentValue(PenstockError):
    """An update brought a row into a row filter without its unchanged large values.

    The row comes as an insert. The values are neither in the stream nor at the destination.
    """

    MARK = "penstock: Postgres did not send all values of a new row:"
    """How Spark's error begins that stands for this one."""

    HINT = (
        "copy the table again: `penstock resync` it; with REPLICA IDENTITY FULL the rows that an"
        " update brings into the row filter come whole"
    )

    def __init__(
        self,
        columns: Iterable[str],
        *,
        table: TableName | None = None,
        position: Lsn | None = None,
    ) -> None:
        self.columns = tuple(columns)
        super().__init__(
            ErrorKind.SOURCE_SCHEMA,
            f"Postgres did not send all values of a new row: {', '.join(self.columns)}",
            hint=self.HINT,
            table=table,
            position=position,
        )

    @classmethod
    def found_in(
        cls, error: BaseException, table: TableName | None, position: Lsn | None = None
    ) -> Self | None:
        """This error, if it is what Spark has reported in words of its own."""
        found = re.search(re.escape(cls.MARK) + r" ?(.*?)(?: SQLSTATE|$)", str(error), re.MULTILINE)
        return cls(found[1].split(", "), table=table, position=position) if found else None

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(UnsentValue, table=self.table, position=self.position), (self.columns,))


def _rebuild(
    kind: ErrorKind,
    message: str,
    hint: str | None,
    table: TableName | None,
    position: Lsn | None,
) -> PenstockError:
    return PenstockError(kind, message, hint=hint, table=table, position=position)


DEFECT = "this is a defect of penstock; please report it with what --debug prints"
"""The hint for an exception that nothing expects."""


def cause(error: BaseException) -> str:
    """Return what a foreign exception says, in one line of at most 200 characters.

    Exceptions of Java have their whole stack in their text, and some begin with a title.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        lines = [f"{lines[0]} {lines[1]}"]
    return shorten(lines[0]) if lines else type(error).__name__


def named_cause(error: BaseException) -> str:
    """Return the type of a foreign exception and its cause."""
    said = cause(error)
    name = type(error).__name__
    return name if said == name else f"{name}: {said}"


def shorten(value: str) -> str:
    """Return a row value or a foreign text as an error may contain it: at most 200 characters."""
    return value if len(value) <= _VALUE_LIMIT else value[:_VALUE_LIMIT] + "…"
