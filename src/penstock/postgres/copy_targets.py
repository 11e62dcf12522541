"""What a copy asks of the catalog: which relations to read, and whether they stayed the same.

Nothing here locks anything: a copy's transaction is long.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.postgres.connection import Session, translated
from penstock.schema import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """A relation with rows of its own: a table, or one leaf of a partitioned one.

    `blocks` is its size when asked, so every row that a snapshot taken before
    sees has a ctid below `(blocks,0)`. Read it with `FROM ONLY`: what inherits
    from it is another table.
    """

    name: TableName
    blocks: int
    bytes: int


# A table and its partitions, without one that is being detached (concurrently): who reads the
# table does not see its rows any more. Not by pg_partition_tree: that locks all of them until the
# transaction ends. A copy's transaction is long, and a TRUNCATE that waited for it would
# make the copy's own workers wait in turn: for ever.
_PARTS = """
    WITH RECURSIVE parts(oid) AS (
        SELECT %(oid)s::oid
        UNION ALL
        SELECT i.inhrelid
        FROM parts
        JOIN pg_class p ON p.oid = parts.oid AND p.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = p.oid AND NOT i.inhdetachpending)
    SELECT oid FROM parts
"""


def copy_targets(session: Session, table: TableSchema) -> list[CopyTarget]:
    """The relations that hold the table's rows, with their size as it is now.

    Partitions that are foreign or unlogged are left out: nothing of them is in
    the WAL, so a copy of them would only grow stale. Locks nothing.
    """
    query = f"""
        SELECT n.nspname, c.relname, size / current_setting('block_size')::bigint, size
        FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        CROSS JOIN LATERAL pg_relation_size(c.oid) AS size
        WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid IN ({_PARTS})
          AND size IS NOT NULL -- dropped in this moment
        ORDER BY n.nspname, c.relname
    """
    with translated("measuring the table", table.name):
        rows = session.execute(query.encode(), {"oid": table.id.oid}).fetchall()
    return [CopyTarget(TableName(schema, name), *size) for schema, name, *size in rows]


def rewritten(session: Session, table: TableSchema) -> bool:
    """Whether the table's rows have moved to another file since the session's snapshot.

    A TRUNCATE does that, and is the one change that a snapshot does not protect from:
    who reads the table afterwards finds it empty, however old the snapshot is.
    """
    query = f"""
        SELECT EXISTS (
            SELECT FROM pg_class c -- as the snapshot sees it; the function tells what is now
            WHERE c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)
              AND c.oid IN ({_PARTS}))
    """
    with translated("looking whether the table was rewritten", table.name):
        row = session.execute(query.encode(), {"oid": table.id.oid}).fetchone()
    return row is None or bool(row[0])


def fingerprint(session: Session, table: TableSchema) -> str | None:
    """Tells whether the table's columns, or a partition's, have been altered in between, or
    whether one of them has got another name; None for a table that is gone.

    By the row versions of the catalog, so that a change that was changed back shows too.
    Names count because rows are read by them: another table may have one by now.
    """
    query = f"""
        WITH own(oid) AS ({_PARTS})
        SELECT md5(string_agg(fact, ',' ORDER BY fact))
        FROM (
            SELECT format('%s %s %s', attrelid, attnum, a.xmin) AS fact
            FROM pg_attribute a JOIN own ON own.oid = a.attrelid WHERE attnum > 0
            UNION ALL
            SELECT format('%s %s.%s', c.oid, n.nspname, c.relname)
            FROM pg_class c JOIN own USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace
        ) facts
    """.replace("%s", "%%s")
    with translated("reading the table's columns", table.name):
        row = session.execute(query.encode(), {"oid": table.id.oid}).fetchone()
    return row[0] if row else None
