"""A table's rows into Parquet files: one Spark job, whose tasks write the files.

Nothing but reports goes through Spark itself. A task opens one connection inside
the copy's snapshot, takes one range of blocks after another, and writes what it
reads to files of its own. Its report names the files; a file that no report
names (of a task that Spark ran twice, or lost) does not count and is removed.

Tasks share a *control directory* beside the files, which does four things that
Spark's own means do late or not at all:

- ranges are claimed there, by creating a file, so that a task which is ahead takes
  over ranges of one that is behind, with never more connections than allowed;
- files grow there, so that under its final name a file is whole;
- tasks count their rows there, so that progress shows before a task ends;
- a task that fails, and a driver that wants to stop, leave a note there, at
  which every task ends after the batch it is at. One that waits for Postgres, for a
  lock or for a row that the filter lets through, has its COPY cancelled.

A range that was claimed by a task whose report never came is read again by a
further job, in the same snapshot.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penstock.config import MIB, PgConnection
from penstock.errors import ErrorKind, PenstockError, shorten
from penstock.journal.files import disk_trouble, sync
from penstock.postgres.connection import cancelled_when
from penstock.postgres.copy import (
    CtidRange,
    OnUnrepresentable,
    arrow_schema,
    copy_range,
    snapshot_session,
)
from penstock.schema import TableName, TableSchema
from penstock.spark.control_directory import ControlDirectory
from penstock.spark.row_files import RowFile, RowFileWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Extracted:
    """Whole Parquet files with the rows of all ranges; `nulled` values were unrepresentable."""

    files: tuple[str, ...]
    rows: int
    bytes: int
    nulled: int


def extract(
    session: SparkSession,
    connection: PgConnection,
    table: TableSchema,
    ranges: Sequence[CtidRange],
    snapshot_id: str,
    directory: str | Path,
    *,
    on_unrepresentable: OnUnrepresentable = "error",
    row_filter: str | None = None,
    connections: int = 4,
    compression: str = "zstd",
    max_file_bytes: int = 128 * MIB,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> Extracted:
    """Read `ranges` inside the exported snapshot into Parquet files under `directory`.

    The directory is one that every executor sees; it is made if it is missing. At
    most `connections` sessions are open at a time, and no more than there are
    cores. `progress` is told now and then, from another thread, how many rows
    have been read; setting `stop` ends the job soon, with an error.
    """
    directory = Path(directory).absolute()
    copy_id = uuid.uuid4().hex
    control = ControlDirectory(directory / f".extract-{copy_id}")
    work = _Work(
        connection,
        table,
        tuple(ranges),
        tuple(range(len(ranges))),
        snapshot_id,
        directory,
        copy_id,
        control,
        on_unrepresentable,
        row_filter,
        compression,
        max_file_bytes,
    )
    with _staging(table.name, directory):
        control.path.mkdir(parents=True)
    try:
        with _watched(control, progress, stop):
            reports = _run_until_done(session, work, connections)
        files = [file for report in reports for file in report.files]
        with _staging(table.name, directory):
            _remove_unreported(directory, copy_id, {file.name for file in files})
            sync(directory)
    except BaseException:
        _remove_unreported(directory, copy_id, set())
        raise
    finally:
        shutil.rmtree(control.path, ignore_errors=True)
    rows = sum(file.rows for file in files)
    if progress is not None:
        progress(rows)
    return Extracted(
        tuple(str(directory / file.name) for file in files),
        rows,
        sum(file.bytes for file in files),
        sum(report.nulled for report in reports),
    )


# The driver's side.


def _run_until_done(session: SparkSession, work: _Work, connections: int) -> list[_Report]:
    reports: list[_Report] = []
    while work.numbers:
        tasks = min(connections, _cores(session), len(work.numbers))
        answers = [_Report.loads(text) for text in _run_job(session, work, tasks)]
        for failure in (report.failure for report in answers if report.failure is not None):
            raise failure.rebuilt(work.table.name)
        if any(report.stopped for report in answers):
            raise PenstockError(
                ErrorKind.SOURCE_SNAPSHOT,
                "the copy was stopped before its end",
                hint="it starts again from the beginning",
                table=work.table.name,
            )
        done = {number for report in answers for number in report.ranges}
        if not done:
            raise PenstockError(
                ErrorKind.INTERNAL,
                "the tasks of the copy were lost without reading anything",
                hint="look at the executors' logs for what ended their Python processes",
                table=work.table.name,
            )
        reports += answers
        work = replace(work, numbers=tuple(n for n in work.numbers if n not in done))
        work.control.forget_claims(work.numbers)
    return reports


def _run_job(session: SparkSession, work: _Work, tasks: int) -> list[str]:
    """One Spark job of one row per task, made of its number and turned into its report."""
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    # The work travels as a pickled function: neither plan nor user interface
    # shows the connection in it.
    def extract_ranges(task: int) -> str:
        return work.perform(task, tasks).dumps()

    report = udf(extract_ranges, "string", useArrow=False).asNondeterministic()
    try:
        rows = session.range(0, tasks, 1, tasks).select(report("id")).collect()
    except PySparkException as error:
        raise PenstockError(
            ErrorKind.INTERNAL,
            f"the copy's Spark job failed: {_last_word(error)}",
            hint="the driver's and the executors' logs tell more; a Python process that was"
            " killed for its memory is the usual cause",
            table=work.table.name,
        ) from error
    return [row[0] for row in rows]


def _last_word(error: Exception) -> str:
    """What a task's traceback ends with, without the JVM's below it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return shorten((python or lines or [type(error).__name__])[-1])


