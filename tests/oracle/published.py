"""What a destination ought to have of a publication, as Postgres itself says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.schema import TableId, TableName
from penstock.testing.comparison import SourceTable, compare_rows
from tests.oracle.altered import TYPES
from tests.oracle.mirrors import Mirror

Connection = psycopg.Connection[Any]

# Generated columns are sent since version 18, and only where the view lists them.
_PUBLISHED = """
    SELECT p.schemaname, p.tablename, p.rowfilter, array_agg(a.attname::text),
           array_agg(format_type(a.atttypid, a.atttypmod)), a.attrelid
    FROM pg_publication_tables p
    JOIN pg_attribute a ON a.attrelid = format('%%I.%%I', p.schemaname, p.tablename)::regclass
     AND a.attname = ANY(p.attnames)
     AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
    WHERE p.pubname = %s
    GROUP BY 1, 2, 3, a.attrelid
"""


@dataclass(frozen=True)
class Published:
    """A table of a publication: its columns with their types, and which rows count."""

    name: TableName
    row_filter: str | None
    columns: dict[str, str]
    id: TableId

    def difference(self, connection: Connection, there: Mirror) -> str | None:
        """How the destination differs; None where it does not."""
        found, wanted = there.types(self.name), {n: TYPES[t][0] for n, t in self.columns.items()}
        if found != wanted:
            return f"{self.name} has the columns {found}, not {wanted}"
        source = SourceTable(connection, self.name, self.columns, self.row_filter)
        mirror = (tuple(row[c] for c in source.columns) for row in there.rows(self.name))
        compared = compare_rows(self.name, source.rows(), source.keyed(mirror))
        return None if compared.equal else str(compared)


def published(connection: Connection, publication: str) -> list[Published]:
    rows = connection.execute(_PUBLISHED, [publication]).fetchall()
    return [
        Published(
            TableName(schema, name),
            row_filter,
            dict(zip(names, types, strict=True)),
            TableId(oid),
        )
        for schema, name, row_filter, names, types, oid in rows
    ]
