"""Whether updates and deletes of a table can be matched to its rows.

Postgres sends of an old row what the table's replica identity covers: its
primary key, another unique index, or everything. A table without a usable
identity in a publication that sends updates or deletes is worse than useless:
the source itself then refuses those statements to its own users.

Partitions sent under their root's name need more care, because Postgres logs by
the partition's identity and labels by the root's. Where they differ, the old
row that arrives may lack the very columns that the root's key is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ErrorKind, PenstockError
from penstock.findings import Finding, error, listed
from penstock.postgres.catalog import (
    Publication,
    PublishedTable,
    partition_leaves,
    table_schema,
)
from penstock.postgres.catalog import publication as publication_of
from penstock.postgres.connection import Session, translated
from penstock.schema import ReplicaIdentity, TableSchema, quote_identifier


def identity_findings(
    session: Session, publication: Publication, tables: list[PublishedTable]
) -> Iterator[Finding]:
    """The published tables whose updates and deletes cannot be followed."""
    if not publication.sends_old_rows:
        return
    for table in tables:
        with _one_look(session):
            whole = table_schema(session, table.schema.id.oid)
            leaves = partition_leaves(session, whole) if whole and table.partitioned else []
        if whole is not None:  # or it was dropped in this moment
            yield from _table_findings(session, publication, table, whole, leaves)


@contextmanager
def _one_look(session: Session) -> Iterator[None]:
    """Read a table and its partitions as they were at one moment: else a column that is being
    renamed has its new name in some of them only."""
    with translated("reading a table and its partitions"), session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def _table_findings(
    session: Session,
    publication: Publication,
    table: PublishedTable,
    whole: TableSchema,
    leaves: list[TableSchema],
) -> Iterator[Finding]:
    if not _usable(whole):
        yield error(
            f"table {whole.name}",
            "has no usable replica identity, so its updates and deletes cannot be followed"
            " (and Postgres refuses them while it is published)",
            _remedy(session, whole, leaves),
            ErrorKind.SOURCE_SCHEMA,
        )
        return
    unsent = _identity_columns(whole) - {column.name for column in table.schema.columns}
    if unsent:
        columns = ", ".join(quote_identifier(c.name) for c in whole.columns)
        yield error(
            f"table {whole.name}",
            f"the publication leaves out what its replica identity needs: {listed(sorted(unsent))}",
            f"ALTER PUBLICATION {quote_identifier(publication.name)} DROP TABLE"
            f" {whole.name.quoted}; ALTER PUBLICATION {quote_identifier(publication.name)}"
            f" ADD TABLE {whole.name.quoted} ({columns});",
            ErrorKind.SOURCE_SCHEMA,
        )
    for leaf in leaves:
        if not _usable(leaf) or not _covers(leaf, whole):
            yield error(
                f"partition {leaf.name}",
                f"its replica identity does not cover the key of {whole.name},"
                " under whose name it is published",
                _leaf_remedy(leaf, whole),
                ErrorKind.SOURCE_SCHEMA,
            )


def sends_old_rows(session: Session, publication_name: str) -> bool:
    found = publication_of(session, publication_name)
    return found is None or found.sends_old_rows


def require_old_rows(session: Session, publication_name: str, table: TableSchema) -> None:
    """Raise where a partition, sent under the name of `table`, has an identity that does not
    cover its key. (Without any, Postgres refuses what would send an old row.)"""
    if not sends_old_rows(session, publication_name):
        return
    with _one_look(session):
        root = table_schema(session, table.id.oid)
        leaves = partition_leaves(session, root) if root else []
    for leaf in leaves:
        if root and _usable(leaf) and not _covers(leaf, root):
            raise PenstockError(
                ErrorKind.SOURCE_SCHEMA,
                f"the replica identity of partition {leaf.name} does not cover the table's key",
                hint=_leaf_remedy(leaf, root),
                table=table.name,
            )


def _covers(leaf: TableSchema, root: TableSchema) -> bool:
    """Whether old rows of the partition have what tells those of the root apart."""
    # Under the root's FULL they may come by its key as well, if it has one.
    needed = {column.name for column in root.key} or _identity_columns(root)
    return needed <= _identity_columns(leaf)


def _usable(table: TableSchema) -> bool:
    match table.identity:
        case ReplicaIdentity.FULL:
            return True
        case ReplicaIdentity.NOTHING:
            return False
        case _:
            return bool(table.key)


def _identity_columns(table: TableSchema) -> set[str]:
    full = table.identity is ReplicaIdentity.FULL
    return {column.name for column in (table.columns if full else table.key)}


def _leaf_remedy(leaf: TableSchema, root: TableSchema) -> str:
    # A primary key of the root is the partition's as well; under FULL it is the root's key.
    if root.key and root.identity in (ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL):
        return f"ALTER TABLE {leaf.name.quoted} REPLICA IDENTITY DEFAULT;"
    return f"ALTER TABLE {leaf.name.quoted} REPLICA IDENTITY FULL;"


def _remedy(session: Session, table: TableSchema, leaves: list[TableSchema]) -> str:
    """The cheapest statement that helps: a key that is there, or else everything."""
    query = """
        SELECT x.relname, i.indisprimary
        FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid
          AND i.indpred IS NULL AND i.indexprs IS NULL
          AND NOT EXISTS (
              SELECT FROM unnest(i.indkey) WITH ORDINALITY AS k(number, place)
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
              WHERE k.place <= i.indnkeyatts AND (NOT a.attnotnull OR a.attgenerated <> ''))
        ORDER BY i.indisprimary DESC, i.indnkeyatts, x.relname LIMIT 1
    """
    with translated("looking for a key", table.name):
        index = session.execute(query, [table.id.oid]).fetchone()
    alter = f"ALTER TABLE {table.name.quoted} REPLICA IDENTITY"
    match index:
        case (_, True):
            return f"{alter} DEFAULT;"
        case (name, False) if not leaves:
            return f"{alter} USING INDEX {quote_identifier(name)};"
        case _:
            every = [table, *leaves]  # the setting is not inherited
            statements = [f"ALTER TABLE {t.name.quoted} REPLICA IDENTITY FULL;" for t in every]
            return " ".join(statements) + " -- better, give it a primary key"
