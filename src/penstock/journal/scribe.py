"""The thread that writes the journal.

It takes buffers of frames, decodes them, and flushes when enough has gathered or
has waited long enough. A flood is flushed in large pieces; a trickle, and the end of
a flood, quickly (a fifth of `max_fill_ms`). `durable` is the position up to which the
journal holds everything; the receiving thread acknowledges it.

While the source is idle its WAL moves on; now and then an empty flush records the
position, so that the slot does not hold on to WAL that has nothing for us.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from enum import StrEnum

from penstock.config import MIB, PipelineConfig
from penstock.journal.decoder import ChangeDecoder
from penstock.journal.files import writing
from penstock.journal.flush import FlushBuilder
from penstock.journal.memory import MemoryGauge
from penstock.journal.versions import Relations
from penstock.journal.writer import RESUME_SHARE, JournalWriter
from penstock.postgres import libpq, pgoutput, values
from penstock.postgres.libpq import CopyBuffer
from penstock.schema import Lsn

_BUFFER_BYTES = 16 * MIB
_BUFFER_FRAMES = _BUFFER_BYTES // 64
_BUFFERS = 3
_TRICKLE_BYTES = MIB
_TRICKLE_SHARE = 0.2
_IDLE_FLUSH_S = 1.0
_USAGE_CHECK_S = 1.0


class Pause(StrEnum):
    """What there is too much of to read on."""

    JOURNAL = "the journal is full (journal.max_bytes): tables have to be applied first"
    MEMORY = "memory is full (memory_backpressure): what was read has to be written first"


@dataclass(frozen=True, slots=True)
class _Idle:
    position: Lsn


class Scribe:
    """Decodes and flushes in a thread of its own, from construction to `close`."""

    def __init__(
        self, config: PipelineConfig, journal: JournalWriter, relations: Relations
    ) -> None:
        self._journal = journal
        self._fill = config.batch.max_fill_ms / 1000
        self._memory = MemoryGauge(config)
        self._max_bytes = config.journal.max_bytes
        self._decoder = ChangeDecoder(journal.latest_schemas(), relations)
        self._builder = FlushBuilder(journal, self._memory.flush_bytes)
        self._work: queue.SimpleQueue[CopyBuffer | _Idle | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[CopyBuffer] = queue.SimpleQueue()
        self._buffers = [CopyBuffer(_BUFFER_BYTES, _BUFFER_FRAMES) for _ in range(_BUFFERS)]
        for buffer in self._buffers:
            self._free.put(buffer)
        self._error: BaseException | None = None
        self._in_transaction = False
        self._lull = False
        self._last_flush = time.monotonic()
        self._next_usage_check = 0.0
        self._journal_full = False
        self._grown = True
        self.durable = journal.end
        self._thread = threading.Thread(target=self._run, name="scribe", daemon=True)
        self._thread.start()

    # For the receiving thread.

    def fresh_buffer(self, wait: float) -> CopyBuffer | None:
        """An empty buffer, or None when all are still being worked on."""
        try:
            return self._free.get(timeout=wait) if wait else self._free.get_nowait()
        except queue.Empty:
            return None

    @property
    def pause(self) -> Pause | None:
        """Why to read no more for the moment, if so."""
        # Frames count until they are decoded. Not the room for them: it never becomes less,
        # and a budget no larger than an empty buffer would be a pause without end.
        waiting = sum(buffer.size for buffer in self._buffers)
        if self._journal_full:
            return Pause.JOURNAL
        return Pause.MEMORY if self._memory.paused(waiting, self._builder.memory) else None

    def take(self, frames: CopyBuffer, *, lull: bool = False) -> None:
        """Decode and keep `frames`; `lull` says that nothing more came just now."""
        self._lull = lull
        self._work.put(frames)

    def idle_at(self, position: Lsn) -> None:
        """Nothing has come for a moment, and everything before `position` has been sent."""
        if position > self.durable and self._idle_flush_due():
            self._work.put(_Idle(position))

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        if self._error is not None:
            raise self._error

    def close(self, wait: float | None = None) -> bool:
        """Flush what is whole, and end the thread; False if that takes longer than `wait`."""
        self._work.put(None)
        self._thread.join(wait)
        return not self._thread.is_alive()

    # In the thread.

    def _run(self) -> None:
        try:
            with writing(self._journal.root):
                self._work_off()
        except BaseException as error:
            self._error = error

    def _work_off(self) -> None:
        while (item := self._next()) is not None:
            if isinstance(item, CopyBuffer):
                self._decode(item)
            elif not self._in_transaction and self._builder.empty:
                self._builder.move_to(item.position)
            self._flush_if_due()
            self._watch_usage()
        if not self._builder.empty:
            self._flush()

    def _next(self) -> CopyBuffer | _Idle | None:
        while True:
            try:
                return self._work.get(timeout=self._patience())
            except queue.Empty:
                self._flush_if_due()
                self._watch_usage()

    def _decode(self, frames: CopyBuffer) -> None:
        decoded = self._decoder.decode(frames)
        self._builder.add(decoded)
        self._in_transaction = decoded.in_transaction
        frames.clear()
        self._free.put(frames)

    def _patience(self) -> float:
        """How long nothing needs to be done."""
        if self._builder.empty:
            return _USAGE_CHECK_S
        return max(0.001, self._linger() - self._builder.age)

    def _linger(self) -> float:
        trickle = self._lull or self._builder.bytes < _TRICKLE_BYTES
        return self._fill * _TRICKLE_SHARE if trickle else self._fill

    def _idle_flush_due(self) -> bool:
        return time.monotonic() - self._last_flush >= _IDLE_FLUSH_S

    def _flush_if_due(self) -> None:
        builder = self._builder
        if builder.empty:
            due = builder.end > self.durable and self._idle_flush_due()
        else:
            due = builder.bytes >= self._memory.flush_bytes or builder.age >= self._linger()
        if due:
            self._flush()

    def _flush(self) -> None:
        self._grown |= not self._builder.empty
        self.durable = self._builder.flush(self._decoder.versions)
        self._last_flush = time.monotonic()

    def _watch_usage(self) -> None:
        """Pause receiving while the journal is too large.

        Only what manifests name counts: a single transaction larger than the
        limit must be allowed to reach its commit, or nothing would ever go.
        Without a flush since the last look it can only have become smaller, and
        a look at every segment of hundreds of tables is not free.
        """
        now = time.monotonic()
        if now < self._next_usage_check or not (self._journal_full or self._grown):
            return
        self._next_usage_check, self._grown = now + _USAGE_CHECK_S, False
        used = self._journal.disk_usage() - self._builder.spilled_bytes
        limit = self._max_bytes * (RESUME_SHARE if self._journal_full else 1.0)
        self._journal_full = used >= limit


def warm_up() -> None:
    """Compile the kernels, or load them from their cache, before the stream starts."""
    libpq.warm_up()
    values.warm_up()
    pgoutput.warm_up()
