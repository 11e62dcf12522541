"""The replication connection: slots, the stream of frames, acknowledgements.

A frame is what libpq's COPY BOTH hands out: XLogData (`w`), which carries one
pgoutput message, or a keepalive (`k`). `ReplicationStream.read` has a kernel move
frames from libpq into a buffer until that is full or the socket is dry. Keepalives
are answered after each such read (they stay in the buffer, where the decoder
passes over them), and `tick` sends a status in time even while nobody reads.

A network can fail without telling anybody. A server that has been silent for a while
is therefore asked for an answer, and one that does not answer is given up: the caller
connects anew. A part of a message is no silence: a large row on a slow line may take
longer than any silence may.

What is acknowledged is set by `acknowledge`; this module never decides it.
"""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Callable

import psycopg
from psycopg import pq

from penstock.config import PgConnection
from penstock.errors import DEFECT, ErrorKind, PenstockError
from penstock.postgres import libpq
from penstock.postgres.connection import connect, take_text_as_it_is, translate
from penstock.postgres.libpq import CopyBuffer
from penstock.postgres.pgoutput import newest_keepalive
from penstock.schema import ZERO_LSN, Lsn, quote_identifier

_FEW = 50
_LINGER_S = 0.0003
"""The server sends every message by itself. A reader that is quicker wakes up for each
of them; one that lingers a moment finds a handful, for the price of one."""

_SILENCE_S = 60.0
_SILENCE_WITHOUT_TIMEOUT_S = 1800.0
_DEAF_S = 1.0

_POLL_S = 0.1
_CANCEL_S = 30.0

_PASSING_CLASSES = ("", "08", "40", "53", "57")
_PASSING = ("55P03", "25P03", "25P04")
_DATA_CLASS = "22"

_POSTGRES_EPOCH_S = 946_684_800
_STATUS = struct.Struct("!cqqqqc")


class UnexplainedError(PenstockError):
    """The server gave a reason that may pass, or come again at the same place for ever."""


