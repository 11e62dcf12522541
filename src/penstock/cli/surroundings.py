"""What a pipeline needs around it on this machine, looked at before anything is made.

A slot that is created and then never read makes Postgres keep WAL without end,
so `run` looks at everything else first: Java, the directories it will write to,
the store. Looking leaves no trace; what does not exist yet is fine as long as it
can be made.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.config import FileConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.journal.files import UNFIT


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that must be there; `check` raises a `PenstockError` when it is not."""

    name: str
    check: Callable[[], None]


def requirements(config: FileConfig) -> Iterator[Requirement]:
    """What this configuration needs on this machine, the quick things first."""
    from penstock.spark.session import check_java

    yield Requirement("java", check_java)
    yield Requirement(
        "journal directory",
        lambda: require_writable(config.journal_path, "journal directory", "journal.location"),
    )
    root_setting = str(config.destination.settings.get("root", "./lake"))
    if config.destination.type == "delta" and _is_local(root_setting):
        root = Path(root_setting.removeprefix("file://")).expanduser().resolve()
        yield Requirement(
            "lake directory",
            lambda: _require_lake(root, config.journal_path),
        )
    if config.store.type == "sql":
        url = str(config.store.settings.get("url", "sqlite:///penstock.db"))
        yield Requirement("store", lambda: _require_store(url))


def require_surroundings(config: FileConfig) -> None:
    """Raise for the first thing that is missing."""
    for requirement in requirements(config):
        requirement.check()


def require_receiver_surroundings(config: FileConfig) -> None:
    """Likewise for the receiver, which needs only a journal."""
    require_writable(config.journal_path, "journal directory", "journal.location")


def require_writable(path: Path, what: str, setting: str) -> None:
    """Raise unless files can be made in the directory `path`, or in it once it is made."""
    is_journal = what.startswith("journal")
    kind = ErrorKind.JOURNAL if is_journal else ErrorKind.DESTINATION_REJECTED
    existing = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not existing.is_dir():
        raise PenstockError(
            kind,
            f"the {what} {path} cannot be made: {existing} is not a directory",
            hint=f"set {setting} to a directory, or move {existing} away",
        )
    try:
        # Asking for permissions is not enough: root has them all, also on a
        # read-only or full disk.
        with tempfile.TemporaryDirectory(prefix=".penstock-", dir=existing) as trial:
            if is_journal:
                _require_links_and_locks(Path(trial), path)
    except OSError as error:
        raise PenstockError(
            kind,
            f"the {what} {path} cannot be written: {error.strerror or error}",
            hint=f"make {existing} writable for this user, or set {setting} to another directory",
        ) from error


def _require_lake(root: Path, journal: Path) -> None:
    if root.is_relative_to(journal.resolve()):
        raise PenstockError(
            ErrorKind.CONFIG,
            f"the lake directory {root} is in the journal's, {journal}, which is Penstock's own",
            hint="set destination.root or journal.location to another directory",
        )
    require_writable(root, "lake directory", "destination.root")


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


def _is_local(location: str) -> bool:
    return "://" not in location or location.startswith("file://")


def _require_store(url: str) -> None:
    from sqlalchemy.engine import make_url

    from penstock.stores.database import Database
    from penstock.stores.tables import stored_version

    database = Database(url)
    try:
        if database.exists():
            with database.read("the version") as connection:
                stored_version(connection)
            return
    finally:
        database.close()
    directory = Path(make_url(url).database or "").absolute().parent
    if not directory.is_dir():
        raise PenstockError(
            ErrorKind.STORE,
            f"the store {url} cannot be made: there is no directory {directory}",
            hint=f"create {directory}, or change store.url",
        )
    try:
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise PenstockError(
            ErrorKind.STORE,
            f"the store {url} cannot be made: {error.strerror or error}",
            hint=f"make {directory} writable for this user, or change store.url",
        ) from error
