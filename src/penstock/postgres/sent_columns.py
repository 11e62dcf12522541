"""Which columns of a table a publication sends, asked without waiting for anybody.

`pg_publication_tables` opens every table of the publication, and so waits for whoever has
one of them locked: an `ALTER TABLE` in a transaction that stays open, say. The receiver asks
while it decodes, and one table's lock must not stop all of them; so it asks what is behind
that view.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.postgres.connection import Session, server_version, translated
from penstock.schema import TableId

# With whether the table is in the publication by itself, and by what it is a partition of.
_SENT = """
    SELECT {column_list}, {generated}
    FROM pg_publication pub
    JOIN pg_class c ON c.oid = %(oid)s AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
    LEFT JOIN pg_publication_rel r ON r.prpubid = pub.oid AND r.prrelid = c.oid
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(named) FILTER (WHERE relid = c.oid), false) AS itself,
               coalesce(bool_or(named) FILTER (WHERE relid <> c.oid), false) AS above
        FROM (
            SELECT a.oid, pub.puballtables
                OR EXISTS (SELECT FROM pg_publication_rel
                           WHERE prpubid = pub.oid AND prrelid = a.oid) {schemas}
            FROM pg_class a
            WHERE a.oid = c.oid OR a.oid IN (SELECT relid FROM pg_partition_ancestors(c.oid))
        ) AS found(relid, named)
    ) by
    WHERE pub.pubname = %(publication)s
      AND CASE WHEN pub.pubviaroot THEN by.itself AND NOT by.above
               ELSE c.relkind = 'r' AND (by.itself OR by.above) END
"""
_SCHEMAS = """
                OR EXISTS (SELECT FROM pg_publication_namespace
                           WHERE pnpubid = pub.oid AND pnnspid = a.relnamespace)
"""


@dataclass(frozen=True, slots=True)
class SentColumns:
    """`listed` are the numbers of a column list, None where there is none; `generated` is
    whether columns that are computed are sent without one."""

    listed: frozenset[int] | None
    generated: bool

    def has(self, number: int, *, generated: bool) -> bool:
        if self.listed is not None:
            return number in self.listed
        return self.generated or not generated


def sent_columns(session: Session, publication: str, table: TableId) -> SentColumns | None:
    """What the publication sends of a table; None where it does not send the table."""
    version = server_version(session)
    query = _SENT.format(
        column_list="r.prattrs::int2[]" if version >= 150000 else "NULL::int2[]",
        generated="pub.pubgencols = 's'" if version >= 180000 else "false",
        schemas=_SCHEMAS if version >= 150000 else "",
    )
    with translated(f"reading what publication {publication} sends"):
        parameters = {"publication": publication, "oid": table.oid}
        row = session.execute(query.encode(), parameters).fetchone()
    if row is None:
        return None
    return SentColumns(frozenset(row[0]) if row[0] is not None else None, row[1])