class ReplicationStream:
    """One replication connection. Not thread-safe: the receiving thread owns it."""

    def __init__(self, connection: PgConnection, purpose: str) -> None:
        self._connection = connect(connection, purpose, replication=True)
        self._pgconn = self._connection.pgconn
        take_text_as_it_is(self._connection)
        self._reader = libpq.CopyReader(self._pgconn)
        self._acknowledged = ZERO_LSN
        self._slot = ""
        self._last_status = 0.0
        self._status_interval = 10.0
        self._silence_limit = _SILENCE_S
        self._heard_at = self._listened_at = 0.0
        self.wal_end = ZERO_LSN
        """The newest position a keepalive named: everything before it has been sent."""

    def close(self) -> None:
        self._connection.close()

    # Commands before streaming.

    def create_slot(
        self, name: str, go_on: Callable[[], bool], *, failover: bool = False
    ) -> Lsn | None:
        """Create the slot; its consistent point. `failover` is since version 17.

        The server waits for every transaction that writes. `go_on` is asked several times a
        second meanwhile; once it says no, the slot is given up: None, unless it is there by then.
        """
        doing = f"creating the replication slot {name}"
        options = "(SNAPSHOT 'nothing', FAILOVER)" if failover else "NOEXPORT_SNAPSHOT"
        command = f"CREATE_REPLICATION_SLOT {quote_identifier(name)} LOGICAL pgoutput {options}"
        try:
            self._pgconn.send_query(command.encode())
            result = self._answer(go_on)
        except psycopg.Error as error:
            raise translate(error, doing) from error
        except BaseException:
            self._cancel()
            raise
        if result is None:
            result = self._cancel()
            if result is None or result.status != pq.ExecStatus.TUPLES_OK:
                return None
        self._require(result, doing, pq.ExecStatus.TUPLES_OK)
        point = result.get_value(0, 1)
        if point is None:
            raise PenstockError(
                ErrorKind.INTERNAL, "the new slot has no consistent point", hint=DEFECT
            )
        return Lsn.parse(point.decode())

    def make_failover(self, name: str) -> None:
        """Have standbys keep a copy of a slot that nobody uses now."""
        self._run(
            f"ALTER_REPLICATION_SLOT {quote_identifier(name)} (FAILOVER true)",
            f"making {name} a slot that standbys keep",
            expected=pq.ExecStatus.COMMAND_OK,
        )

    def timeline(self) -> int:
        """The server's timeline: another one after each promotion."""
        value = self._run("IDENTIFY_SYSTEM", "asking for the timeline").get_value(0, 1)
        return int(value or b"1")

    def left_at(self, timeline: int, now: int) -> Lsn | None:
        """Where the server's history left a timeline for the next; None if it never was on it."""
        result = self._run(f"TIMELINE_HISTORY {now}", "reading the timeline's history")
        for line in (result.get_value(0, 1) or b"").decode(errors="replace").splitlines():
            match line.split():
                case [number, position, *_] if number == str(timeline):
                    return Lsn.parse(position)
        return None

    def start(self, slot: str, publication: str, position: Lsn, sender_timeout: float) -> None:
        """Begin to stream what was committed from `position` on."""
        name = quote_identifier(publication).replace("'", "''")
        self._run(
            f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {position}"
            f" (proto_version '1', publication_names '{name}', messages 'true')",
            f"streaming from the replication slot {slot}",
            expected=pq.ExecStatus.COPY_BOTH,
        )
        self._slot, self._acknowledged = slot, position
        if sender_timeout > 0:
            self._status_interval = min(10.0, sender_timeout / 3)
        # A server that decodes a large transaction answers after half its timeout; one that
        # has none may not answer until it is done.
        self._silence_limit = (
            max(_SILENCE_S, 2 * sender_timeout) if sender_timeout else _SILENCE_WITHOUT_TIMEOUT_S
        )
        self._heard_at = self._listened_at = time.monotonic()
        self._pgconn.nonblocking = 1
        self._send_status()

    # Streaming.

    def read(self, frames: CopyBuffer, wait: float) -> bool:
        """Add frames to `frames` until it is full or the socket is dry; whether it is full.

        Waits once, up to `wait` seconds, for more to come. Raises when the stream ends.
        """
        first, heard = frames.count, False
        status = self._reader.read(frames, wait=False)
        while status == libpq.NOTHING_YET:
            before = frames.count
            heard |= self._wait(0)
            self._consume()
            status = self._reader.read(frames, wait=False)
            got = frames.count - before
            if status == libpq.NOTHING_YET and got < _FEW:
                if got == 0:
                    if wait <= 0 or not self._wait(wait):
                        break
                    wait = 0.0
                time.sleep(_LINGER_S)
        self._note_silence(silent=not heard and frames.count == first)
        self._note_keepalives(frames, first)
        if status in (libpq.ENDED, libpq.FAILED):
            self._finish()
        return status == libpq.FULL

    def acknowledge(self, position: Lsn) -> None:
        """Say that everything before `position` is durable with us."""
        if position > self._acknowledged:
            self._acknowledged = position
            self._send_status()

    def tick(self) -> None:
        """Send a status if the server has not heard from us for a while."""
        if time.monotonic() - self._last_status >= self._status_interval:
            self._send_status()

    # Details.

    def _note_silence(self, *, silent: bool) -> None:
        now = time.monotonic()
        # Who did not listen does not know whether there was silence.
        if not silent or now - self._listened_at > _DEAF_S:
            self._heard_at = now
        self._listened_at = now
        if now - self._heard_at > self._silence_limit:
            raise PenstockError(
                ErrorKind.SOURCE_CONNECTION,
                f"the server has not answered for {self._silence_limit:g} s",
                hint="look at the network between here and the server; it is tried again",
            )

    def _note_keepalives(self, frames: CopyBuffer, first: int) -> None:
        end, wanted = newest_keepalive(frames.data, frames.ends, first, frames.count)
        self.wal_end = max(self.wal_end, Lsn(end))
        if wanted:
            self._send_status()

    def _send_status(self) -> None:
        position = self._acknowledged.value
        clock = int((time.time() - _POSTGRES_EPOCH_S) * 1_000_000)
        quiet = time.monotonic() - self._heard_at >= self._status_interval
        answer = b"\1" if quiet else b"\0"
        status = _STATUS.pack(b"r", position, position, position, clock, answer)
        try:
            while self._pgconn.put_copy_data(status) == 0:
                self._flush()
            self._flush()
        except psycopg.Error as error:
            raise translate(error, "acknowledging to Postgres") from error
        self._last_status = time.monotonic()

    def _flush(self) -> None:
        while self._pgconn.flush() == 1:
            readable, _, _ = select.select([self._pgconn.socket], [self._pgconn.socket], [], 1.0)
            if readable:
                self._consume()

    def _wait(self, seconds: float) -> bool:
        readable, _, _ = select.select([self._pgconn.socket], [], [], seconds)
        return bool(readable)

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise translate(error, "receiving changes") from error

    def _finish(self) -> None:
        """The stream ended: say why."""
        result = self._pgconn.get_result()
        message = (
            result.error_message.decode(errors="replace").strip()
            if result is not None and result.status == pq.ExecStatus.FATAL_ERROR
            else "the server ended the stream"
        )
        state = _field(result, pq.DiagnosticField.SQLSTATE)
        if state[:2] == _DATA_CLASS:
            primary = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY)
            where = _field(result, pq.DiagnosticField.CONTEXT)
            raise unsendable(self._slot, self._acknowledged, f"{primary} ({where})")
        raise self._failure(message, state, "receiving changes")

    def _run(
        self, command: str, doing: str, expected: pq.ExecStatus = pq.ExecStatus.TUPLES_OK
    ) -> pq.abc.PGresult:
        result = self._pgconn.exec_(command.encode())
        self._require(result, doing, expected)
        return result

    def _answer(self, go_on: Callable[[], bool]) -> pq.abc.PGresult | None:
        """What the server answers to the command that was sent; None if `go_on` said no before.

        Unlike `exec_` this comes back to Python while the server is silent, so that signals
        are handled.
        """
        answer = None
        while True:
            self._pgconn.consume_input()
            while self._pgconn.is_busy():
                if not self._wait(_POLL_S) and not go_on():
                    return None
                self._pgconn.consume_input()
            result = self._pgconn.get_result()
            if result is None:
                return answer
            answer = result

    def _cancel(self) -> pq.abc.PGresult | None:
        """Have the server give up its command, and see that it has; what it answers then.

        A server that waits for transactions does not notice that we are gone. It would go on
        with a slot that nobody can use or drop, and keep WAL for it.
        """
        deadline = time.monotonic() + _CANCEL_S
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_S)
            return self._answer(lambda: time.monotonic() < deadline)
        return None

    def _require(self, result: pq.abc.PGresult, doing: str, expected: pq.ExecStatus) -> None:
        if result.status != expected:
            state = _field(result, pq.DiagnosticField.SQLSTATE)
            message = result.error_message.decode(errors="replace").strip()
            raise self._failure(message, state, doing)

    def _failure(self, message: str, sqlstate: str, doing: str) -> PenstockError:
        message = message.removeprefix("ERROR:").removeprefix("FATAL:").strip()
        if sqlstate in _FAILURES:
            kind, hint = _FAILURES[sqlstate]
            return PenstockError(kind, f"{doing}: {message}", hint=hint)
        passing = sqlstate[:2] in _PASSING_CLASSES or sqlstate in _PASSING
        error = PenstockError if passing else UnexplainedError
        return error(ErrorKind.SOURCE_CONNECTION, f"{doing}: {message}")


