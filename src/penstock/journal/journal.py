"""The durable change log between Postgres and Spark.

    <root>/journal.json            whose journal it is: slot, database, source cluster
    <root>/timeline.json           the source's timeline, which changes at a promotion
    <root>/manifests/0000000042.json
    <root>/segments/<oid>/<number>-<random>.parquet
    <root>/checkpoint.json         what removed manifests said that is still needed
    <root>/copies/<copy id>/...    files of copies under way (the copier's)
    <root>/requests/<oid>.resync   what was asked of tables from outside (the pipeline's)
    <root>/terms/<oid>.json        how tables were published when they were copied (likewise)
    <root>/departed/<oid>          which tables left and stay at the destination (likewise)

One process appends (`writer.JournalWriter`, the receiver), any number read (`Journal`).
A reader keeps an index of the manifests in memory and `refresh`es it from the
next number on, so following the journal costs one failed `open` when nothing is
new. The pipeline retires what every table has passed: `checkpoint.json` is
written first, then manifests go from the oldest on, then segment files, so that a crash
in between leaves nothing worse than a file that nobody names.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Self

from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.journal.files import replace, sync
from penstock.journal.manifest import Manifest, SegmentRef
from penstock.journal.retention import Checkpoint, count_up_to, plan_retirement
from penstock.publication_drift.sent_partitions import SentPartitions
from penstock.schema import ZERO_LSN, Lsn, TableId, TableSchema
from penstock.states import VisibleXids


@dataclass(frozen=True, slots=True)
class SourceHistory:
    """The timeline that the source was on, None before anybody looked; and where its WAL
    ended when it was found behind the journal."""

    timeline: int | None = None
    set_back_to: Lsn | None = None

    @classmethod
    def of(cls, root: Path) -> Self:
        """As it is kept with the journal at `root`."""
        try:
            data: dict[str, Any] = json.loads((root / _TIMELINE).read_text("utf-8"))
        except FileNotFoundError:
            return cls()
        set_back_to = data.get("set_back_to")
        return cls(data.get("timeline"), Lsn.parse(set_back_to) if set_back_to else None)

    def keep(self, root: Path) -> None:
        data: dict[str, Any] = {}
        if self.timeline is not None:
            data["timeline"] = self.timeline
        if self.set_back_to is not None:
            data["set_back_to"] = str(self.set_back_to)
        replace(root / _TIMELINE, json.dumps(data))


_WORTH_A_CHECKPOINT = 64
_TRUNCATIONS = 1000
_TIMELINE = "timeline.json"
"""How many transactions that truncated a table are remembered: those of seconds matter."""


@dataclass(frozen=True, slots=True)
class JournalOwner:
    """Whose changes a journal holds. A journal is never mixed."""

    slot: str
    system_identifier: str
    database: str

    def to_json(self) -> dict[str, str]:
        return {
            "slot": self.slot,
            "system_identifier": self.system_identifier,
            "database": self.database,
        }


@dataclass(frozen=True, slots=True)
class TableFlush:
    """What one flush holds of one table; `end` is the flush's end, a place for a cursor.

    `announced` are versions of the table that begin in it, whether or not rows are in them.
    """

    end: Lsn
    last_commit_at: datetime | None
    segments: tuple[SegmentRef, ...]
    announced: tuple[Lsn, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


class Journal:
    """A reader of the journal at `root`. Thread-safe.

    Cheap to make: nothing is read before `refresh`. A journal that does not
    exist yet is simply empty.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.manifests_directory = self.root / "manifests"
        self.segments_directory = self.root / "segments"
        self.copies_directory = self.root / "copies"
        self._lock = RLock()
        self._retiring = Lock()
        self._manifests: list[Manifest] = []
        self._checkpoint = Checkpoint()
        self._schemas: dict[TableId, dict[Lsn, TableSchema]] = {}
        self._flushes: dict[TableId, list[TableFlush]] = {}
        self._truncated_by: dict[TableId, deque[int]] = {}
        self._partitions = SentPartitions()
        self._loaded = False

    # What there is.

    def owner(self) -> JournalOwner | None:
        """Whose journal this is; None when it is new."""
        try:
            data: dict[str, Any] = json.loads((self.root / "journal.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return JournalOwner(data["slot"], data["system_identifier"], data["database"])

    def source_history(self) -> SourceHistory:
        """The source's past, as the receiver found it last."""
        return SourceHistory.of(self.root)

    def refresh(self) -> int:
        """Take in manifests that are new; how many."""
        with self._lock:
            first = not self._loaded and self.root.exists()
            if first:
                self._load_checkpoint()
                self._loaded = True
            taken = self._follow()
            # Another process may retire while we read for the first time. Then a
            # manifest that is not there was here before, rather than not yet: taking
            # that for the end, a receiver would remove all that follows as litter.
            while first and self._overtaken():
                self._manifests, self._flushes, self._schemas = [], {}, {}
                self._load_checkpoint()
                taken = self._follow()
            return taken

    def _follow(self) -> int:
        taken = 0
        while (manifest := self._read(self._next_number())) is not None:
            if self._manifests and manifest.start != self.end:
                raise PenstockError(
                    ErrorKind.JOURNAL,
                    f"manifest {manifest.number} of {self.root} starts at {manifest.start},"
                    f" but the one before it ends at {self.end}",
                    hint="the journal was tampered with; restore it or resync the pipeline",
                )
            self._take(manifest)
            taken += 1
        return taken

    def _overtaken(self) -> bool:
        """Whether manifests are gone that we have not read. (A checkpoint is written first.)"""
        return self._read_checkpoint().first_number > self._next_number()

    @property
    def empty(self) -> bool:
        """Whether it has no manifest, and so no position, yet."""
        with self._lock:
            return not self._manifests

    @property
    def start(self) -> Lsn:
        """Changes committed before this are not (or no longer) here."""
        with self._lock:
            return self._manifests[0].start if self._manifests else ZERO_LSN

    @property
    def began(self) -> Lsn:
        """Where its very first manifest started. A cursor before this is of another journal."""
        with self._lock:
            return self.start if self._checkpoint.first_number == 1 else self._checkpoint.began

    @property
    def end(self) -> Lsn:
        with self._lock:
            return self._manifests[-1].end if self._manifests else ZERO_LSN

    @property
    def last_manifest(self) -> Manifest | None:
        with self._lock:
            return self._manifests[-1] if self._manifests else None

    @property
    def bytes(self) -> int:
        """What the segments that are still here take on disk."""
        with self._lock:
            return sum(flush.bytes for flushes in self._flushes.values() for flush in flushes)

    def table_bytes(self, table_id: TableId, after: Lsn = ZERO_LSN) -> int:
        """What a table's segments behind `after` take."""
        return sum(flush.bytes for flush in self.pending(table_id, after))

    def tables(self) -> set[TableId]:
        with self._lock:
            return set(self._flushes)

    def pending(self, table_id: TableId, after: Lsn) -> list[TableFlush]:
        """The flushes with something of a table that end behind `after`, oldest first."""
        with self._lock:
            flushes = self._flushes.get(table_id, [])
            return flushes[count_up_to(flushes, after) :]

    def held_back(self, table_id: TableId, after: Lsn = ZERO_LSN) -> int:
        """How many manifests have to stay for what a table has behind `after`."""
        with self._lock:
            pending = self.pending(table_id, after)
            if not pending:
                return 0
            return len(self._manifests) - count_up_to(self._manifests, pending[0].end) + 1

    def first_cursor(self, table_id: TableId) -> Lsn:
        """The earliest cursor that can be served: before everything that is here of a table."""
        with self._lock:
            return max(self._dropped(table_id), self.start)

    def reaches_back_to(self, table_id: TableId, cursor: Lsn) -> bool:
        """Whether all changes of a table behind `cursor` are here."""
        with self._lock:
            return cursor >= self._dropped(table_id)

    def emptied_or_rewrote(self, table_id: TableId, xid: int) -> bool:
        """Whether a transaction truncated a table, or announced a change of its columns."""
        with self._lock:
            versions = self._schemas.get(table_id, {}).values()
            return xid in self._truncated_by.get(table_id, ()) or any(
                note is not None and note.xid == xid and (note.reshaped or note.rewritten)
                for note in (version.note for version in versions)
            )

    def partitions_sent_under(self, table_id: TableId) -> dict[int, int]:
        """The partitions that the stream told of as sent under a table's name, by oid, with the
        transaction that it last did in."""
        with self._lock:
            return dict(self._partitions.under(table_id))

    def forget_partitions(self, judged: VisibleXids) -> None:
        """Drop what those transactions told of partitions."""
        with self._lock:
            self._partitions.forget(judged)

    def sent_elsewhere(self, table_id: TableId, partitions: Iterable[int]) -> dict[int, int]:
        """The same of a table and its partitions that were sent under another's name."""
        with self._lock:
            return self._partitions.elsewhere(table_id, (table_id.oid, *partitions))

    def schema(self, table_id: TableId, version: Lsn) -> TableSchema:
        with self._lock:
            return self._schemas[table_id][version]

    def latest_schemas(self) -> dict[TableId, TableSchema]:
        """The newest version of every table that ever appeared."""
        with self._lock:
            return {
                table_id: versions[max(versions)] for table_id, versions in self._schemas.items()
            }

    def file(self, segment: SegmentRef) -> str:
        """The full path of a segment, as Spark wants it."""
        return str(self.root / segment.path)

    # What may go.

    def retire(self, passed: Mapping[TableId, Lsn], *, retention: timedelta = timedelta(0)) -> int:
        """Drop segments up to each table's position in `passed`; the bytes freed.

        A table that is not in `passed` keeps everything.
        """
        with self._retiring:
            with self._lock:
                known = self._checkpoint.dropped
                goes = plan_retirement(self._manifests, self._flushes, known, passed, retention)
                # A checkpoint has every schema: too much for a few idle seconds' manifests.
                if goes.dropped == known and len(goes.manifests) < _WORTH_A_CHECKPOINT:
                    return 0
                first = self._manifests[len(goes.manifests)]
                schemas = {(s.id, s.version): s for s in self._checkpoint.schemas}
                schemas |= {(s.id, s.version): s for m in goes.manifests for s in m.schemas}
                truncated_by = {t: tuple(xids) for t, xids in self._truncated_by.items()}
                checkpoint = Checkpoint(
                    first.number,
                    first.start,
                    tuple(schemas.values()),
                    goes.dropped,
                    self.began,
                    truncated_by,
                    self._partitions.everything(),
                )
            # Without the lock: who reads meanwhile does not wait for the disk.
            replace(self.root / "checkpoint.json", checkpoint.dumps())
            with self._lock:
                self._checkpoint = checkpoint
                del self._manifests[: len(goes.manifests)]
                for table_id, flushes in self._flushes.items():
                    del flushes[: count_up_to(flushes, self._dropped(table_id))]
        for manifest in goes.manifests:
            self._manifest_path(manifest.number).unlink(missing_ok=True)
        for segment in goes.segments:
            (self.root / segment.path).unlink(missing_ok=True)
        return sum(segment.bytes for segment in goes.segments)

    def _dropped(self, table_id: TableId) -> Lsn:
        return self._checkpoint.dropped.get(table_id, ZERO_LSN)

    def discard(self) -> None:
        """Remove everything: its slot is lost. Hold the receiver's lock.

        `journal.json` goes last: killed before that, the journal still belongs to
        its slot, and being discarded again does no harm.
        """
        with self._lock:
            for directory in (self.manifests_directory, self.segments_directory):
                shutil.rmtree(directory, ignore_errors=True)
                failpoint("directory_discarded")
            for name in ("checkpoint.json", _TIMELINE, "journal.json"):
                (self.root / name).unlink(missing_ok=True)
            sync(self.root)
            self._manifests, self._flushes, self._schemas = [], {}, {}
            self._truncated_by, self._partitions = {}, SentPartitions()
            self._checkpoint = Checkpoint()

    # Reading.

    def _next_number(self) -> int:
        return self._manifests[-1].number + 1 if self._manifests else self._checkpoint.first_number

    def _manifest_path(self, number: int) -> Path:
        return self.manifests_directory / f"{number:010d}.json"

    def _read(self, number: int) -> Manifest | None:
        try:
            text = self._manifest_path(number).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return Manifest.loads(text)

    def _load_checkpoint(self) -> None:
        self._checkpoint = self._read_checkpoint()
        for schema in self._checkpoint.schemas:
            self._schemas.setdefault(schema.id, {})[schema.version] = schema
        for table_id, xids in self._checkpoint.truncated_by.items():
            self._truncated_by[table_id] = deque(xids, _TRUNCATIONS)
        self._partitions.take(self._checkpoint.partitions)

    def _read_checkpoint(self) -> Checkpoint:
        try:
            return Checkpoint.loads((self.root / "checkpoint.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Checkpoint()

    def _take(self, manifest: Manifest) -> None:
        self._manifests.append(manifest)
        for schema in manifest.schemas:
            self._schemas.setdefault(schema.id, {})[schema.version] = schema
        segments: dict[TableId, list[SegmentRef]] = defaultdict(list)
        for segment in manifest.segments:
            segments[segment.table_id].append(segment)
            if segment.truncated_by:
                known = self._truncated_by.setdefault(segment.table_id, deque(maxlen=_TRUNCATIONS))
                known.extend(segment.truncated_by)
        self._partitions.take(manifest.partitions)
        announced: dict[TableId, list[Lsn]] = defaultdict(list)
        for schema in manifest.announced:
            announced[schema.id].append(schema.version)
        for table_id in manifest.tables:
            if manifest.end > self._dropped(table_id):
                flush = TableFlush(
                    manifest.end,
                    manifest.last_commit_at,
                    tuple(segments[table_id]),
                    tuple(announced[table_id]),
                )
                self._flushes.setdefault(table_id, []).append(flush)
