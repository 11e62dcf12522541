"""What a check found, for `penstock doctor` and before a start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import ErrorKind, PenstockError


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong (`problem`) with what (`subject`), and what mends it (`remedy`).

    The remedy is the statement to run, wherever a statement mends it; what
    follows `--` in it is advice. `kind` is the kind of error that it would be. `of_tables` says
    that it is about some tables alone, which alone become errored.
    """

    severity: Severity
    subject: str
    problem: str
    remedy: str
    kind: ErrorKind = ErrorKind.SOURCE_CONFIGURATION
    of_tables: bool = False

    def __str__(self) -> str:
        return f"{self.subject}: {self.problem}\n  remedy: {self.remedy}"


def error(
    subject: str, problem: str, remedy: str, kind: ErrorKind = ErrorKind.SOURCE_CONFIGURATION
) -> Finding:
    """The pipeline could not start, or not do what it promises."""
    return Finding(Severity.ERROR, subject, problem, remedy, kind)


def warning(subject: str, problem: str, remedy: str) -> Finding:
    """It can, but somebody should know."""
    return Finding(Severity.WARNING, subject, problem, remedy)


def from_error(subject: str, failure: PenstockError) -> Finding:
    """A check that failed instead of finding something."""
    where = f"{failure.table}: " if failure.table else ""
    return error(subject, where + failure.message, failure.hint or "", failure.kind)


def listed(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)
