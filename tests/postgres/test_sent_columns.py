"""Whether asking without locks gives what Postgres's own view says."""

from __future__ import annotations

from penstock.postgres.catalog import published_tables, table_schema
from penstock.postgres.connection import Session, server_version
from penstock.postgres.sent_columns import sent_columns
from penstock.schema import TableId

TABLES = """
CREATE SCHEMA a;
CREATE SCHEMA b;
CREATE TABLE a.plain (id int PRIMARY KEY, gone int, v int, g int GENERATED ALWAYS AS (id) STORED);
ALTER TABLE a.plain DROP gone;
CREATE UNLOGGED TABLE a.unlogged (id int PRIMARY KEY);
CREATE TABLE a.root (id int, v int, w int) PARTITION BY LIST (id);
CREATE TABLE b.middle PARTITION OF a.root FOR VALUES IN (1, 2) PARTITION BY LIST (id);
CREATE TABLE a.leaf PARTITION OF b.middle FOR VALUES IN (1);
CREATE TABLE b.leaf PARTITION OF a.root FOR VALUES IN (3);
CREATE VIEW a.view AS SELECT 1 AS id;
"""


UNDER_ROOT = "WITH (publish_via_partition_root)"
NAMED = ("FOR ALL TABLES", "FOR TABLE a.plain, a.root", "FOR TABLE b.middle, b.leaf, a.root", "")
SCHEMAS = ("FOR TABLES IN SCHEMA a", "FOR TABLES IN SCHEMA b, TABLE a.leaf")
PUBLICATIONS = (
    *(f"{tables} {options}" for tables in NAMED + SCHEMAS for options in ("", UNDER_ROOT)),
    f"FOR TABLE a.plain (id, v), a.root (v, id), b.middle (id) {UNDER_ROOT}",
    "FOR TABLE a.plain (v, id), b.leaf (w)",
)


def test_what_is_sent_is_what_postgres_lists(session: Session) -> None:
    session.execute(TABLES)
    publications = list(PUBLICATIONS)
    if server_version(session) >= 180000:
        stored = "publish_generated_columns = stored"
        publications += [f"FOR ALL TABLES WITH ({stored})", "FOR TABLE a.plain (g, id)"]
    for publication in publications:
        session.execute(f"CREATE PUBLICATION pub {publication}".encode())
        expected = {
            t.schema.id.oid: {c.name for c in t.schema.columns}
            for t in published_tables(session, "pub")
        }
        assert sent(session) == expected, publication
        session.execute("DROP PUBLICATION pub")


def sent(session: Session) -> dict[int, set[str]]:
    """The names of what is sent of each table."""
    found = {}
    for (oid,) in session.execute("SELECT oid FROM pg_class WHERE oid > 16383").fetchall():
        columns, schema = sent_columns(session, "pub", TableId(oid)), table_schema(session, oid)
        if columns is not None:
            assert schema is not None
            # Before version 18 the schema has no generated column at all.
            found[oid] = {
                c.name for c in schema.columns if columns.has(c.number, generated=c.name == "g")
            }
    return found
