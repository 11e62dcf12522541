"""The receiver as a child process: started, watched, and started again when it dies.

The two are tied by pipes. The child's standard input carries one line, the
configuration with its secrets (never the command line or the environment, which
others can read), and stays open: when this process dies, however suddenly, the
child reads the end of it and exits, so that no receiver outlives its pipeline.
Its standard output carries one JSON object a line, an *event*. What it logs is such
an event too, and is logged here as if it were ours: format and level are one matter.
What else it writes, on standard error, are words of somebody in trouble (the
interpreter, a library): they are logged, and the last of them explain its death.

A receiver that dies without having said why is started again, after a delay that
grows until it streams. One that reports a fatal error and exits with 1 fails the
pipeline with that error: whatever it was (a lost slot, a foreign journal), a
restart would only meet it again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from threading import Event, Lock, Thread
from typing import IO, Any

from pydantic import SecretStr

from penstock.config import PipelineConfig
from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.pipeline.failures import run_reporting

logger = logging.getLogger("penstock.pipeline.receiver")

COMMAND = (sys.executable, "-m", "penstock.journal.receiver")

_FIRST_DELAY, _LAST_DELAY = 0.2, 10.0
_STOP_SECONDS = 30.0
_FRUITLESS_LIMIT = 5
_FATAL = 1
_LAST_WORDS_S = 5.0
_LINE_LIMIT = 2**20


class ReceiverState(StrEnum):
    STARTING = "starting"
    STREAMING = "streaming"
    RECONNECTING = "reconnecting"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """What is known of the receiver now. `reason` belongs to the state."""

    state: ReceiverState = ReceiverState.STARTING
    reason: str | None = None
    pid: int | None = None
    restarts: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "state": str(self.state),
            "reason": self.reason,
            "pid": self.pid,
            "restarts": self.restarts,
        }


@dataclass(frozen=True, slots=True)
class _Death:
    """How a receiver ended; one that is `fatal` has said why, and another would fare alike."""

    reason: str
    fatal: bool = False


_EVENT_STATES = {
    "streaming": ReceiverState.STREAMING,
    "resumed": ReceiverState.STREAMING,
    "reconnecting": ReceiverState.RECONNECTING,
    "paused": ReceiverState.PAUSED,
}


class ReceiverProcess:
    """Keeps one receiver running until `stop`. `on_failure` gets a fatal error, once."""

    def __init__(
        self,
        config: PipelineConfig,
        on_failure: Callable[[PenstockError], None],
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self._line = json.dumps(revealed(config)) + "\n"
        self._on_failure = on_failure
        self._command = command
        self._report = ReceiverReport()
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="penstock-receiver", daemon=True)
        self._streamed = False
        self._error: PenstockError | None = None

    @property
    def report(self) -> ReceiverReport:
        return self._report

    @property
    def settled(self) -> bool:
        """Whether it has come to stream, or at least knows what it waits for."""
        return self._report.state not in (ReceiverState.STARTING, ReceiverState.FAILED)

    def start(self) -> None:
        self._thread.start()

    def terminate(self) -> None:
        """Ask it to stop: it makes durable what it has and exits. Returns at once."""
        with self._lock:
            self._stopping.set()
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.terminate()

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Stop it, by force after `timeout`; what it had not made durable comes again."""
        self.terminate()
        if not self._thread.is_alive():
            return
        self._thread.join(timeout)
        if self._thread.is_alive() and self._process is not None:
            logger.warning("receiver does not stop, killing it", extra={"pid": self._process.pid})
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._thread.join()

    def _run(self) -> None:
        run_reporting(self._supervise, "receiver's supervisor", self._fail)

    def _fail(self, error: PenstockError) -> None:
        self._note(state=ReceiverState.FAILED, reason=error.message, pid=None)
        self._on_failure(error)

    def _supervise(self) -> None:
        delay, fruitless = _FIRST_DELAY, 0
        while True:
            death = self._live_once()
            if death is None or self._stopping.is_set():
                self._note(state=ReceiverState.STOPPED, reason=None, pid=None)
                return
            if self._streamed:
                delay, fruitless = _FIRST_DELAY, 0
            else:
                fruitless += 1
            error = self._verdict(death, fruitless)
            if error is not None:
                raise error
            logger.warning(
                "receiver died, starting it again", extra={"reason": death.reason, "delay": delay}
            )
            self._note(
                state=ReceiverState.STARTING,
                reason=death.reason,
                pid=None,
                restarts=self._report.restarts + 1,
            )
            self._stopping.wait(delay)
            delay = min(2 * delay, _LAST_DELAY)

    def _live_once(self) -> _Death | None:
        """Run one receiver to its end; how it came, or None when we are stopping."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._streamed, self._error = False, None
            try:
                process = self._process = subprocess.Popen(
                    (*self._command, str(logging.getLogger("penstock").getEffectiveLevel())),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    # Ctrl-C reaches the whole foreground group; the receiver must
                    # not stop before we tell it to.
                    start_new_session=True,
                )
            except OSError as error:
                # Too many processes, or too little memory: that may pass.
                return _Death(f"it could not be started: {error}")
        self._note(pid=process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        words = _LastWords(process.stderr)
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(self._line)
                process.stdin.flush()
            for line in _lines(process.stdout):
                self._take(line)
            code = process.wait()
            return _Death(_ending(code, words.telling()), fatal=code == _FATAL)
        finally:
            # Where something else ended the supervision: nobody would stop this one.
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()
            process.wait()

    def _take(self, line: str) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        name = event.get("event") if isinstance(event, dict) else None
        if not isinstance(name, str):
            logger.warning("receiver said something that is no event")
            return
        if name == "log":
            _log(event)
        elif name == "error":
            self._error = PenstockError(
                _kind(event.get("kind")), str(event.get("message")), hint=event.get("hint")
            )
        elif name in _EVENT_STATES:
            self._streamed |= name == "streaming"
            reason = event.get("reason")
            logger.info("receiver %s", name, extra={"reason": reason} if reason else None)
            self._note(state=_EVENT_STATES[name], reason=reason)

    def _verdict(self, death: _Death, fruitless: int) -> PenstockError | None:
        """The error that ends the pipeline, if this death does."""
        if death.fatal and self._error is not None:
            return self._error
        if fruitless >= _FRUITLESS_LIMIT:
            return PenstockError(
                ErrorKind.INTERNAL,
                f"the receiver died {fruitless} times before it could stream: {death.reason}",
                hint="what it logged before says more",
            )
        return None

    def _note(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)


class _LastWords:
    """A receiver's standard error: logged as it comes, by a thread that ends with it."""

    def __init__(self, stderr: IO[str]) -> None:
        self._stderr = stderr
        self._last: deque[str] = deque(maxlen=200)
        self._thread = Thread(target=self._listen, name="penstock-receiver-stderr", daemon=True)
        self._thread.start()

    def telling(self) -> str | None:
        """The line that names the trouble of one that has ended, if it left any."""
        self._thread.join(_LAST_WORDS_S)  # to its end, unless a child of its own lives on
        last = list(self._last)
        named = [line for line in last if re.match(r"\S.*(rror|xception)", line)]
        return shorten((named or last)[-1]) if last else None

    def _listen(self) -> None:
        with self._stderr:
            for line in map(str.rstrip, _lines(self._stderr)):
                if line:
                    self._last.append(line)
                    logger.warning("receiver wrote to standard error", extra={"line": line})


