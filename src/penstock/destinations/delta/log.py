"""A local table's Delta log, read without Spark.

A query of a table's history costs a fifth of a second, whatever it finds, and every table
is asked for its position when a pipeline starts: for hundreds of tables that is minutes.
On a local filesystem the newest commits are a few small files of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

_COMMIT = re.compile(r"\d{20}\.json")
_INFO = '{"commitInfo"'


def versions(directory: Path) -> list[int]:
    """The numbers of the commits that are still in the log, from the oldest on."""
    return sorted(int(name.removesuffix(".json")) for name in _commits(directory))


def _commits(directory: Path) -> list[str]:
    try:
        names = [entry.name for entry in (directory / "_delta_log").iterdir()]
    except FileNotFoundError:
        return []
    return [name for name in names if _COMMIT.fullmatch(name)]


def user_metadata(directory: Path) -> Iterator[str | None]:
    """What the commits that are still in the log say of themselves, from the newest on."""
    log = directory / "_delta_log"
    for name in sorted(_commits(directory), reverse=True):
        try:
            with (log / name).open(encoding="utf-8") as actions:
                found = next((line for line in actions if line.startswith(_INFO)), None)
        except FileNotFoundError:
            return  # Delta removes old commits, from the oldest on
        yield json.loads(found)["commitInfo"].get("userMetadata") if found else None
