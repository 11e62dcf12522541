"""Commits that outlive the machine, on a local filesystem.

Spark closes its files, and Delta names a commit, without waiting for the disk. After a power
failure a commit that had counted could be gone, or name files that are empty, while our cursor,
which is on disk, is behind it and the journal has let its changes go: a gap that nobody sees. So
before a write counts, its commits are synced, with every file that they add.

On object stores, what was written is durable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from uuid import UUID

from penstock.destinations.delta import location
from penstock.destinations.delta.log import versions
from penstock.journal.files import sync

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20
_LAST_COMMITS = 8


class Durability:
    """Which commits of which tables have been synced. One thread at a time writes a table."""

    def __init__(self) -> None:
        self._synced: dict[Path, int] = {}

    @contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """What is committed to the table at `path` within is on disk afterwards."""
        directory = location.local(path)
        if directory is None:
            yield
            return
        known = self._synced.get(directory, -1)
        if known < 0 or not _commit(directory, known).exists():
            # Who wrote before us may have died before the last ones were synced. Of those, the
            # log may have fewer: Delta removes what is older than a checkpoint and a day.
            last = versions(directory)[-_LAST_COMMITS:]
            self._synced[directory] = last[0] - 1 if last else -1
        yield
        self._synced[directory] = _sync_behind(directory, self._synced[directory])


def _sync_behind(directory: Path, version: int) -> int:
    """Sync the commits behind `version`; the last of them."""
    files: set[Path] = set()
    while (commit := _commit(directory, version + 1)).exists():
        version += 1
        files |= {commit, *_added(directory, commit)}
        checkpoint = commit.with_suffix(".checkpoint.parquet")
        if checkpoint.exists():
            files |= {checkpoint, commit.with_name("_last_checkpoint")}
    for file in files:
        # One that is gone was made needless by a later commit, a user's VACUUM perhaps.
        with suppress(FileNotFoundError):
            sync(file)
    for parent in {file.parent for file in files}:
        sync(parent)
    return version


def _commit(directory: Path, version: int) -> Path:
    return directory / "_delta_log" / f"{version:020}.json"


def _added(directory: Path, commit: Path) -> Iterator[Path]:
    with commit.open(encoding="utf-8") as actions:
        for line in actions:
            if line.startswith('{"add"'):
                added = json.loads(line)["add"]
                yield _file(directory, added["path"])
                if (vector := added.get("deletionVector")) is not None:
                    yield from _vector(directory, vector)


def _file(directory: Path, path: str) -> Path:
    return directory / unquote(urlparse(path).path)


def _vector(directory: Path, vector: dict[str, Any]) -> Iterator[Path]:
    """The file that holds a deletion vector, unless that is in the commit itself."""
    where = vector["pathOrInlineDv"]
    match vector["storageType"]:
        case "u":
            prefix, name = where[:-_UUID_CHARACTERS], where[-_UUID_CHARACTERS:]
            yield directory / prefix / f"deletion_vector_{_uuid(name)}.bin"
        case "p":
            yield _file(directory, where)


def _uuid(text: str) -> UUID:
    """A UUID as Delta writes it in file names: five characters for four bytes."""
    groups = (text[place : place + 5] for place in range(0, _UUID_CHARACTERS, 5))
    whole = b""
    for group in groups:
        number = 0
        for character in group:
            number = number * 85 + _Z85.index(character)
        whole += number.to_bytes(4)
    return UUID(bytes=whole)
