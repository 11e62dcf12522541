"""What somebody asks of a table from outside: `penstock retry` and `penstock resync`.

A request is an empty file beside the journal. Whoever asks makes it; the table's own
job removes it once the table's new state is stored. A state that another process wrote
into the store could be overwritten by the pipeline's own next one. A file waits,
for a job to end or for a pipeline to start, and does so with every kind of store.

    <journal>/requests/<oid>.<action>
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.journal.files import sync
from penstock.schema import TableId

_DIRECTORY = "requests"


class Action(StrEnum):
    RETRY = "retry"  # go on where the error stopped the table
    RESYNC = "resync"  # copy it again


@dataclass(frozen=True, slots=True)
class Request:
    table_id: TableId
    action: Action

    @property
    def file_name(self) -> str:
        return f"{self.table_id.oid}.{self.action}"


class Requests:
    """The requests beside one journal."""

    def __init__(self, journal: Path) -> None:
        self._directory = journal / _DIRECTORY

    def add(self, request: Request) -> None:
        """Ask for something. Durable when this returns; asking twice is asking once."""
        self._directory.mkdir(exist_ok=True)
        (self._directory / request.file_name).touch()
        sync(self._directory)

    def pending(self) -> list[Request]:
        """What was asked for and not done yet."""
        try:
            names = sorted(path.name for path in self._directory.iterdir())
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            oid, _, action = name.partition(".")
            if oid.isdigit() and action in list(Action):
                found.append(Request(TableId(int(oid)), Action(action)))
        return found

    def answer(self, request: Request, act: Callable[[], None]) -> None:
        """Do what was asked, unless it is done already. Killed in between, it is done again."""
        if (self._directory / request.file_name).exists():
            act()
            self.done(request)

    def done(self, request: Request) -> None:
        (self._directory / request.file_name).unlink(missing_ok=True)
