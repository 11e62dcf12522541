"""`docs/types.md`: every type of a Postgres server, with what it becomes.

python -m tests.type_table > docs/types.md
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from penstock.postgres.catalog import type_lookup
from penstock.postgres.connection import Session
from penstock.postgres.types import resolve, spark_type
from penstock.testing.postgres import EmbeddedPostgres

_BUILT_IN = """
SELECT t.oid, t.typarray, format_type(t.oid, NULL) AS name
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE n.nspname = 'pg_catalog' AND t.typtype IN ('b', 'r', 'm') AND t.typarray <> 0
  AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
ORDER BY format_type(t.oid, NULL) COLLATE "C"
"""

# What is made of others, or has a modifier that counts.
_EXAMPLES = """
CREATE TYPE an_enum AS ENUM ('a');
CREATE TYPE a_composite AS (a integer, b text);
CREATE TYPE a_range AS RANGE (subtype = float8);
CREATE DOMAIN a_domain_over_date AS date;
CREATE DOMAIN a_domain_over_a_domain AS a_domain_over_date;
CREATE TABLE examples (
    "numeric(12,2)" numeric(12,2), "numeric(38,38)" numeric(38,38),
    "numeric(39,2)" numeric(39,2), "numeric(5,-2)" numeric(5,-2),
    "an enum" an_enum, "a composite type" a_composite, "a range type" a_range,
    "a domain over date" a_domain_over_date, "a domain over that" a_domain_over_a_domain,
    "numeric(12,2)[]" numeric(12,2)[], "an enum's array" an_enum[]
);
"""
_COLUMNS = """
SELECT a.attname, a.atttypid, a.atttypmod FROM pg_attribute a
WHERE a.attrelid = 'examples'::regclass AND a.attnum > 0 ORDER BY a.attnum
"""

_PAGE = """\
# What every Postgres type becomes

Made by `python -m tests.type_table > docs/types.md` from the code and a server's
own list of types; a test sees to it that it is true. By copy and by stream it is the same.

A value that its Spark type cannot hold (an infinite date, a year outside 1 to 9999, an
array of two dimensions) stops its table with an error that names it, or becomes NULL and is
counted: `on_unrepresentable`. In a key it always stops its table, since rows that NULL names
could not be told apart. `column_types` carries a column as `string` instead, and a numeric one
as `decimal(p,s)` or `double`; one that is part of the key never as `double`, which is not
exact: rows whose keys differ only in later digits would be taken for one. A `string` is the
text that Postgres prints; so are the types of extensions (`hstore`, `citext`, PostGIS).

| Postgres | Spark | its array |
| --- | --- | --- |
{built_in}

Types with a modifier, and types that are made of others:

| Postgres | Spark |
| --- | --- |
{examples}
"""


def type_table(session: psycopg.Connection[Any]) -> str:
    """The page, from a database in which nothing is yet."""
    session.execute(_EXAMPLES)
    return _PAGE.format(
        built_in="\n".join(_built_in(session)), examples="\n".join(_examples(session))
    )


def _built_in(session: Session) -> Iterator[str]:
    lookup = type_lookup(session)
    for oid, array, name in session.execute(_BUILT_IN).fetchall():
        kinds = [spark_type(resolve(each, -1, lookup)) for each in (oid, array)]
        yield f"| {name} | {kinds[0]} | {kinds[1]} |"


def _examples(session: Session) -> Iterator[str]:
    lookup = type_lookup(session)
    for name, oid, modifier in session.execute(_COLUMNS).fetchall():
        yield f"| {name} | {spark_type(resolve(oid, modifier, lookup))} |"


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-types-") as directory,
        EmbeddedPostgres(Path(directory) / "postgres") as server,
        server.connect() as session,
    ):
        sys.stdout.write(type_table(session))
    return 0


if __name__ == "__main__":
    sys.exit(main())
