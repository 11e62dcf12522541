"""Files that two writers make at the same time, on a volume that they share; and bad volumes."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from penstock.errors import ErrorKind, PenstockError
from penstock.journal.files import create_exclusively, writing
from penstock.journal.journal import JournalOwner
from penstock.journal.lock import ReceiverLock
from penstock.journal.writer import JournalWriter
from penstock.schema import Lsn


def test_who_takes_the_name_finds_its_own_text_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same process id, as first processes of two containers have."""
    path = tmp_path / "0000000042.json"
    link = os.link
    drafts: list[Path] = []

    def linked(draft: Path, target: Path) -> None:
        drafts.append(draft)
        if len(drafts) == 1:
            # The second has its draft written when the first takes the name.
            with pytest.raises(FileExistsError):
                create_exclusively(path, "of the second")
            return
        link(drafts[0], target)
        assert path.read_text() == "of the first"
        link(draft, target)

    monkeypatch.setattr("penstock.journal.files.os.link", linked)
    create_exclusively(path, "of the first")
    assert path.read_text() == "of the first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_of_a_writer_that_died_is_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path / "journal")
    writer.claim(JournalOwner("slot", "1", "db"))
    writer.append(Lsn(10), start=Lsn(10))

    def die(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr("penstock.journal.files.os.fsync", die)
        with pytest.raises(KeyboardInterrupt):
            writer.append(Lsn(20))
    names = {path.name for path in writer.manifests_directory.iterdir()}
    assert len(names) == 2
    assert writer.remove_litter() == 1
    assert [path.suffix for path in writer.manifests_directory.iterdir()] == [".json"]


@pytest.mark.parametrize(
    "code",
    [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOENT, errno.ESTALE, errno.ETIMEDOUT],
)
def test_a_disk_that_is_full_or_away_is_waited_for(tmp_path: Path, code: int) -> None:
    with pytest.raises(PenstockError) as caught, writing(tmp_path):
        raise OSError(code, os.strerror(code))
    assert caught.value.kind is ErrorKind.JOURNAL_DISK
    assert "make room" in (caught.value.hint or "")


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EROFS, errno.EACCES])
def test_a_disk_that_lacks_something_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def link(draft: Path, path: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("penstock.journal.files.os.link", link)
    with pytest.raises(PenstockError) as caught, writing(tmp_path):
        JournalWriter(tmp_path).claim(JournalOwner("slot", "1", "db"))
    assert caught.value.kind is ErrorKind.JOURNAL
    assert os.strerror(code) in caught.value.message
    assert "hard-link" in (caught.value.hint or "")
    assert "make room" not in (caught.value.hint or "")


def test_a_volume_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(PenstockError, match=r"receiver\.lock") as caught,
        ReceiverLock(tmp_path, threading.Event()),
    ):
        pass
    assert caught.value.kind is ErrorKind.JOURNAL
    assert "journal.location" in (caught.value.hint or "")
