"""Waiting on conditions instead of the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

_LIMIT_S = 180.0


def wait_for(condition: Callable[[], object], what: str = "", limit: float = _LIMIT_S) -> None:
    """Return as soon as `condition` holds; a TimeoutError when it never does."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what or f"condition not reached within {limit} s")
        time.sleep(0.01)
