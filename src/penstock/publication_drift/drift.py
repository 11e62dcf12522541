"""Compares a table's publication terms in the catalog with those of its copy.

The source watch reads the publication every few seconds. A change of columns also comes through
the stream, with the next row. A change of terms (see `terms`) comes through nothing else. So
the terms of each copy are stored in a file next to the journal, and a change is found even if
it happened while no pipeline ran. The file is written before the state `finished_copy`: after a
crash between the two, the copy and the file are made again.

    <journal>/terms/<oid>.json
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from penstock.destinations.schema_change import SchemaChangeAction
from penstock.errors import ErrorKind, PenstockError
from penstock.failpoints import failpoint
from penstock.journal.files import replace
from penstock.journal.journal import Journal
from penstock.pipeline.applier import RESYNC_HINT, Applier
from penstock.pipeline.context import PipelineContext
from penstock.pipeline.source_watch import Membership
from penstock.postgres.catalog import PublishedTable
from penstock.postgres.connection import connect
from penstock.publication_drift.catalog import brought_rows, kept_rows
from penstock.publication_drift.terms import Partition, Terms
from penstock.schema import Lsn, TableId, TableSchema
from penstock.states import VisibleXids

logger = logging.getLogger("penstock.pipeline.table")

_LOCK_MS = 10_000


@dataclass(frozen=True, slots=True)
class _Refiled:
    """Partitions (or the table itself) whose relfilenode differs under `terms`. Whether the stream
    contains the reason is known once the journal has reached `until`."""

    partitions: dict[int, Partition]
    terms: Terms
    until: Lsn


class Drift:
    """The drift of one table. The watch thread calls `see`; the table's jobs call the rest."""

    def __init__(self, context: PipelineContext, table_id: TableId) -> None:
        self._context = context
        self._table_id = table_id
        self._file = _file(context.journal.root, table_id)
        self._lock = RLock()
        self._kept: Terms | None = None
        self._kept_at = 0.0
        self._differing: Membership | None = None
        self._broken: str | None = None
        self._refiled: _Refiled | None = None
        self._joined: Terms | None = None

    def see(self, published: PublishedTable, seen: Membership, there: TableSchema) -> None:
        """Compare the copy's terms with what the catalog shows; `there` is the destination's
        schema."""
        self._differing = None if published.schema.same_columns(there) else seen
        with self._lock:
            kept = self._kept or self._load()
            if kept is None or seen.read_at <= self._kept_at:
                return
            self._joined = None
            self._broken = kept.broken_by(published.terms) or self._missed(kept, published.terms)
            if self._broken is not None:
                return
            if (refiled := self._refiled) is not None:
                # Decide the earlier look first; it waits for an earlier position of the journal.
                if self._context.journal.end >= refiled.until and not self._untold():
                    self._accept(kept, refiled.terms)
            elif partitions := kept.refiled_by(published.terms):
                self._refiled = _Refiled(partitions, published.terms, seen.source_at)
            elif published.terms != kept:
                self._accept(kept, published.terms)
            elif kept.aged(published.terms) and self._context.journal.end >= seen.source_at:
                if kept.since is not None:
                    self._context.journal.forget_partitions(kept.since)
                self._go_on_with(published.terms, published.terms.seen)

    def _accept(self, kept: Terms, now: Terms) -> None:
        """Adopt the new terms, unless they have a new partition that may have brought rows."""
        if kept.joined_by(now):
            self._joined = now
        else:
            self._go_on_with(now)

    def _missed(self, kept: Terms, now: Terms) -> str | None:
        """Return what happened between two looks at the catalog: a partition that came and went,
        or changes that were sent under another table's name."""
        journal = self._context.journal
        for oid, xid in journal.partitions_sent_under(self._table_id).items():
            known = oid in kept.partitions or oid in now.partitions
            if not known and kept.judged_since(now, xid):
                return f"partition {journal.latest_schemas()[TableId(oid)].name} came and went"
        for oid, xid in journal.sent_elsewhere(self._table_id, kept.partitions).items():
            if kept.judged_since(now, xid):
                name = journal.latest_schemas()[TableId(oid)].name
                return f"changes of {name} were published under the name of another table"
        return None

    def keep(self, terms: Terms) -> None:
        """Store the terms to compare with from now on. They are durable when this returns."""
        with self._lock:
            self._file.parent.mkdir(exist_ok=True)
            replace(self._file, json.dumps(terms.to_json()))
            failpoint("terms_kept")
            self._kept, self._kept_at = terms, time.monotonic()
            self._broken = self._refiled = self._joined = None

    def _go_on_with(self, terms: Terms, since: VisibleXids | None = None) -> None:
        """Store changed terms for the same copy: its timeline stays. Transactions before `since`
        need no further check."""
        with self._lock:
            copied = self._kept or terms
            self.keep(
                dataclasses.replace(terms, timeline=copied.timeline, since=since or copied.since)
            )

    @property
    def left_behind(self) -> bool:
        """Whether the source was promoted since the copy was made.

        The new primary may lack transactions that the snapshot saw, and may assign their ids
        to other transactions. Changes in the journal up to a promotion are safe (the receiver
        checks that), so this matters only until the copy's barrier is passed.
        """
        kept = self._kept or self._load()
        now = self._context.journal.source_history().timeline
        return kept is not None and now is not None and kept.timeline not in (0, now)

    @property
    def exact(self) -> bool:
        """Whether the publication sends every kind of change; only then does a mirror equal it."""
        kept = self._kept or self._load()
        return kept is None or kept.exact

    def keep_first(self, terms: Terms) -> None:
        """Store terms for a copy that was made by a release that stored none."""
        if self._kept is None and self._load() is None:
            self.keep(terms)

    def drifted_from(self, applier: Applier) -> bool:
        """Whether a look at the catalog, after the applier adopted its schema, found other columns
        than the destination has, and the journal has passed that look without a new version."""
        seen = self._differing
        return (
            seen is not None
            and seen.read_at > applier.adopted_at
            and self._context.journal.end >= seen.source_at
        )

    @property
    def broken(self) -> str | None:
        """What happened to the rows that the stream does not carry, in words; None if nothing.

        A difference of columns is handled first, by `schema_change_policy`.
        """
        return None if self._differing else self._found()

    def unsettled(self, applier: Applier | None) -> bool:
        """Whether a look at the catalog found a difference that is not decided yet."""
        seen, refiled = self._differing, self._refiled
        return (
            (seen is not None and (applier is None or seen.read_at > applier.adopted_at))
            or (refiled is not None and self._context.journal.end < refiled.until)
            or self._found() is not None
        )

    def _found(self) -> str | None:
        if self._broken is None and (untold := self._untold()):
            if self._table_id.oid in untold:
                return "its rows were rewritten, or it was unlogged for a while"
            return f"partition {_names(untold)} was truncated by itself or rewritten"
        kept, joined = self._kept, self._joined
        if self._broken is None and kept is not None and joined is not None:
            return f"partition {_names(kept.joined_by(joined))} was attached"
        return self._broken

    def _untold(self) -> dict[int, Partition]:
        """Partitions whose relfilenode changed for a reason that the stream did not report."""
        refiled, journal = self._refiled, self._context.journal
        if refiled is None or journal.end < refiled.until:
            return {}
        return {
            oid: partition
            for oid, partition in refiled.partitions.items()
            if not journal.emptied_or_rewrote(self._table_id, partition.touched_by)
        }

    def _lost_nothing(self) -> bool:
        """Whether every difference is a partition that kept its rows, or that had no rows when it
        was attached. Looks into the partitions."""
        kept, refiled, untold = self._kept, self._refiled, self._untold()
        terms = refiled.terms if refiled and untold else self._joined
        if self._broken is not None or kept is None or terms is None:
            return False
        config = self._context.config
        try:
            with connect(config.pg_connection, f"{config.id}_watch") as session:
                session.execute(f"SET lock_timeout = {_LOCK_MS}")
                if untold and not (kept.seen and kept_rows(session, untold, kept.seen)):
                    return False
                if brought_rows(session, kept.joined_by(terms)):
                    return False
        except PenstockError as error:
            if error.kind.retryable:
                raise
            return False  # a partition is gone, or may not be read
        self._go_on_with(terms)
        return True

    def wants_copy(self, published: PublishedTable) -> bool:
        """Whether the terms are broken and the destination asks for another copy."""
        broken = self.broken
        if broken is None or self._lost_nothing():
            return False
        table, copied = published.schema, self._context.config.table_sync_copy
        if copied.includes(str(table.name)):
            action = self._context.destination.rows_changed(table, broken)
        else:
            action = SchemaChangeAction.CONTINUE  # the table was never copied
        logger.info(
            "table has other rows, and no change tells which",
            extra={"table": str(table.name), "what": broken, "action": action.value},
        )
        if action is SchemaChangeAction.ERROR:
            raise PenstockError(
                ErrorKind.SOURCE_SCHEMA,
                f"{broken}, and the destination does not follow that",
                hint=RESYNC_HINT,
                table=table.name,
            )
        if action is SchemaChangeAction.CONTINUE:
            self._go_on_with(published.terms, published.terms.seen)
        return action is SchemaChangeAction.RESYNC

    def _load(self) -> Terms | None:
        self._kept = _load(self._file)
        return self._kept


def kept_terms(journal: Path, table_id: TableId) -> Terms | None:
    """The stored terms of a table's copy; None if there are none."""
    return _load(_file(journal, table_id))


def forget_terms(journal: Journal, table_id: TableId) -> None:
    """Remove the stored terms of a table that left the publication."""
    _file(journal.root, table_id).unlink(missing_ok=True)


def _names(partitions: Mapping[int, Partition]) -> str:
    return ", ".join(partition.name for partition in partitions.values())


def _file(journal: Path, table_id: TableId) -> Path:
    return journal / "terms" / f"{table_id.oid}.json"


def _load(file: Path) -> Terms | None:
    try:
        return Terms.from_json(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
