"""Whether a mirror equals its source, row by row.

The two sides share nothing with the way the data went. Postgres is read with
psycopg and its own conversions; the mirror is whatever DataFrame one is given,
read as Arrow. Both become Python values, matched by key and compared one by one.

What a source column should look like is decided here anew, from the catalog's
name of its type: a few types are compared as values, everything else as
Postgres's text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import Connection, sql

from penstock.schema import TableName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COMPARED_AS_VALUES = re.compile(
    r"(boolean|smallint|integer|bigint|oid|double precision|date|bytea|text"
    r"|character( varying)?|timestamp)(\(\d+\))?( with(out)? time zone)?(\[\])?"
)
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)(\[\])?")
_MAX_PRECISION = 38
# A domain is compared as what it is made of.
_COLUMNS = """
SELECT a.attname, k.place,
    CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod)
         ELSE format_type(a.atttypid, a.atttypmod) END
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
LEFT JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k (number, place) ON k.number = a.attnum
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_PINNED = "SET LOCAL TimeZone = 'UTC'; SET LOCAL IntervalStyle = postgres"
_EXAMPLES = 3

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was found. `missing`, `surplus` and `different` count rows.

    A row is surplus when its key is not in the source, or is in the mirror
    twice. `examples` has a few keys of each, for those who go looking.
    """

    table: TableName
    source_rows: int
    mirror_rows: int
    missing: int
    surplus: int
    different: int
    examples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not (self.missing or self.surplus or self.different)


def compare(
    connection: Connection[Any],
    table: TableName,
    mirror: DataFrame,
    only: Collection[str] | None = None,
    where: str | None = None,
) -> Comparison:
    """Compare a table, or `only` some columns of the rows `where` something holds, with a
    DataFrame of them."""
    source = SourceTable(connection, table, only, where)
    arrow = mirror.select(*[f"`{name}`" for name in source.columns]).toArrow()
    found = zip(*[column.to_pylist() for column in arrow.columns], strict=True)
    return compare_rows(table, source.rows(), source.keyed(found))


def compare_rows(
    table: TableName, source: Iterable[tuple[Row, Row]], mirror: Iterable[tuple[Row, Row]]
) -> Comparison:
    """Compare pairs of key and row; keys of the source are unique."""
    expected = dict(source)
    source_rows = len(expected)
    mirror_rows = 0
    surplus: list[Row] = []
    different: list[Row] = []
    for key, row in mirror:
        mirror_rows += 1
        wanted = expected.pop(key, None)  # so a second row of the same key is surplus
        if wanted is None:
            surplus.append(key)
        elif wanted != row:
            different.append(key)
    examples = (
        f"{what} {', '.join(map(str, key))}"
        for what, keys in (
            ("missing", list(expected)),
            ("surplus", surplus),
            ("different", different),
        )
        for key in keys[:_EXAMPLES]
    )
    return Comparison(
        table,
        source_rows,
        mirror_rows,
        len(expected),
        len(surplus),
        len(different),
        tuple(examples),
    )


class SourceTable:
    """A table's columns and rows as psycopg gives them.

    `only` names the columns that count, and `where` is a condition for the rows that do.
    """

    def __init__(
        self,
        connection: Connection[Any],
        table: TableName,
        only: Collection[str] | None = None,
        where: str | None = None,
    ) -> None:
        self._connection = connection
        self._table = table
        self._where = sql.SQL(f" WHERE {where}" if where else "")
        found = connection.execute(_COLUMNS, [table.quoted]).fetchall()
        if only is not None:
            found = [column for column in found if column[0] in only]
        self.columns: list[str] = [name for name, _, _ in found]
        self._types: list[str] = [type_name for _, _, type_name in found]
        places = [(place, number) for number, (_, place, _) in enumerate(found) if place]
        self._key = [number for _, number in sorted(places)]

    def rows(self) -> Iterator[tuple[Row, Row]]:
        """Each row with its key."""
        query = sql.SQL("SELECT {} FROM {}{}").format(
            sql.SQL(", ").join(map(_selected, self.columns, self._types)),
            sql.Identifier(self._table.schema, self._table.name),
            self._where,
        )
        with self._connection.transaction():
            self._connection.execute(_PINNED)
            yield from self.keyed(self._connection.execute(query, binary=True))

    def keyed(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
        """Rows in the order of `columns`, made comparable, each with its key.

        Without a primary key a row is its own key, with its number among its equals.
        """
        equals: Counter[Row] = Counter()
        for row in rows:
            whole = tuple(map(_comparable, row))
            if self._key:
                yield tuple(whole[number] for number in self._key), whole
            else:
                equals[whole] += 1
                yield (*whole, equals[whole]), whole


def _selected(name: str, type_name: str) -> sql.Composed:
    column = sql.Identifier(name)
    if _has_values(type_name):
        return sql.Composed([column])
    if type_name in ("real", "real[]"):
        # Widened by the server, as Python widens what Arrow holds.
        widened = sql.SQL("::float8[]") if type_name.endswith("[]") else sql.SQL("::float8")
        return column + widened
    if type_name.endswith("[]"):
        return column + sql.SQL("::text[]")
    # What psql would show. A cast may say more: that of inet adds the netmask.
    return sql.SQL("CASE WHEN {} IS NOT NULL THEN format('%s', {}) END").format(column, column)


def _has_values(type_name: str) -> bool:
    """Whether the mirror has values of this type, rather than its text."""
    if numeric := _NUMERIC.fullmatch(type_name):
        precision, scale = int(numeric[1]), int(numeric[2])
        return precision <= _MAX_PRECISION and 0 <= scale <= precision
    return _COMPARED_AS_VALUES.fullmatch(type_name) is not None


def _comparable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    if isinstance(value, float) and math.isnan(value):
        return "NaN"  # which equals nothing, not even itself
    return value
