"""The process that fills the journal.

Two threads. One reads frames from the replication connection and answers the
server; it never waits for a disk. The other decodes buffers and flushes (see
`Scribe`). They meet in a short queue of buffers: when it is full, reading stops,
Postgres waits, and the server still hears from us in time.

A receiver keeps no state beside the journal. Whatever it loses (a connection, its
life) it goes on from the journal's end, and Postgres sends again what the
journal does not have.

Run as a program it is a child of the pipeline: its configuration comes as one
line of JSON on standard input, which stays open; when that closes the parent is
gone, and the receiver stops. Events go to standard output, one JSON object a line, and
what is logged is among them: how it looks, and where it goes, is the parent's affair.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.config import PipelineConfig
from penstock.errors import DEFECT, ErrorKind, PenstockError, named_cause
from penstock.failpoints import failpoint
from penstock.journal.files import writing
from penstock.journal.lock import ReceiverLock
from penstock.journal.outbox import LogEvents, Outbox
from penstock.journal.relations import RelationCatalog
from penstock.journal.scribe import Pause, Scribe, warm_up
from penstock.journal.source import prepare_source, sender_timeout
from penstock.journal.writer import JournalWriter
from penstock.postgres.connection import WatchedSession, abort, connect, hung_up
from penstock.postgres.replication import ReplicationStream, UnexplainedError, unsendable
from penstock.schema import ZERO_LSN, Lsn
from penstock.signals import SignalRelay

logger = logging.getLogger("penstock.journal.receiver")  # also where it is the program

Report = Callable[[dict[str, Any]], None]

_QUIET_S = 0.01
"""A stream that is quiet for so long hands over what it has."""
_HAND_OVER_S = 0.1
"""A stream that never is quiet hands over at this interval."""
_IDLE_WAIT_S = 0.1
_CATALOG_PATIENCE_S = 10.0
"""How long a scribe that is to end may still ask the catalog."""
_ANSWER_S = 60.0
"""How long the catalog may take for one answer. No lock of a table makes it wait."""
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 10.0
_STUCK_LIMIT = 10
"""How often the server may fail at one place, for a reason we do not know."""


def _silent(event: dict[str, Any]) -> None:
    """Nobody listens."""


class Receiver:
    """Drains a slot into a journal until it is told to stop."""

    def __init__(self, config: PipelineConfig, report: Report = _silent) -> None:
        self._config = config
        self._report = report
        self._reached = ZERO_LSN
        """Where the journal ended when the last connection did."""

    def run(self, stop: threading.Event) -> None:
        """Receive until `stop` is set; trouble that passes is waited out, other trouble raised."""
        warm_up()
        with ReceiverLock(self._config.journal_path, stop):
            delay = _FIRST_DELAY_S
            failed_at, failures = ZERO_LSN, 0
            while not stop.is_set():
                started = time.monotonic()
                try:
                    self._stream(stop)
                except PenstockError as error:
                    if not error.kind.retryable:
                        raise
                    if isinstance(error, UnexplainedError):
                        failures = failures + 1 if failed_at == self._reached else 1
                        failed_at = self._reached
                        if failures >= _STUCK_LIMIT:
                            slot = self._config.slot_name
                            raise unsendable(slot, failed_at, error.message) from error
                    if time.monotonic() - started > _LONGEST_DELAY_S:
                        delay = _FIRST_DELAY_S
                    logger.warning("receiving interrupted", extra={"reason": str(error)})
                    self._report({"event": "reconnecting", "reason": str(error)})
                    stop.wait(delay * random.uniform(0.7, 1.0))
                    delay = min(2 * delay, _LONGEST_DELAY_S)

    def _stream(self, stop: threading.Event) -> None:
        """One connection's life."""
        config = self._config
        journal = JournalWriter(config.journal_path)
        catalog = connect(config.pg_connection, f"{config.id}_catalog")
        try:
            stream = ReplicationStream(config.pg_connection, f"{config.id}_receiver")
            try:
                with writing(journal.root):
                    ready = prepare_source(config, journal, catalog, stream, stop)
                if ready:
                    self._receive(journal, catalog, stream, stop)
            finally:
                stream.close()
        finally:
            self._reached = journal.end
            catalog.close()

    def _receive(
        self,
        journal: JournalWriter,
        catalog: WatchedSession,
        stream: ReplicationStream,
        stop: threading.Event,
    ) -> None:
        config = self._config
        stream.start(
            config.slot_name, config.publication_name, journal.end, sender_timeout(catalog)
        )
        self._clear_up(journal)
        self._report({"event": "streaming", "position": str(journal.end)})
        logger.info("streaming", extra={"position": str(journal.end)})
        scribe = Scribe(config, journal, RelationCatalog(catalog, config))
        try:
            _Loop(stream, scribe, catalog, self._report).run(stop)
        finally:
            # What was received whole is worth keeping, whatever ended the loop. But the
            # scribe asks the catalog, and a network that fails fails for both.
            if not scribe.close(_CATALOG_PATIENCE_S):
                abort(catalog)
                scribe.close()
        stream.acknowledge(scribe.durable)

    def _clear_up(self, journal: JournalWriter) -> None:
        """Remove what a receiver before us has left. Only who holds the slot may: without it there
        may be another one, where files cannot be locked, whose segments have no manifest yet."""
        with writing(journal.root):
            if journal.refresh():
                raise PenstockError(
                    ErrorKind.SOURCE_CONNECTION,
                    f"another receiver wrote to the journal {journal.root} just now",
                    hint="nothing to do if it has ended: it is tried again",
                )
            journal.remove_litter()


