"""Files that survive a crash: written, fsynced, and only then named."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import ErrorKind, PenstockError

UNFIT = (
    "a journal wants a file system where this user may create, hard-link and lock files; SMB, exFAT"
    " and some FUSE mounts allow no links or locks. Mend it, or set journal.location to another"
)
_STAYS = frozenset(
    {
        *(errno.EPERM, errno.EACCES, errno.EROFS),
        *(errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
        *(errno.ENAMETOOLONG, errno.EINVAL),
    }
)


def disk_trouble(error: OSError) -> ErrorKind:
    """Whether waiting can help where a disk refuses to be written, or somebody has to mend it.

    What is not known is waited for: a disk is full, or away, in many ways, and Postgres keeps
    what we cannot write.
    """
    return ErrorKind.JOURNAL if error.errno in _STAYS else ErrorKind.JOURNAL_DISK


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turn what the disk refuses inside into an error, which waits for room where that helps."""
    try:
        yield
    except OSError as error:
        kind = disk_trouble(error)
        wait = (
            "make room on its disk, mount it again, or move it (journal.location);"
            " journal.max_bytes limits what it may take. It is tried again, and Postgres keeps"
            " what is not in it"
        )
        raise PenstockError(
            kind,
            f"the journal {root} cannot be written: {error.strerror or error}",
            hint=wait if kind.retryable else UNFIT,
        ) from error


def sync(path: Path) -> None:
    """Make what is in a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_exclusively(path: Path, text: str) -> None:
    """Create `path` with `text`, durably and whole; FileExistsError if it is there already.

    The link, not a rename, takes the name: a rename would replace a file that
    another process created in between.
    """
    # Its own, whoever else drafts the same: on a volume that containers share, two processes
    # may have one number.
    draft = _draft(path, text, uuid.uuid4().hex)
    try:
        os.link(draft, path)
    finally:
        draft.unlink()
    sync(path.parent)


def replace(path: Path, text: str) -> None:
    """Put `text` at `path` in one step, durably; readers see the old file or the new one."""
    _draft(path, text, str(os.getpid())).replace(path)
    sync(path.parent)


def _draft(path: Path, text: str, whose: str) -> Path:
    draft = path.with_name(f".{path.name}.{whose}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft
