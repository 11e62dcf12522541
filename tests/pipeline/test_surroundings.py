"""What a pipeline needs of the volume that its journal is on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.config import PipelineConfig
from penstock.destinations import DeltaDestination
from penstock.errors import ErrorKind, PenstockError
from penstock.pipeline.surroundings import _require_outside, journal_requirement


def config(journal: Path) -> PipelineConfig:
    return PipelineConfig(
        id="x", publication_name="p", pg_connection={}, journal={"location": str(journal)}
    )


@pytest.mark.parametrize("lacking", ["os.link", "fcntl.flock"])
def test_a_volume_without_links_or_locks_holds_a_lake_and_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(f"penstock.pipeline.surroundings.{lacking}", refuse)
    DeltaDestination(tmp_path / "lake").preflight()
    journal = journal_requirement(config(tmp_path / "journal"))
    with pytest.raises(PenstockError, match="no hard links or locks") as caught:
        journal.require()
    assert caught.value.kind is ErrorKind.JOURNAL
    assert str(tmp_path / "journal") in caught.value.message
    assert "journal.location" in (caught.value.hint or "")
    assert [finding.subject for finding in journal.findings()] == ["journal directory"]
    assert not list(tmp_path.iterdir())


def test_a_journal_may_be_in_the_lake(tmp_path: Path) -> None:
    _require_outside(tmp_path, tmp_path / ".penstock" / "journal")
    _require_outside(tmp_path / "journal-lake", tmp_path / "journal")


def test_looking_at_a_volume_leaves_nothing_behind(tmp_path: Path) -> None:
    journal_requirement(config(tmp_path / "journal")).require()
    assert not list(tmp_path.iterdir())
