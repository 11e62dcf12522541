"""Batches that a destination has taken but that are not all safe yet.

A cursor may move only over what is durable. `DURABLE` is, at once, and covers
everything before it; so does a future when it completes; `ACCEPTED` waits for
one of these or for a flush.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait

from penstock.destinations.base import WriteResult, WriteStatus
from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.schema import Lsn, TableSchema


def require_answer(answer: object, table: TableSchema) -> WriteResult:
    """The answer of a write method; an error where it does not say how safe the data is."""
    if isinstance(answer, WriteStatus | Future):
        return answer
    raise PenstockError(
        ErrorKind.DESTINATION_REJECTED,
        f"the destination answered {shorten(repr(answer))} to a write",
        hint="return WriteStatus.DURABLE, WriteStatus.ACCEPTED or a Future from the destination's"
        " write methods, then `penstock retry` the table",
        table=table.name,
    )


class Deliveries:
    """One table's open deliveries, oldest first. `wake` is called when a future completes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._open: deque[tuple[Lsn, Future[None] | None]] = deque()
        self._durable: Lsn | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, end: Lsn, result: WriteResult) -> None:
        match result:
            case WriteStatus.DURABLE:
                self._raise_failures()
                self._open.clear()
                self._durable = end
            case WriteStatus.ACCEPTED:
                self._open.append((end, None))
            case Future():
                self._open.append((end, result))
                result.add_done_callback(lambda _: self._wake())

    @property
    def settleable(self) -> bool:
        """Whether `settle` would tell anything new."""
        return self._durable is not None or bool(
            self._open and any(f is not None and f.done() for _, f in self._open)
        )

    @property
    def waits_for_flush(self) -> bool:
        """Whether nothing but a flush will make the last one safe."""
        return bool(self._open) and self._open[-1][1] is None

    def settle(self) -> Lsn | None:
        """Up to where everything is durable, if that is new; raises what a future raised."""
        self._raise_failures()
        covered = 0
        for place, (_, future) in enumerate(self._open, 1):
            if future is not None:
                if not future.done():
                    break
                covered = place
        for _ in range(covered):
            self._durable, _future = self._open.popleft()
        durable, self._durable = self._durable, None
        return durable

    def flushed(self) -> Lsn | None:
        """After the destination's `flush`: everything is durable. Up to where that is."""
        for _, future in self._open:
            if future is not None:
                future.result()
        if self._open:
            self._durable = self._open[-1][0]
            self._open.clear()
        return self.settle()

    def abandon(self) -> None:
        """Forget them, but not before they have ended: a late write must not come
        after the repeated one. Nor are they cancelled: a future that says it was may belong to a
        write that is under way, since only an executor tells its futures when they begin."""
        wait([future for _, future in self._open if future is not None])
        self._open.clear()
        self._durable = None

    def _raise_failures(self) -> None:
        for _, future in self._open:
            if future is not None and future.done():
                future.result()