class _Loop:
    """Moves buffers from the stream to the scribe, and positions back."""

    def __init__(
        self, stream: ReplicationStream, scribe: Scribe, catalog: WatchedSession, report: Report
    ) -> None:
        self._stream = stream
        self._scribe = scribe
        self._catalog = catalog
        self._report = report
        self._acknowledged = Lsn(0)

    def run(self, stop: threading.Event) -> None:
        stream, scribe = self._stream, self._scribe
        frames = scribe.fresh_buffer(_IDLE_WAIT_S)
        since = 0.0
        pause: Pause | None = None
        try:
            while not stop.is_set():
                scribe.check()
                self._require_answers()
                self._acknowledge()
                stream.tick()
                if (why := scribe.pause) != pause:
                    pause = why
                    self._tell(pause)
                if pause and frames is not None and frames.count:
                    # One row may be larger than the budget: kept back, it would never be less.
                    scribe.take(frames)
                    frames = None
                if frames is None or pause:
                    self._require_server()
                    if frames is None:
                        frames = scribe.fresh_buffer(_IDLE_WAIT_S)
                    else:
                        stop.wait(_IDLE_WAIT_S)
                    continue
                before = frames.count
                full = stream.read(frames, _QUIET_S if before else _IDLE_WAIT_S)
                now = time.monotonic()
                if before == 0:
                    since = now
                quiet = frames.count == before
                if full or (frames.count and (quiet or now - since >= _HAND_OVER_S)):
                    scribe.take(frames, lull=quiet and not full)
                    frames = scribe.fresh_buffer(0)
                    # A server that shuts down asks anew at each answer that lacks something: until
                    # it has that, there is no quiet.
                    scribe.idle_at(stream.wal_end)
                elif quiet:
                    scribe.idle_at(stream.wal_end)
        finally:
            # A server that fails at a change has sent what comes before it.
            if frames is not None and frames.count:
                scribe.take(frames)

    def _tell(self, pause: Pause | None) -> None:
        """Say that reading pauses, or goes on. Full memory is a matter of moments; but while
        the journal is full Postgres keeps WAL, and somebody has to know."""
        level = logging.WARNING if pause is Pause.JOURNAL else logging.DEBUG
        logger.log(level, "receiving %s", "paused" if pause else "resumed", extra={"reason": pause})
        self._report({"event": "paused" if pause else "resumed", "reason": pause})

    def _require_answers(self) -> None:
        """Give up when the catalog's connection is lost: the scribe would wait in it for ever."""
        since = self._catalog.waiting_since
        if since is not None and time.monotonic() - since > _ANSWER_S:
            abort(self._catalog)
            raise PenstockError(
                ErrorKind.SOURCE_CONNECTION,
                f"the server has not answered a question to the catalog for {_ANSWER_S:g} s",
                hint="look at the network between here and the server; it is tried again",
            )

    def _require_server(self) -> None:
        """Give up when the server has ended the catalog's session, while we do not read.

        One that shuts down ends its sessions, and then waits until all is sent: for ever, as
        long as the stream hears from us and nobody reads it.
        """
        if hung_up(self._catalog):
            raise PenstockError(
                ErrorKind.SOURCE_CONNECTION,
                "the server has ended the session with the catalog while receiving was paused",
                hint="nothing to do if it is restarted: it is tried again",
            )

    def _acknowledge(self) -> None:
        durable = self._scribe.durable
        if durable > self._acknowledged:
            self._stream.acknowledge(durable)
            self._acknowledged = durable
            failpoint("acknowledged")


def main(arguments: Sequence[str]) -> int:
    """The receiver as a child process of a pipeline, which may name the least level to log."""
    stop = threading.Event()
    outbox = Outbox(sys.stdout.fileno(), on_gone=stop.set)
    SignalRelay(lambda _: stop.set()).install()
    logging.basicConfig(level=logging.WARNING, handlers=[LogEvents(outbox)])
    if arguments:
        logging.getLogger("penstock").setLevel(int(arguments[0]))
    try:
        return _run_as_child(stop, outbox.put)
    finally:
        outbox.close()


def _run_as_child(stop: threading.Event, report: Report) -> int:
    config = PipelineConfig.model_validate_json(sys.stdin.readline())

    def watch_parent() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=watch_parent, name="parent-watch", daemon=True).start()
    try:
        Receiver(config, report).run(stop)
    except PenstockError as error:
        report({"event": "error", "kind": error.kind, "message": error.message, "hint": error.hint})
        return 1
    except Exception as error:
        logger.exception("receiver failed")
        message = named_cause(error)
        report({"event": "error", "kind": ErrorKind.INTERNAL, "message": message, "hint": DEFECT})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
