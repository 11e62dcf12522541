"""Questions to Postgres that end when nobody wants the answer any more.

Whoever waits in libpq, for a lock that somebody has or for the first row that a filter lets
through, does not see that it is to stop. So a thread beside it looks for that, and asks
the server to cancel. To hang up would not do: a server that waits for a lock does not notice
that its client is gone, and would keep its place in the queue, and its snapshot, until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

import psycopg

from penstock.postgres.connection import Session

_REACH_SECONDS = 5.0
_POLL_SECONDS = 0.1
_AGAIN_SECONDS = 1.0


def cancel(session: Session) -> None:
    """Ask the server to end what another thread waits for; nothing if it cannot be reached."""
    with suppress(psycopg.Error):
        session.cancel_safe(timeout=_REACH_SECONDS)


@contextmanager
def cancelled_when(unwanted: Callable[[], bool], session: Session) -> Iterator[None]:
    """Cancel what the session is at, and what it is at afterwards, once `unwanted` holds.

    Inside the block statements fail then as any that is cancelled. It asks from a thread, and
    again until the block is left: a request that comes between two statements has no effect.
    """
    over = Event()

    def watch() -> None:
        pause = _POLL_SECONDS
        while not over.wait(pause):
            if unwanted():
                pause = _AGAIN_SECONDS
                cancel(session)

    watcher = Thread(target=watch, name="cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
