"""What the source's catalog says about publications and their tables.

`pg_publication_tables` has already worked out what a publication means (`FOR
TABLE`, `TABLES IN SCHEMA`, `ALL TABLES`, partitions or their root), so we ask it
and not the tables behind it. What it leaves open differs by version and is
settled here: version 14 knows neither column lists nor row filters, and 15 lists
generated columns that it does not send.

A table's key is what tells its rows apart in the stream, and it must hold at
every moment, not only at commit: a deferrable primary key lets two rows share a
key for a while, and Postgres does not take it for a replica identity either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.errors import PenstockError
from penstock.postgres.connection import Session, server_version, translated
from penstock.postgres.types import TypeInfo, TypeLookup, base_oid, carried_type, override
from penstock.publication_drift.catalog import publication_terms
from penstock.publication_drift.terms import Terms
from penstock.schema import (
    ZERO_LSN,
    ColumnSchema,
    Lsn,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
)

ColumnTypes = Mapping[str, Mapping[str, str]]
"""Overrides as the configuration has them: table, column, type."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Which operations it sends, and whether partitions come under their root's name."""

    name: str
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_partition_root: bool

    @property
    def sends_old_rows(self) -> bool:
        return self.updates or self.deletes


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as its publication sends it; `schema.columns` are the ones it sends.

    `row_filter` is an SQL expression over the table's columns. `estimated_rows`
    counts all partitions and is -1 where the table was never analysed. `refusal` says
    which entry of `column_types` its columns do not allow: such a table cannot be copied,
    and no other table is the worse for it.
    """

    schema: TableSchema
    row_filter: str | None
    relkind: str
    estimated_rows: int
    terms: Terms
    refusal: PenstockError | None = None

    @property
    def partitioned(self) -> bool:
        return self.relkind == "p"


def publication(session: Session, name: str) -> Publication | None:
    """The publication of that name, if there is one."""
    query = """
        SELECT pubname, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot
        FROM pg_publication WHERE pubname = %s
    """
    with translated(f"reading publication {name}"):
        row = session.execute(query, [name]).fetchone()
    return Publication(*row) if row else None


def publication_exists(session: Session, name: str) -> bool:
    return publication(session, name) is not None


_PUBLISHED = """
    SELECT c.oid, {attnames}, {rowfilter}
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    JOIN pg_publication pub ON pub.pubname = p.pubname
    WHERE p.pubname = %(publication)s AND c.relkind IN ('r', 'p')
      AND c.oid = coalesce(%(only)s::oid, c.oid)
      -- version 14 lists a partition beside its root when both were named
      AND NOT (pub.pubviaroot AND c.relispartition AND EXISTS (
          SELECT FROM pg_partition_ancestors(c.oid) a
          JOIN pg_class ac ON ac.oid = a.relid
          JOIN pg_namespace an ON an.oid = ac.relnamespace
          JOIN pg_publication_tables ap
            ON ap.pubname = p.pubname AND (ap.schemaname, ap.tablename) = (an.nspname, ac.relname)
          WHERE a.relid <> c.oid))
"""


def published_tables(
    session: Session,
    publication_name: str,
    column_types: ColumnTypes | None = None,
    only: TableId | None = None,
) -> list[PublishedTable]:
    """The tables that the publication sends, by name, with the columns it sends.

    `only` asks for one of them: each copy does, and a publication may have thousands.
    """
    modern = server_version(session) >= 150000
    query = _PUBLISHED.format(
        attnames="p.attnames" if modern else "NULL", rowfilter="p.rowfilter" if modern else "NULL"
    )
    with translated(f"reading the tables of publication {publication_name}"):
        parameters = {"publication": publication_name, "only": only.oid if only else None}
        rows = session.execute(query.encode(), parameters).fetchall()
    row_filters = {oid: row_filter for oid, _, row_filter in rows}
    entries = _entries(session, list(row_filters))
    sent = {oid: names for oid, names, _ in rows}
    terms = publication_terms(session, publication_name, row_filters)
    reader = _SchemaReader(session, column_types)
    return [
        PublishedTable(
            reader.schema(entry, sent[entry.oid]),
            row_filters[entry.oid],
            entry.relkind,
            entry.estimated_rows,
            terms[entry.oid],
            reader.refusal(entry, sent[entry.oid]),
        )
        for entry in entries
    ]


def table_schema(
    session: Session,
    oid: int,
    version: Lsn = ZERO_LSN,
    column_types: ColumnTypes | None = None,
) -> TableSchema | None:
    """A table as the catalog has it now, with every column that could be sent.

    None when the table is gone.
    """
    entries = _entries(session, [oid])
    if not entries:
        return None
    schema = _SchemaReader(session, column_types).schema(entries[0], None)
    return replace(schema, version=version)


def table_names(session: Session, ids: Iterable[TableId]) -> dict[TableId, TableName]:
    """What tables are called now; those that are gone are left out. Waits for nobody's lock."""
    query = """
        SELECT c.oid, n.nspname, c.relname
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = ANY(%s::oid[]) AND c.relkind IN ('r', 'p')
    """
    with translated("reading the tables' names"):
        rows = session.execute(query, [[table_id.oid for table_id in ids]]).fetchall()
    return {TableId(oid): TableName(schema, name) for oid, schema, name in rows}


