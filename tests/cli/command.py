"""The `penstock` command as users run it: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "penstock.cli.main"]


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("error: ")]

    @property
    def hints(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("hint: ")]

    def json(self) -> Any:
        return json.loads(self.stdout)


class Penstock:
    """Runs commands in a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(
        self, *arguments: str | Path, timeout: float = 120, env: dict[str, str] | None = None
    ) -> Outcome:
        result = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.directory,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Outcome(result.returncode, result.stdout, result.stderr)

    def files(self) -> set[str]:
        """What is in the directory, the configuration aside."""
        found = {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}
        return found - {"penstock.yaml"}


WriteConfig = Callable[..., Path]
