"""Which schema version of a table the stream is in.

A version begins at the commit of the transaction that brought it: with a Relation
message that differs from what was known, or with an announcement of the source's
event trigger (`postgres.ddl`), which comes first and says more. Each is named once, by
the manifest that has its transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from penstock.journal.relations import sends
from penstock.postgres.ddl import Announcement, Rewrite, parse_message
from penstock.postgres.pgoutput import RelationMessage
from penstock.publication_drift.sent_partitions import SentPartition
from penstock.schema import DdlNote, Lsn, TableId, TableSchema

logger = logging.getLogger(__name__)


class Relations(Protocol):
    """What knows tables: `RelationCatalog`."""

    def describe(self, message: RelationMessage) -> TableSchema: ...

    def announced(self, told: Announcement) -> TableSchema | None: ...


class SchemaVersions:
    """The newest version of every table, as one stream goes on."""

    def __init__(self, known: Mapping[TableId, TableSchema], relations: Relations) -> None:
        self._latest = dict(known)
        self._relations = relations
        self._rewrites: dict[int, int] = {}
        self._unnamed: list[TableSchema] = []
        """Versions that began and that no manifest has named yet."""
        self._sent: list[tuple[Lsn, SentPartition]] = []
        """Partitions that no manifest has named yet, with the commit of their transaction."""

    def of_relation(self, message: RelationMessage, commit: Lsn, xid: int) -> TableSchema:
        """The version that changes of this table are in from here on."""
        known = self._latest.get(TableId(message.oid))
        rewritten = self._rewrites.pop(message.oid, 0) != 0
        if known and known.note and not rewritten and sends(known, message):
            return known
        described = self._relations.describe(message)
        if known is not None and known.same_shape(described) and not rewritten:
            return known
        note = DdlNote(xid, rewritten=True) if rewritten else None
        return self._begin(replace(described, note=note), commit)

    def note(self, message: bytes, commit: Lsn, xid: int) -> TableSchema | None:
        """Take in a logical message of ours; the version that begins with it, if one does."""
        try:
            told = parse_message(message)
        except ValueError as error:
            # Somebody else's, or a later release's. What it tells of shows in the rows.
            logger.warning("announcement not understood", extra={"reason": str(error)})
            return None
        if isinstance(told, Rewrite):
            self._rewrites[told.oid] = self._rewrites.get(told.oid, 0) | told.reason
            return None
        reason = self._rewrites.pop(told.oid, 0)
        described = self._relations.announced(told)
        if described is None:
            return None
        known = self._latest.get(described.id)
        note = _for_new_columns(told, known).note(xid, reason)
        same = known and known.same_shape(described) and known.same_types(described)
        # A version that nobody announced has NOT NULL as the catalog had it then, which may be
        # as it is from here on. What the destination was told, the applier knows.
        told_already = known and known.note and known.same_nullability(described)
        if same and told_already and not note.rewritten:
            return None
        return self._begin(replace(described, note=replace(note, reshaped=not same)), commit)

    def _begin(self, schema: TableSchema, commit: Lsn) -> TableSchema:
        known = self._latest.get(schema.id)
        # Several of one transaction: its commit record is longer than they are many.
        begins = max(commit, Lsn(known.version.value + 1)) if known else commit
        begun = replace(schema, version=begins)
        self._latest[begun.id] = begun
        self._unnamed.append(begun)
        return begun

    def sent(self, partition: SentPartition, commit: Lsn) -> None:
        """Changes of this partition come under the name of its root."""
        self._sent.append((commit, partition))

    def take_partitions(self, end: Lsn) -> tuple[SentPartition, ...]:
        """The partitions to be named by a manifest that ends at `end`."""
        closed = tuple(partition for commit, partition in self._sent if commit < end)
        self._sent = [(commit, partition) for commit, partition in self._sent if commit >= end]
        return closed

    def take_closed(self, end: Lsn) -> tuple[TableSchema, ...]:
        """The versions to be named by a manifest that ends at `end`.

        Not those of a transaction that is still open: it will come again, with its
        announcements, to a receiver that goes on behind that manifest.
        """
        closed = tuple(schema for schema in self._unnamed if schema.version < end)
        self._unnamed = [schema for schema in self._unnamed if schema.version >= end]
        return closed


def _for_new_columns(told: Announcement, known: TableSchema | None) -> Announcement:
    """Without what older rows show in columns that are known already."""
    old = {column.number for column in known.columns} if known else set()
    columns = (replace(c, filled=c.filled and c.number not in old) for c in told.columns)
    return replace(told, columns=tuple(columns))
