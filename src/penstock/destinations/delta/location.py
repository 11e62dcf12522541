"""Where a table's directory is, and what can be done there without Spark.

On a local filesystem, files of a copy are moved into the table's directory
rather than read and written again. Until the first Delta commit that directory
is nobody's table; a note in it says that what lies there is ours, so that a
repeated copy may clear it and nobody else's files are ever touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlparse

from penstock.errors import ErrorKind, PenstockError
from penstock.schema import TableName

if TYPE_CHECKING:
    from penstock.changes.batches import TableRows

_NOTE = "_penstock_copy"


def table_path(name: TableName) -> str:
    """`schema/table`, with everything percent-encoded that a path could misread."""
    return f"{_encoded(name.schema)}/{_encoded(name.name)}"


def _encoded(name: str) -> str:
    text = quote(name, safe="")
    # Hidden to Spark, or somewhere else altogether.
    return f"%{ord(text[0]):02X}{text[1:]}" if text[:1] in ("_", ".") else text


def absolute(root: str | os.PathLike[str]) -> str:
    """A root as Spark and we both understand it: an absolute path, or a URL left alone."""
    text = os.fspath(root)
    parts = urlparse(text)
    if parts.scheme == "file":
        text = unquote(parts.path)
    elif len(parts.scheme) > 1:
        return text.rstrip("/")
    return str(Path(text).expanduser().absolute())


def local(path: str) -> Path | None:
    """The directory at `path` if it is on a filesystem of this machine."""
    return Path(path) if path.startswith("/") else None


def require_writable(root: str) -> None:
    """Make the root directory and try to write there; one clear error if that fails."""
    directory = local(root)
    if directory is None:
        return
    probe = directory / f".penstock-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise PenstockError(
            ErrorKind.DESTINATION_REJECTED,
            f"cannot write to {root}: {error.strerror or error}",
            hint="give this user the right to write there, or choose another root",
        ) from error


def has_commits(directory: Path) -> bool:
    """Whether there is a Delta table, and not only files that may become one."""
    try:
        with os.scandir(directory / "_delta_log") as entries:
            return any(
                entry.name[:1].isdigit() and entry.name.endswith((".json", ".parquet"))
                for entry in entries
            )
    except (FileNotFoundError, NotADirectoryError):
        return False


def clear_litter(directory: Path, table: TableName, pipeline_id: str) -> None:
    """Remove what an interrupted copy left; refuse to remove anything else."""
    for place in (directory.parent, directory):
        if os.path.lexists(place) and not place.is_dir():
            raise PenstockError(
                ErrorKind.DESTINATION_REJECTED,
                f"{place} is not a directory, and {directory} is where the table goes",
                hint=f"move {place} away, and `penstock retry` the table",
                table=table,
            )
    if not directory.exists() or has_commits(directory):
        return
    entries = {entry.name for entry in directory.iterdir()}
    if _NOTE in entries:
        _require_own(directory, table, pipeline_id)
    elif entries and not entries <= {"_delta_log"}:
        raise PenstockError(
            ErrorKind.DESTINATION_REJECTED,
            f"{directory} is not a Delta table and has files that Penstock did not put there",
            hint="move them away, or choose another root",
            table=table,
        )
    shutil.rmtree(directory)


def can_move(files: Sequence[str], directory: Path) -> bool:
    """Whether the files can get into the directory by renaming them."""
    beside = next(parent for parent in directory.parents if parent.exists())
    try:
        return all(Path(file).stat().st_dev == beside.stat().st_dev for file in files)
    except OSError:
        return False


def move_in(rows: TableRows, directory: Path, pipeline_id: str) -> list[Path]:
    """Move a copy's files in; where they are. Killed at any point, `clear_litter` undoes it."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with (directory / _NOTE).open("x") as note:
            note.write(pipeline_id)
    except FileExistsError:
        _require_own(directory, rows.table.name, pipeline_id)
    moved = []
    for number, file in enumerate(rows.files):
        name = f"part-{number:05}-{quote(rows.id, safe='')}.parquet"
        moved.append(Path(file).replace(directory / name))
    return moved


def _require_own(directory: Path, table: TableName, pipeline_id: str) -> None:
    """Raise where the files that are being put into `directory` are another pipeline's."""
    whose = (directory / _NOTE).read_text()
    if whose != pipeline_id:
        raise PenstockError(
            ErrorKind.DESTINATION_REJECTED,
            f"{directory} is where pipeline {whose} puts a table, or tried to",
            hint="give each pipeline a root of its own; or, if that one does not run any more,"
            " remove the directory, and `penstock retry` the table",
            table=table,
        )


def forget_note(directory: Path) -> None:
    (directory / _NOTE).unlink(missing_ok=True)
