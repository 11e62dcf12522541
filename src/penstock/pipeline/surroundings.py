"""What a pipeline needs on this machine, checked before anything is created.

A slot that is created and then never read makes Postgres keep WAL without end, so `run` checks
everything else first: Java, the journal's directory, the destination, the store. A check leaves no
trace. A directory that does not exist is fine as long as it can be created.

What a destination or a store needs, it knows itself: its method `preflight` returns findings, or
raises a `PenstockError`. A store need not have one.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config import PipelineConfig
from penstock.directories import require_writable
from penstock.errors import ErrorKind, PenstockError
from penstock.findings import Finding, Severity, from_error
from penstock.journal.files import UNFIT

logger = logging.getLogger("penstock.preflight")


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that a pipeline needs. `check` returns what is wrong with it, or raises it."""

    name: str
    check: Callable[[], Iterable[Finding] | None]

    def findings(self) -> list[Finding]:
        """Return everything that is wrong."""
        try:
            return list(self.check() or ())
        except PenstockError as error:
            return [from_error(self.name, error)]

    def require(self) -> None:
        """Raise the first error; log the warnings."""
        for finding in self.check() or ():
            if finding.severity is Severity.ERROR:
                message = f"{finding.subject}: {finding.problem}"
                raise PenstockError(finding.kind, message, hint=finding.remedy)
            logger.warning("%s: %s", finding.subject, finding.problem)


def requirements(config: PipelineConfig, store: Any, destination: Any) -> Iterator[Requirement]:
    """Yield what a pipeline of these parts needs, the quick checks first."""
    from penstock.spark.session import check_java

    yield Requirement("java", check_java)
    yield journal_requirement(config)
    yield Requirement("destination", lambda: _check_destination(destination, config.journal_path))
    if hasattr(store, "preflight"):
        yield Requirement("store", store.preflight)


def journal_requirement(config: PipelineConfig) -> Requirement:
    """Return what the receiver needs: a directory for the journal, with hard links and locks."""
    path = config.journal_path
    return Requirement(
        "journal directory",
        lambda: require_writable(
            path,
            "journal directory",
            "journal.location",
            ErrorKind.JOURNAL,
            lambda trial: _require_links_and_locks(trial, path),
        ),
    )


def _check_destination(destination: Any, journal: Path) -> Iterable[Finding]:
    root = getattr(destination, "root", None)
    if isinstance(root, str) and "://" not in root:
        _require_outside(Path(root).resolve(), journal)
    return destination.preflight() or ()


def _require_outside(root: Path, journal: Path) -> None:
    if root.is_relative_to(journal.resolve()):
        raise PenstockError(
            ErrorKind.CONFIG,
            f"the destination's directory {root} is in the journal's, {journal}, in which only"
            " Penstock may write",
            hint="set destination.root or journal.location to another directory",
        )


def _require_links_and_locks(trial: Path, journal: Path) -> None:
    file = trial / "file"
    file.touch()
    try:
        os.link(file, trial / "link")
        with file.open("r+") as locked:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise PenstockError(
            ErrorKind.JOURNAL,
            f"the disk of the journal directory {journal} has no hard links or locks:"
            f" {error.strerror or error}",
            hint=UNFIT,
        ) from error
