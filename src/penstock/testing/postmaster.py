"""What a data directory's lock file tells of the server that runs on it."""

from __future__ import annotations

from pathlib import Path

import psutil

from penstock.testing.owned_process import is_alive


def postmaster_status(data: Path) -> tuple[int, str] | None:
    """Process id and status from the server's lock file, as far as it is written."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return None
    return (int(lines[0]), lines[7].strip()) if len(lines) >= 8 else None


def is_served(data: Path) -> bool:
    """Whether a server runs on that data directory."""
    status = postmaster_status(data)
    if status is None:
        return False
    try:
        process = psutil.Process(status[0])
        return process.name() == "postgres" and is_alive(process)
    except psutil.NoSuchProcess:
        return False