def partition_leaves(session: Session, table: TableSchema) -> list[TableSchema]:
    """The partitions that hold a partitioned table's rows; none for any other table."""
    query = "SELECT relid::oid FROM pg_partition_tree(%(oid)s) WHERE isleaf AND relid <> %(oid)s"
    with translated("reading the partitions", table.name):
        oids = [oid for (oid,) in session.execute(query, {"oid": table.id.oid})]
    reader = _SchemaReader(session, None)
    return [reader.schema(entry, None) for entry in _entries(session, oids)]


def type_info(session: Session, oid: int) -> TypeInfo | None:
    """What `pg_type` says of a type; None when there is none with that oid."""
    query = """
        SELECT oid, typname, typtype::text, typcategory::text, typbasetype, typtypmod,
               typelem, typdelim::text
        FROM pg_type WHERE oid = %s
    """
    with translated("reading a type"):
        row = session.execute(query, [oid]).fetchone()
    return TypeInfo(*row) if row else None


def type_lookup(session: Session) -> TypeLookup:
    """`type_info` with a memory, for one pass over the catalog."""
    known: dict[int, TypeInfo] = {}

    def lookup(oid: int) -> TypeInfo | None:
        if oid not in known and (info := type_info(session, oid)) is not None:
            known[oid] = info
        return known.get(oid)

    return lookup


@dataclass(frozen=True, slots=True)
class _Attribute:
    """A row of `pg_attribute`. `generated` is empty, `s` (stored) or `v` (virtual)."""

    name: str
    number: int
    type_oid: int
    type_modifier: int
    type_name: str
    nullable: bool
    generated: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row of `pg_class`, with what belongs to it. `key` are attribute numbers."""

    oid: int
    name: TableName
    relkind: str
    identity: ReplicaIdentity
    key: tuple[int, ...]
    estimated_rows: int
    attributes: tuple[_Attribute, ...]


_TABLES = """
    SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relreplident::text,
           coalesce((SELECT array_agg(k.number ORDER BY k.place)
                     FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
                     WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
                       AND k.place <= i.indnkeyatts
                       AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident
                                ELSE i.indisprimary END), '{}'),
           rows.estimate
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        -- pg_partition_tree would wait for a partition that somebody has locked
        WITH RECURSIVE parts(oid) AS (
            SELECT c.oid
            UNION ALL
            SELECT i.inhrelid FROM parts JOIN pg_inherits i ON i.inhparent = parts.oid
            WHERE c.relkind = 'p' AND NOT i.inhdetachpending)
        SELECT CASE WHEN coalesce(bool_and(l.reltuples < 0), false) THEN -1
                    ELSE coalesce(sum(greatest(l.reltuples, 0)), 0) END::bigint AS estimate
        FROM parts JOIN pg_class l USING (oid)
        WHERE l.relkind = 'r'
    ) rows
    WHERE c.oid = ANY(%(oids)s::oid[]) AND c.relkind IN ('r', 'p')
    ORDER BY n.nspname, c.relname