def _lines(stream: IO[str]) -> Iterator[str]:
    """Line by line, to the end; one that is too long comes in pieces."""
    return iter(partial(stream.readline, _LINE_LIMIT), "")


def _log(event: dict[str, Any]) -> None:
    """Log what a receiver has logged, as if it had been logged here."""
    match event:
        case {"logger": str(name), "level": int(level), "message": str(message), "extra": dict()}:
            target = logging.getLogger(name)
            if not target.isEnabledFor(level):
                return
            stack = event.get("stack")
            record = logging.makeLogRecord(
                {
                    "name": name,
                    "levelno": level,
                    "levelname": logging.getLevelName(level),
                    "msg": message,
                    "exc_text": stack if isinstance(stack, str) else None,
                }
            )
            vars(record).update({**event["extra"], **vars(record)})
            target.handle(record)
        case _:
            logger.warning("receiver logged something that is no record")


def revealed(config: PipelineConfig) -> dict[str, Any]:
    """The configuration as JSON can hold it, with its secrets readable: for the child alone."""
    # Only what was set: a default of ours that is given counts for more than the URI.
    given = config.model_dump(include=set(PipelineConfig.model_fields), exclude_unset=True)
    plain: dict[str, Any] = _reveal(given)
    # Also where it was not set: the child resolves nothing against a directory of its own.
    plain.setdefault("journal", {})["location"] = str(config.journal_path)
    return plain


def _reveal(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case dict():
            return {name: _reveal(each) for name, each in value.items()}
        case list() | tuple():
            return [_reveal(each) for each in value]
        case _:
            return value


def _kind(name: Any) -> ErrorKind:
    try:
        return ErrorKind(name)
    except ValueError:
        return ErrorKind.INTERNAL


def _ending(code: int, words: str | None) -> str:
    ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{ending}: {words}" if words else ending
