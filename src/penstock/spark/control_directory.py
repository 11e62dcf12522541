"""Claims, counts and the note to stop: what the tasks of one copy and its driver tell each other,
in small files that all of them see."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_COUNTER = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class ControlDirectory:
    """The directory through which the tasks of one copy and its driver speak."""

    path: Path

    def claim(self, number: int) -> bool:
        """Take a range, unless somebody has it."""
        try:
            os.close(os.open(self.path / f"claim-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def forget_claims(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            (self.path / f"claim-{number}").unlink(missing_ok=True)

    def stop(self) -> None:
        with suppress(FileNotFoundError):  # the driver has given up, and cleaned up
            (self.path / "stop").touch()

    @property
    def stopped(self) -> bool:
        return (self.path / "stop").exists()

    @contextmanager
    def counter(self, attempt: str) -> Iterator[Callable[[int], None]]:
        """Tells the others how many rows this attempt at a task has read."""
        with (self.path / f"count-{attempt}").open("wb", buffering=0) as file:

            def count(rows: int) -> None:
                os.pwrite(file.fileno(), _COUNTER.pack(rows), 0)

            yield count

    def counted(self) -> int:
        """The rows that all tasks have read so far."""
        total = 0
        for path in self.path.glob("count-*"):
            data = path.read_bytes()
            total += _COUNTER.unpack(data)[0] if len(data) == _COUNTER.size else 0
        return total
