"""Everything a journal ever held, kept aside while a pipeline runs, and judged.

A journal forgets what has been delivered, so what is wrong in it must be seen
before that. The archive follows the manifests and keeps hard links of them and of
their segments, which cost nothing and outlive the originals. (The pipeline under
test should retain for some seconds what it could drop at once.)

What must hold at every moment: manifests are contiguous, a change lies within
its manifest's bounds and is there once, and the slot is never ahead of the journal.
A journal that begins anew, because its slot was lost, is another one in the same place:
each is claimed by a `journal.json` of its own.
It reads the files itself rather than trusting the classes that wrote them.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.schema import Lsn

_POLL_S = 0.1
_PLACE = ("commit_lsn", "tx_ordinal")
_CONFIRMED = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"


@dataclass(frozen=True, slots=True)
class _Flush:
    number: int
    start: int
    end: int
    segments: tuple[Mapping[str, Any], ...]


class JournalArchive:
    """Follows the journal at `root` into `directory`, from `start` to `stop`.

    `problems` says what was found to be wrong, one line each.
    """

    def __init__(self, root: Path, directory: Path, dsn: str, slot: str) -> None:
        self._root = root
        self._directory = directory
        self._directory.mkdir(parents=True)
        self._dsn = dsn
        self._slot = slot
        self._claim: tuple[int, int] | None = None
        self._last: _Flush | None = None
        self._unjudged: list[_Flush] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="journal-archive", daemon=True)
        self.journals = 0
        self.problems: list[str] = []
        self.changes: Counter[str] = Counter()

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def end(self) -> Lsn:
        """How far the journal reaches."""
        with self._lock:
            return Lsn(self._last.end if self._last else 0)

    def judge(self) -> list[str]:
        """Look into all segments that came since the last time; every problem so far."""
        self.follow()
        with self._lock:
            fresh, self._unjudged = self._unjudged, []
        for flush in fresh:
            self._judge(flush)
        return self.problems

    def _run(self) -> None:
        try:
            while not self._stop.wait(_POLL_S):
                self.follow()  # the journal does not wait for a server that is away
                with (
                    contextlib.suppress(psycopg.OperationalError),  # it is being killed, too
                    psycopg.connect(self._dsn, autocommit=True) as connection,
                ):
                    while not self._stop.wait(_POLL_S):
                        self._look(connection)
        except Exception as error:
            self.problems.append(f"the archive could not go on: {error!r}")

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        # The slot first: the journal only grows, so it cannot fall behind in between.
        row = connection.execute(_CONFIRMED, [self._slot]).fetchone()
        self.follow()
        begun = bool(self.end)  # it begins where the new slot does
        if begun and row is not None and row[0] is not None and Lsn.parse(row[0]) > self.end:
            self.problems.append(f"the slot is at {row[0]}, ahead of the journal's {self.end}")

    def follow(self) -> None:
        """Take in the manifests that are new."""
        with self._lock:
            while (claim := self._claimed()) is not None:
                if claim != self._claim:
                    self._claim, self._last = claim, None
                    self.journals += 1
                number = self._last.number + 1 if self._last else 1
                path = self._root / "manifests" / f"{number:010d}.json"
                try:
                    data = json.loads(path.read_text())
                except FileNotFoundError:
                    return
                if self._claimed() == claim:  # and not of a journal that has begun meanwhile
                    self._take(data, path)

    def _claimed(self) -> tuple[int, int] | None:
        """Names the journal that is there."""
        try:
            found = (self._root / "journal.json").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _take(self, data: Mapping[str, Any], path: Path) -> None:
        flush = _Flush(
            data["number"],
            Lsn.parse(data["start"]).value,
            Lsn.parse(data["end"]).value,
            tuple(data["segments"]),
        )
        if self._last and flush.start != self._last.end:
            self.problems.append(
                f"manifest {flush.number} starts at {Lsn(flush.start)}, but the one before it"
                f" ended at {Lsn(self._last.end)}"
            )
        for segment in flush.segments:
            try:
                os.link(self._root / segment["path"], self._kept(segment))
            except FileNotFoundError:
                if path.exists():  # or the whole journal is being discarded
                    self.problems.append(f"{path} names {segment['path']}: not there")
        self._last = flush
        self._unjudged.append(flush)

    def _kept(self, segment: Mapping[str, Any]) -> Path:
        return self._directory / str(segment["path"]).replace("/", "-")

    def _judge(self, flush: _Flush) -> None:
        """Each change is within the bounds, which do not overlap, and there only once."""
        seen: set[tuple[int, int, int]] = set()
        for segment in flush.segments:
            path = self._kept(segment)
            if not path.exists():
                continue
            rows = pq.read_table(path, columns=["op", "commit_lsn", "tx_ordinal"])
            for found in pc.value_counts(rows["op"]).to_pylist():
                self.changes[found["values"]] += found["counts"]
            if rows.num_rows != segment["rows"]:
                self.problems.append(f"{path} has {rows.num_rows} rows, not {segment['rows']}")
            for lsn, ordinal in zip(*(rows[n].to_pylist() for n in _PLACE), strict=True):
                place = (segment["table"], lsn, ordinal)
                if place in seen:
                    self.problems.append(f"{path} has the change {ordinal} of {Lsn(lsn)} again")
                elif not flush.start <= lsn < flush.end:
                    self.problems.append(f"{path} has a change at {Lsn(lsn)}, outside its manifest")
                seen.add(place)