"""

_ATTRIBUTES = """
    SELECT attrelid, attname, attnum, atttypid, atttypmod, format_type(atttypid, atttypmod),
           -- of Postgres 18 on, one that is NOT VALID leaves NULLs where they are
           NOT attnotnull OR EXISTS (
               SELECT FROM pg_constraint WHERE conrelid = attrelid AND contype = 'n'
               AND conkey[1] = attnum AND NOT convalidated),
           attgenerated::text
    FROM pg_attribute
    WHERE attrelid = ANY(%(oids)s::oid[]) AND attnum > 0 AND NOT attisdropped
    ORDER BY attrelid, attnum
"""


def _entries(session: Session, oids: list[int]) -> list[_Entry]:
    """What the catalog has of these tables, by name; those that are gone are left out."""
    attributes: dict[int, list[_Attribute]] = defaultdict(list)
    with translated("reading the tables' columns"):
        for oid, *attribute in session.execute(_ATTRIBUTES, {"oids": oids}):
            attributes[oid].append(_Attribute(*attribute))
        rows = session.execute(_TABLES, {"oids": oids}).fetchall()
    return [
        _Entry(
            oid,
            TableName(schema, name),
            relkind,
            ReplicaIdentity(identity),
            tuple(key),
            estimate,
            tuple(attributes[oid]),
        )
        for oid, schema, name, relkind, identity, key, estimate in rows
    ]


class Attribute(Protocol):
    """A column as `pg_attribute` has it."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def type_oid(self) -> int: ...
    @property
    def type_modifier(self) -> int: ...
    @property
    def type_name(self) -> str: ...
    @property
    def nullable(self) -> bool: ...


def column_schemas(
    attributes: Sequence[Attribute],
    key: Sequence[int],
    overrides: Mapping[str, str],
    lookup: TypeLookup,
) -> tuple[ColumnSchema, ...]:
    """The columns that are sent. `key` has the numbers of the key's, in its order."""
    places = _key_places(attributes, key)
    return tuple(
        ColumnSchema(
            each.name,
            each.number,
            carried_type(
                each.type_oid,
                each.type_modifier,
                overrides.get(each.name),
                lookup,
                in_key=each.number in places,
            ),
            each.type_oid,
            each.type_modifier,
            each.type_name,
            each.nullable,
            places.get(each.number),
        )
        for each in attributes
    )


def _key_places(attributes: Sequence[Attribute], key: Sequence[int]) -> dict[int, int]:
    """Where in the key its columns are, by number."""
    # Part of a key names no row, so a column list that cuts into it leaves none.
    whole = set(key) <= {attribute.number for attribute in attributes}
    return {number: place for place, number in enumerate(key)} if whole else {}


class _SchemaReader:
    """Makes schemas of catalog entries, remembering types between them."""

    def __init__(self, session: Session, column_types: ColumnTypes | None) -> None:
        self._lookup = type_lookup(session)
        self._column_types = column_types or {}
        self._sends_generated = server_version(session) >= 180000

    def schema(self, entry: _Entry, sent: list[str] | None) -> TableSchema:
        """`sent` names the published columns; None for all that could be."""
        attributes = [a for a in entry.attributes if self._is_sent(a, sent)]
        overrides = self._column_types.get(str(entry.name), {})
        columns = column_schemas(attributes, entry.key, overrides, self._lookup)
        return TableSchema(TableId(entry.oid), entry.name, columns, entry.identity)

    def refusal(self, entry: _Entry, sent: list[str] | None) -> PenstockError | None:
        """What is wrong with the table's overrides, if anything is."""
        overrides = self._column_types.get(str(entry.name), {})
        attributes = [a for a in entry.attributes if self._is_sent(a, sent)]
        places = _key_places(attributes, entry.key)
        for attribute in attributes:
            if attribute.name not in overrides:
                continue
            base = base_oid(attribute.type_oid, self._lookup)
            try:
                override(overrides[attribute.name], base, in_key=attribute.number in places)
            except PenstockError as error:
                message = f"column {attribute.name}: {error.message}"
                return PenstockError(error.kind, message, hint=error.hint, table=entry.name)
        return None

    def _is_sent(self, attribute: _Attribute, sent: list[str] | None) -> bool:
        if attribute.generated and not self._sends_generated:
            return False
        if sent is None:
            return attribute.generated != "v"
        return attribute.name in sent
