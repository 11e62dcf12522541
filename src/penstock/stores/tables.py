"""The SQL store's tables, and how they came to be.

Every row belongs to a pipeline. `table_states` is the history: the row with the
highest `sequence` is a table's state, rolling back removes it. Values whose shape
the database need not know (states, schemas, metadata) are JSON text, so that
they can grow without a migration. In Postgres everything lives in the schema
`penstock`.

`MIGRATIONS` is append-only: the n-th entry takes a database from version n-1 to
version n, and what has been released is never edited. `METADATA` describes the
newest version, for the queries; a test holds the two together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    func,
    inspect,
    select,
    text,
)

from penstock.errors import ErrorKind, PenstockError
from penstock.schema import Lsn

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import Dialect

POSTGRES_SCHEMA = "penstock"
_MIGRATION_LOCK = 0x70656E73746F636B  # "penstock"


class LsnText(TypeDecorator[Lsn]):
    """A position as text that sorts like the position and that Postgres can cast to pg_lsn."""

    impl = String(17)
    cache_ok = True

    def process_bind_param(self, value: Lsn | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        if value is None:
            return None
        return f"{value.value >> 32:08X}/{value.value & 0xFFFFFFFF:08X}"

    def process_result_value(self, value: str | None, dialect: Dialect) -> Lsn | None:  # noqa: ARG002
        return None if value is None else Lsn.parse(value)


METADATA = MetaData()

STORE_VERSION = Table("store_version", METADATA, Column("version", Integer, nullable=False))

PIPELINES = Table(
    "pipelines",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("created_at", Text, nullable=False, server_default=func.now()),
)

TABLE_STATES = Table(
    "table_states",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("table_oid", BigInteger, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("state", Text, nullable=False),
    Column("stored_at", Text, nullable=False, server_default=func.now()),
)

TABLE_SCHEMAS = Table(
    "table_schemas",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("table_oid", BigInteger, primary_key=True),
    Column("version", LsnText, primary_key=True),
    Column("schema", Text, nullable=False),
)

PROGRESS = Table(
    "replication_progress",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("worker", Text, primary_key=True),
    Column("table_oid", BigInteger, primary_key=True),
    Column("lsn", LsnText, nullable=False),
)

DESTINATION_METADATA = Table(
    "destination_metadata",
    METADATA,
    Column("pipeline_id", Text, primary_key=True),
    Column("table_oid", BigInteger, primary_key=True),
    Column("metadata", Text, nullable=False),
)

# Positions are compared as text, so their collation must not be the locale's.
_TYPES = {
    "sqlite": {"lsn": "TEXT", "timestamp": "TEXT"},
    "postgresql": {"lsn": 'TEXT COLLATE "C"', "timestamp": "TIMESTAMPTZ"},
}

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE pipelines (
            pipeline_id TEXT NOT NULL PRIMARY KEY,
            created_at {timestamp} NOT NULL DEFAULT CURRENT_TIMESTAMP
        )""",
        """CREATE TABLE table_states (
            pipeline_id TEXT NOT NULL,
            table_oid BIGINT NOT NULL,
            sequence BIGINT NOT NULL,
            state TEXT NOT NULL,
            stored_at {timestamp} NOT NULL DEFAULT CURRENT_TIMESTAMP,
            PRIMARY KEY (pipeline_id, table_oid, sequence)
        )""",
        """CREATE TABLE table_schemas (
            pipeline_id TEXT NOT NULL,
            table_oid BIGINT NOT NULL,
            version {lsn} NOT NULL,
            schema TEXT NOT NULL,
            PRIMARY KEY (pipeline_id, table_oid, version)
        )""",
        """CREATE TABLE replication_progress (
            pipeline_id TEXT NOT NULL,
            worker TEXT NOT NULL,
            table_oid BIGINT NOT NULL,
            lsn {lsn} NOT NULL,
            PRIMARY KEY (pipeline_id, worker, table_oid)
        )""",
        """CREATE TABLE destination_metadata (
            pipeline_id TEXT NOT NULL,
            table_oid BIGINT NOT NULL,
            metadata TEXT NOT NULL,
            PRIMARY KEY (pipeline_id, table_oid)
        )""",
    ),
)


def stored_version(connection: Connection) -> int:
    """The version of the tables that are there; 0 when there are none."""
    schema = POSTGRES_SCHEMA if connection.dialect.name == "postgresql" else None
    if not inspect(connection).has_table(STORE_VERSION.name, schema=schema):
        return 0
    return connection.execute(select(STORE_VERSION.c.version)).scalar() or 0


def require_known(version: int, place: str) -> None:
    """Refuse tables that a newer release has made: this one would misread them."""
    if version > len(MIGRATIONS):
        raise PenstockError(
            ErrorKind.STORE,
            f"the store {place} has version {version}, and this release of penstock "
            f"knows versions up to {len(MIGRATIONS)}",
            hint="upgrade penstock to the release that last used this store, or newer",
        )


def migrate(connection: Connection, place: str) -> None:
    """Bring the tables to the newest version, inside the caller's writing transaction.

    Both dialects have transactional DDL: a crash leaves the old version whole.
    """
    dialect = connection.dialect.name
    if dialect == "postgresql":
        # Two processes that open a new store at once would both create it.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        # "IF NOT EXISTS" still asks for the right to create, which a role that
        # was given a ready-made schema need not have.
        if not inspect(connection).has_schema(POSTGRES_SCHEMA):
            connection.execute(text(f"CREATE SCHEMA {POSTGRES_SCHEMA}"))
        connection.execute(text(f"SET LOCAL search_path TO {POSTGRES_SCHEMA}"))
    version = stored_version(connection)
    require_known(version, place)
    if version == 0:
        connection.execute(text("CREATE TABLE store_version (version INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO store_version VALUES (0)"))
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(text(statement.format(**_TYPES[dialect])))
    connection.execute(STORE_VERSION.update().values(version=len(MIGRATIONS)))
