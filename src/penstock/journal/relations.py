"""What the stream's own words about a table mean, with the catalog's help.

The message is what the stream will send from here on; the catalog is what the
table is *now*, possibly many changes later. So the message decides which columns
there are and of which type, and the catalog adds what the message does not say
(column numbers, nullability, the order of the key) where the two still agree.

An announcement of the source's event trigger says all that by itself, except which
columns the publication sends: that is the catalog's to say, by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.config import PipelineConfig
from penstock.postgres.catalog import (
    column_schemas,
    table_schema,
    type_lookup,
)
from penstock.postgres.connection import Session
from penstock.postgres.ddl import Announcement
from penstock.postgres.pgoutput import RelationColumn, RelationMessage
from penstock.postgres.sent_columns import sent_columns
from penstock.postgres.types import carried_type, resolve
from penstock.schema import (
    ColumnSchema,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
)


class RelationCatalog:
    """Describes relations with the help of a catalog session."""

    def __init__(self, session: Session, config: PipelineConfig) -> None:
        self._session = session
        self._publication = config.publication_name
        self._column_types = config.column_types
        self._lookup = type_lookup(session)

    def describe(self, message: RelationMessage) -> TableSchema:
        name = TableName(message.schema, message.name)
        identity = ReplicaIdentity(message.identity)
        current = table_schema(self._session, message.oid, column_types=self._column_types)
        known = {column.name: column for column in current.columns} if current else {}
        columns = []
        for place, sent in enumerate(message.columns):
            column = known.get(sent.name)
            if column is None or _type_of(column) != (sent.type_oid, sent.type_modifier):
                column = self._derive(place, sent)
            columns.append(column)
        keyed = _with_key(columns, message, identity)
        if current is not None and self._cuts_key(current, message):
            keyed = tuple(replace(column, key_position=None) for column in keyed)
        carried = tuple(self._carried(name, column) for column in keyed)
        return TableSchema(TableId(message.oid), name, carried, identity)

    def announced(self, told: Announcement) -> TableSchema | None:
        """The table as it was announced; None where the publication does not have it."""
        sent = sent_columns(self._session, self._publication, TableId(told.oid))
        if sent is None:
            return None
        columns = [c for c in told.columns if sent.has(c.number, generated=c.generated)]
        overrides = self._overrides(told.name)
        return TableSchema(
            TableId(told.oid),
            told.name,
            column_schemas(columns, told.key, overrides, self._lookup),
            told.identity,
        )

    def _cuts_key(self, current: TableSchema, message: RelationMessage) -> bool:
        """Whether the publication sends a part of the key, which names no row. A column of the key
        may also be called something else by now, and is sent under the name of before."""
        sent = {column.name for column in message.columns}
        unsent = [column.number for column in current.key if column.name not in sent]
        if not unsent:
            return False
        now = sent_columns(self._session, self._publication, current.id)
        return now is not None and any(not now.has(number, generated=False) for number in unsent)

    def _derive(self, place: int, sent: RelationColumn) -> ColumnSchema:
        """A column that the catalog has no longer. Its number is unknown: negative, by place."""
        kind = resolve(sent.type_oid, sent.type_modifier, self._lookup)
        return ColumnSchema(sent.name, -1 - place, kind, sent.type_oid, sent.type_modifier)

    def _carried(self, table: TableName, column: ColumnSchema) -> ColumnSchema:
        """The column as it is carried, which depends on whether the stream has it in the key."""
        wanted = self._overrides(table).get(column.name)
        if wanted is None:
            return column
        in_key = column.key_position is not None
        kind = carried_type(
            column.type_oid, column.type_modifier, wanted, self._lookup, in_key=in_key
        )
        return replace(column, type=kind)

    def _overrides(self, table: TableName) -> Mapping[str, str]:
        return self._column_types.get(str(table), {})


def sends(known: TableSchema, message: RelationMessage) -> bool:
    """Whether a Relation message says nothing that an announced version has not said."""
    key = {column.name for column in known.key}
    return (
        known.name == TableName(message.schema, message.name)
        and known.identity == message.identity
        and [(c.name, *_type_of(c)) for c in known.columns]
        == [(c.name, c.type_oid, c.type_modifier) for c in message.columns]
        and (
            known.identity is ReplicaIdentity.FULL
            or key == {column.name for column in message.columns if column.key}
        )
    )


def _type_of(column: ColumnSchema) -> tuple[int, int]:
    return column.type_oid, column.type_modifier


def _with_key(
    columns: list[ColumnSchema], message: RelationMessage, identity: ReplicaIdentity
) -> tuple[ColumnSchema, ...]:
    """The key as the stream has it, in the catalog's order where that has the same columns.

    Under FULL every column is flagged, and the catalog's primary key counts.
    """
    flagged = {column.name for column in message.columns if column.key}
    cataloged = {column.name for column in columns if column.key_position is not None}
    if identity is ReplicaIdentity.FULL or flagged == cataloged:
        return tuple(columns)
    order = [column.name for column in columns if column.name in flagged]
    return tuple(
        replace(column, key_position=order.index(column.name) if column.name in flagged else None)
        for column in columns
    )
