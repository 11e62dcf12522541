"""Named places where a test can make a process die.

`PENSTOCK_FAILPOINT=name` makes the process kill itself (SIGKILL) when it comes
to the failpoint of that name; `name:3` when it comes there for the third time.
Without the variable a failpoint costs one comparison.
"""

from __future__ import annotations

import itertools
import os
import signal

_name, _, _count = os.environ.get("PENSTOCK_FAILPOINT", "").partition(":")
_deadly = int(_count or 1)
_passes = itertools.count(1)


def failpoint(name: str) -> None:
    """Die here if the environment says so."""
    if name == _name and next(_passes) >= _deadly:
        os.kill(os.getpid(), signal.SIGKILL)
