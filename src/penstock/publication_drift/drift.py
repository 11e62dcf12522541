"""How a table stands in the catalog, beside what its copy was made of.

The watch looks at the publication every few seconds. Columns that differ from what
the destination has are told by the stream too, with the next row; terms that are
broken (see `postgres.terms`) by nothing else. So the terms of the copy are kept in a
file beside the journal, and a change of them is found also when it happened while no
pipeline ran. The file is written before the copy counts: without the state that
follows it, the copy is made again and so is the file.

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
    """What has other files under `terms`: partitions, or the table itself. Whether the stream
    tells why is known when the journal has got `until`."""

    partitions: dict[int, Partition]
    terms: Terms
    until: Lsn


class Standing:
    """What is known of one table's standing. The watch sees, the table's jobs keep."""

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
        """Compare with how the catalog describes the table; `there` is what the destination
        has."""
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
                # An earlier look that still waits for the journal: a later one would
                # wait for longer.
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
        """Go on with other terms, unless a partition is new under them that may have rows."""
        if kept.joined_by(now):
            self._joined = now
        else:
            self._go_on_with(now)

    def _missed(self, kept: Terms, now: Terms) -> str | None:
        """What no look has seen: a partition that came and went, or rows that were sent under
        another table's name for a while."""
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
        """These are the terms from here on. Durable when this returns."""
        with self._lock:
            self._file.parent.mkdir(exist_ok=True)
            replace(self._file, json.dumps(terms.to_json()))
            failpoint("terms_kept")
            self._kept, self._kept_at = terms, time.monotonic()
            self._broken = self._refiled = self._joined = None

    def _go_on_with(self, terms: Terms, since: VisibleXids | None = None) -> None:
        """Keep what has changed since the copy, which is still of the timeline it was of.
        What was before `since` does not matter any more."""
        with self._lock:
            copied = self._kept or terms
            self.keep(
                dataclasses.replace(terms, timeline=copied.timeline, since=since or copied.since)
            )

    @property
    def left_behind(self) -> bool:
        """Whether the source was promoted since the copy was made.

        Then it may lack what the snapshot saw, and other transactions may have got the ids
        of those that are lost. What is in the journal up to a promotion is safe (the
        receiver sees to that), so this matters for a copy whose barrier is not passed.
        """
        kept = self._kept or self._load()
        now = self._context.journal.source_history().timeline
        return kept is not None and now is not None and kept.timeline not in (0, now)

    @property
    def exact(self) -> bool:
        """Whether the table's rows are all that the source has, and no others."""
        kept = self._kept or self._load()
        return kept is None or kept.exact

    def keep_first(self, terms: Terms) -> None:
        """Begin to keep terms for a copy that was made by a release which kept none."""
        if self._kept is None and self._load() is None:
            self.keep(terms)

    def drifted_from(self, applier: Applier) -> bool:
        """Whether the catalog, looked at since, has other columns than the destination, and
        the journal has nothing that would tell of it."""
        seen = self._differing
        return (
            seen is not None
            and seen.read_at > applier.adopted_at
            and self._context.journal.end >= seen.source_at
        )

    @property
    def broken(self) -> str | None:
        """What has happened to the rows that no change tells of, in words; None if nothing.

        Columns that differ come first: whether these are followed is for the policy to say.
        """
        return None if self._differing else self._found()

    def unsettled(self, applier: Applier | None) -> bool:
        """Whether a look has found what is not judged or followed yet."""
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
        """Those that have another file for a reason that is not in the journal."""
        refiled, journal = self._refiled, self._context.journal
        if refiled is None or journal.end < refiled.until:
            return {}
        return {
            oid: partition
            for oid, partition in refiled.partitions.items()
            if not journal.emptied_or_rewrote(self._table_id, partition.touched_by)
        }

    def _lost_nothing(self) -> bool:
        """Whether the broken terms are only those of partitions that still have their rows,
        or that had none when they were attached."""
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
            return False  # a partition that is gone, or that we may not look into
        self._go_on_with(terms)
        return True

    def wants_copy(self, published: PublishedTable) -> bool:
        """Whether the terms are broken and the destination wants another copy for that."""
        broken = self.broken
        if broken is None or self._lost_nothing():
            return False
        table, copied = published.schema, self._context.config.table_sync_copy
        if copied.includes(str(table.name)):
            action = self._context.destination.rows_changed(table, broken)
        else:
            action = SchemaChangeAction.CONTINUE  # it never had the rows that were there
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
    """The terms of a table's copy, as the journal at `journal` has them."""
    return _load(_file(journal, table_id))


def forget_terms(journal: Journal, table_id: TableId) -> None:
    """The table has left the publication."""
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