def unsendable(slot: str, position: Lsn, said: str) -> PenstockError:
    """Postgres fails at the same change whenever the slot is read.

    It decodes with the catalog as of each change, so a row filter or a value that is mended
    now is what it was for changes that are in the WAL already.
    """
    name = slot.replace("'", "''")
    return PenstockError(
        ErrorKind.DATA_DECODE,
        f"Postgres cannot send what was committed after {position}: {said}",
        hint="see to it that it does not happen again (a row filter that fails for some rows, a"
        " text without an equivalent in UTF-8); what is in the WAL already stays as it is. Then"
        f" drop the slot, SELECT pg_drop_replication_slot('{name}'), and start with"
        " invalidated_slot_behavior: recreate: every table is copied again. If the server's log"
        " names a cause that can be mended there, mend it and start again: nothing is lost, the"
        " slot keeps it",
        position=position,
    )


def _field(result: pq.abc.PGresult | None, field: pq.DiagnosticField) -> str:
    value = result.error_field(field) if result is not None else None
    return (value or b"").decode(errors="replace")


_FAILURES: dict[str, tuple[ErrorKind, str]] = {
    "55006": (
        ErrorKind.SOURCE_CONNECTION,
        "another process uses the slot; stop it, or give this pipeline an id of its own",
    ),
    "42501": (
        ErrorKind.SOURCE_PRIVILEGE,
        "grant the right to replicate: ALTER ROLE ... REPLICATION",
    ),
    "42704": (
        ErrorKind.SOURCE_CONFIGURATION,
        (
            "the publication or the slot is missing; `penstock doctor` shows what to create. If the"
            " publication was dropped and made again, drop the slot and remove the journal: before"
            " version 18 Postgres cannot send what happened in between"
        ),
    ),
    "42710": (ErrorKind.SOURCE_SLOT, "drop the slot, or use the journal that belongs to it"),
    "53400": (
        ErrorKind.SOURCE_CONFIGURATION,
        "raise max_replication_slots, or drop a slot that nobody uses",
    ),
    "55000": (
        ErrorKind.SOURCE_SLOT,
        "the slot is lost or the server is not set up for it; `penstock doctor` says more",
    ),
}