def _cores(session: SparkSession) -> int:
    try:
        return max(session.sparkContext.defaultParallelism, 1)
    except AttributeError:  # Spark Connect does not tell
        return 2**31


@contextmanager
def _watched(
    control: ControlDirectory, progress: Callable[[int], None] | None, stop: threading.Event | None
) -> Iterator[None]:
    """Look after the tasks from a thread for as long as the block lasts."""
    if progress is None and stop is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_SECONDS):
            if progress is not None:
                progress(control.counted())
            if stop is not None and stop.is_set():
                control.stop()

    watcher = threading.Thread(target=watch, name="extract-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _remove_unreported(directory: Path, copy_id: str, reported: set[str]) -> None:
    for path in directory.glob(f"rows-{copy_id}-*"):
        if path.name not in reported:
            path.unlink(missing_ok=True)


@contextmanager
def _staging(table: TableName, directory: Path) -> Iterator[None]:
    """Say what a failure to write below `directory` means."""
    try:
        yield
    except OSError as error:
        raise PenstockError(
            disk_trouble(error),
            f"cannot write copied rows to {directory}: {error.strerror or error}",
            hint="make the directory writable, with room for the table, from every executor",
            table=table,
        ) from error


# The tasks' side.


@dataclass(frozen=True, slots=True)
class _Failure:
    """A `PenstockError` on its way from a task to the driver."""

    kind: str
    message: str
    hint: str | None

    def rebuilt(self, table: TableName) -> PenstockError:
        return PenstockError(ErrorKind(self.kind), self.message, hint=self.hint, table=table)


@dataclass(frozen=True, slots=True)
class _Report:
    """What a task has done: `ranges` by number, all their rows in `files`.

    `stopped` says that it found the note, which another task or the driver left.
    """

    files: tuple[RowFile, ...] = ()
    ranges: tuple[int, ...] = ()
    nulled: int = 0
    stopped: bool = False
    failure: _Failure | None = None

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Self:
        data = json.loads(text)
        return cls(
            tuple(RowFile(**file) for file in data["files"]),
            tuple(data["ranges"]),
            data["nulled"],
            data["stopped"],
            _Failure(**data["failure"]) if data["failure"] else None,
        )


@dataclass(frozen=True)
class _Work:
    """All that a task needs to know. `numbers` are the ranges that this job is to read."""

    connection: PgConnection
    table: TableSchema
    ranges: tuple[CtidRange, ...]
    numbers: tuple[int, ...]
    snapshot_id: str
    directory: Path
    copy_id: str
    control: ControlDirectory
    on_unrepresentable: OnUnrepresentable
    row_filter: str | None
    compression: str
    max_file_bytes: int

    def perform(self, task: int, tasks: int) -> _Report:
        """Read ranges until none is left. An error is reported, and ends the other tasks."""
        try:
            with _staging(self.table.name, self.directory):
                return self._read_ranges(self._in_order(task, tasks))
        except PenstockError as error:
            if self.control.stopped:  # cancelled, most likely: whoever left the note knows why
                return _Report(stopped=True)
            self.control.stop()
            return _Report(failure=_Failure(str(error.kind), error.message, error.hint))

    def _in_order(self, task: int, tasks: int) -> list[int]:
        """A task's own share from its start, then the others' from the end.

        So a task's files hold rows that lie close together at the source, for
        which their statistics tell more.
        """
        first, end = (len(self.numbers) * n // tasks for n in (task, task + 1))
        others = self.numbers[:first] + self.numbers[end:]
        return [*self.numbers[first:end], *reversed(others)]

    def _read_ranges(self, numbers: Sequence[int]) -> _Report:
        first = next((number for number in numbers if self.control.claim(number)), None)
        if first is None:
            return _Report()
        attempt = uuid.uuid4().hex[:8]
        writer = RowFileWriter(
            self.directory,
            self.control.path,
            f"rows-{self.copy_id}-{attempt}",
            arrow_schema(self.table),
            compression=self.compression,
            max_file_bytes=self.max_file_bytes,
        )
        rows = nulled = 0
        done: list[int] = []
        with (
            self.control.counter(attempt) as count,
            snapshot_session(self.connection, self.snapshot_id) as session,
            cancelled_when(lambda: self.control.stopped, session),
        ):
            for number in numbers:
                if number != first and not self.control.claim(number):
                    continue
                for copied in copy_range(
                    session,
                    self.table,
                    self.ranges[number],
                    row_filter=self.row_filter,
                    on_unrepresentable=self.on_unrepresentable,
                ):
                    writer.write(copied.batch)
                    rows += copied.batch.num_rows
                    nulled += copied.nulled
                    count(rows)
                    if self.control.stopped:
                        return _Report(stopped=True)
                done.append(number)
        writer.close()
        return _Report(tuple(writer.files), tuple(done), nulled)
