"""Named places where a test can make a process die, or hold its breath.

`PENSTOCK_FAILPOINT=name` makes the process kill itself (SIGKILL) when it comes
to the failpoint of that name; `name:3` when it comes there for the third time.
With `name:3:stop` it stops instead (SIGSTOP), for somebody to do something to
the world and send it SIGCONT. Several are separated by commas. Without the
variable a failpoint costs one lookup.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class _Armed:
    """What happens at a failpoint, and at which passage."""

    passage: int
    sends: signal.Signals
    passages: Iterator[int] = field(default_factory=lambda: itertools.count(1))


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for each in filter(None, text.split(",")):
        name, passage, action, *_ = [*each.split(":"), "", ""]
        number = signal.SIGSTOP if action == "stop" else signal.SIGKILL
        armed[name] = _Armed(int(passage or 1), number)
    return armed


_armed = _parse(os.environ.get("PENSTOCK_FAILPOINT", ""))


def failpoint(name: str) -> None:
    """Die here if the environment says so."""
    armed = _armed.get(name)
    if armed is not None and next(armed.passages) == armed.passage:
        os.kill(os.getpid(), armed.sends)
