"""What a pipeline needs of the volume that its journal is on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.surroundings import _require_lake, require_writable
from penstock.errors import ErrorKind, PenstockError


@pytest.mark.parametrize("lacking", ["os.link", "fcntl.flock"])
def test_a_volume_without_links_or_locks_holds_a_lake_and_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(f"penstock.cli.surroundings.{lacking}", refuse)
    require_writable(tmp_path / "lake", "lake directory", "destination.root")
    with pytest.raises(PenstockError, match="no hard links or locks") as caught:
        require_writable(tmp_path / "journal", "journal directory", "journal.location")
    assert caught.value.kind is ErrorKind.JOURNAL
    assert str(tmp_path / "journal") in caught.value.message
    assert "journal.location" in (caught.value.hint or "")
    assert not list(tmp_path.iterdir())


def test_a_journal_may_be_in_the_lake(tmp_path: Path) -> None:
    _require_lake(tmp_path, tmp_path / ".penstock" / "journal")
    _require_lake(tmp_path / "journal-lake", tmp_path / "journal")


def test_looking_at_a_volume_leaves_nothing_behind(tmp_path: Path) -> None:
    require_writable(tmp_path / "journal", "journal directory", "journal.location")
    assert not list(tmp_path.iterdir())
