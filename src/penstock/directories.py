"""Check that a directory can be written, without a trace."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from penstock.errors import ErrorKind, PenstockError


def require_writable(
    path: Path,
    what: str,
    setting: str,
    kind: ErrorKind,
    trial: Callable[[Path], None] | None = None,
) -> None:
    """Raise unless files can be created in the directory `path`, or in it once it is created.

    The error is of `kind`, calls the directory `what` and names the `setting` to change. `trial`
    does more in a temporary directory there, and raises if that does not work.
    """
    existing = next(each for each in (path, *path.parents) if os.path.lexists(each))
    if not existing.is_dir():
        raise PenstockError(
            kind,
            f"the {what} {path} cannot be created: {existing} is not a directory",
            hint=f"set {setting} to a directory, or move {existing} away",
        )
    try:
        # To look at permissions is not enough: root has them all, also on a read-only or
        # full disk.
        with tempfile.TemporaryDirectory(prefix=".penstock-", dir=existing) as directory:
            if trial is not None:
                trial(Path(directory))
    except OSError as error:
        raise PenstockError(
            kind,
            f"the {what} {path} cannot be written: {error.strerror or error}",
            hint=f"make {existing} writable for this user, or set {setting} to another directory",
        ) from error
