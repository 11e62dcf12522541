"""Any text that Postgres takes for a type arrives the same by copy and by stream.

And what arrives, given back to Postgres, is printed as the value itself is. The texts are
drawn by hypothesis, and all go into one table, a column for each type: so a failure
names the one value that it is about, and a few seconds try every type.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock.config import PgConnection
from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.connection import Session
from tests.oracle.both_ways import assert_same, both_ways
from tests.oracle.texts import DEFINITIONS, EXTENSIONS, TYPES, TextType

EXAMPLES = 8
MANY = 40

UNREPRESENTABLE = {
    "date": "NOT isfinite({0}) OR {0} < '0001-01-01' OR {0} > '9999-12-31'",
    "moment": "NOT isfinite({0}) OR {0} < '0001-01-01' OR {0} >= '10000-01-01'",
    "instant": "NOT isfinite({0}) OR {0} < '0001-01-01 00:00Z' OR {0} >= '10000-01-01 00:00Z'",
    "decimal": "{0} = 'NaN'",
}


# What pg_input_is_valid says from Postgres 16 on.
IS_VALID = """
CREATE FUNCTION public.is_valid(input text, type text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SELECT %L::%s', input, type);
    RETURN true;
EXCEPTION WHEN others THEN
    RETURN false;
END
$$
"""


def define(session: Session) -> list[TextType]:
    """Make the types of one's own, and say which types this server has in all."""
    for extension in EXTENSIONS:
        query = "SELECT FROM pg_available_extensions WHERE name = %s"
        if session.execute(query, [extension]).fetchone() is not None:
            session.execute(f"CREATE EXTENSION {extension}".encode())
    session.execute(DEFINITIONS)
    session.execute(IS_VALID)
    return [each for each in TYPES if session.execute(each.needs.encode()).fetchone() == (True,)]


@cache
def drawn(type: TextType) -> tuple[str, ...]:  # noqa: A002
    """Texts for a type: its edges, and some at random, the same in every run."""
    found = dict.fromkeys(type.edges)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(type.texts, min_size=4, max_size=8))
    def draw(texts: list[str]) -> None:
        found.update(dict.fromkeys(texts))

    draw()
    return tuple(found)[: len(type.edges) + MANY]


def accepted(session: Session, type: TextType) -> list[str]:  # noqa: A002
    """Those of the type's texts that this server takes."""
    query = "SELECT t, public.is_valid(t, %s) FROM unnest(%s::text[]) t"
    rows = session.execute(query, [type.sql, list(drawn(type))]).fetchall()
    valid = [text for text, is_valid in rows if is_valid]
    assert 3 * len(valid) >= len(rows) > 0, f"few texts for {type.sql} are any good"
    return valid


def rows_of(session: Session, query: str) -> list[tuple[str | None, ...]]:
    """The query's result as Postgres prints it."""
    with session.cursor(binary=False) as cursor:
        cursor.execute(query.encode())
        result = cursor.pgresult
        assert result is not None
        cells = [
            [result.get_value(row, column) for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]
    return [tuple(None if c is None else bytes(c).decode() for c in row) for row in cells]


def columns(types: Sequence[TextType], form: str = "c{n}") -> str:
    return ", ".join(form.format(n=n, sql=t.sql) for n, t in enumerate(types))


def selected(n: int, type: TextType) -> str:  # noqa: A002
    """The column as its value ought to print: an array without its bounds."""
    if not type.array:
        return f"c{n}"
    return f"CASE WHEN array_ndims(c{n}) = 1 THEN ARRAY(SELECT unnest(c{n})) ELSE c{n} END"


def bad(n: int, type: TextType) -> str:  # noqa: A002
    """Whether the column's value is one that the contract calls unrepresentable."""
    condition = UNREPRESENTABLE.get(type.kind, "false")
    if not type.array:
        return f"coalesce({condition.format(f'c{n}')}, false)"
    elements = f"EXISTS (SELECT FROM unnest(c{n}) e WHERE {condition.format('e')})"
    return f"coalesce(array_ndims(c{n}) > 1, false) OR {elements}"


def given_back(value: Any) -> Any:
    """A value as text that Postgres reads, with the decoder out of it."""
    match value:
        case None | str():
            return value
        case bool():
            return "t" if value else "f"
        case int() | float():
            return repr(value)
        case Decimal():
            return format(value, "f")
        case bytes():
            return "\\x" + value.hex()
        case datetime():
            return value.isoformat(" ")
        case date():
            return value.isoformat()
        case list():
            return [given_back(item) for item in value]
    raise TypeError(type(value))


@pytest.fixture
def ways(source: PgConnection, tmp_path: Path) -> Any:
    with both_ways(source, tmp_path) as ways:
        yield ways


def test_every_text_arrives_the_same_both_ways_and_reads_back_as_itself(ways: Any) -> None:
    session = ways.session
    session.execute("SET search_path TO public, pg_catalog")
    types = define(session)
    session.execute(f"CREATE TABLE everything (id int PRIMARY KEY, {columns(types, 'c{n} {sql}')})")
    session.execute("SET TimeZone TO 'America/St_Johns'")
    texts = [accepted(session, each) for each in types]
    values = columns(types, "%s::{sql}")
    with session.transaction(), session.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO everything VALUES (%s, {values})".encode(),
            [(n, *row) for n, row in enumerate(zip_longest(*texts))],
        )
    session.execute("SET TimeZone TO UTC; SET search_path TO pg_catalog")

    copied, streamed = ways.copied("everything"), ways.streamed("everything")
    assert_same(copied, streamed)
    rows = copied.rows.drop_columns("id")

    flags = ", ".join(bad(n, each) for n, each in enumerate(types))
    unfit = session.execute(
        f"SELECT {flags} FROM public.everything ORDER BY id".encode()
    ).fetchall()
    count = sum(map(sum, unfit))
    assert 100 < count == copied.nulled == sum(defect.count for defect in streamed.defects)
    with pytest.raises(PenstockError) as refused:
        ways.copied("everything", "error")
    assert refused.value.kind is ErrorKind.DATA_UNREPRESENTABLE
    first = streamed.defects[0]
    told = f"column {first.column} of the row with {first.row} holds {first.value}, which"
    assert refused.value.message.startswith(told)

    printed = ", ".join(selected(n, each) for n, each in enumerate(types))
    expected = rows_of(session, f"SELECT {printed} FROM public.everything ORDER BY id")
    again = back_in_postgres(session, types, rows)
    for n, each in enumerate(types):
        found = rows.column(n).to_pylist()
        elements = elements_of(session, n) if each.array and each.kind == "text" else None
        for row, value in enumerate(found):
            where = f"{each.sql}: {expected[row][n]!r:.300}"
            if value is None:
                assert expected[row][n] is None or unfit[row][n], where
            elif elements is not None:
                assert value == elements[row], where
            elif each.kind == "text":
                assert value == expected[row][n], where
            else:
                assert again[row][n] == expected[row][n], where


def back_in_postgres(
    session: Session, types: Sequence[TextType], rows: Any
) -> list[tuple[str | None, ...]]:
    """How Postgres prints what arrived, after it has read that; None for what is text anyway."""
    typed = [n for n, each in enumerate(types) if each.kind != "text"]
    session.execute("SET search_path TO public, pg_catalog")
    definition = ", ".join(f"c{n} {types[n].sql}" for n in typed)
    session.execute(f"CREATE TEMPORARY TABLE arrived (id int, {definition})".encode())
    values = ", ".join(
        f"%s::text[]::{each.sql}" if each.array else f"%s::{each.sql}"
        for each in (types[n] for n in typed)
    )
    arrived = zip(*(map(given_back, rows.column(n).to_pylist()) for n in typed), strict=True)
    with session.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO arrived VALUES (%s, {values})".encode(),
            [(n, *row) for n, row in enumerate(arrived)],
        )
    session.execute("SET search_path TO pg_catalog")
    every = ", ".join(f"c{n}" if n in typed else "NULL" for n in range(len(types)))
    return rows_of(session, f"SELECT {every} FROM pg_temp.arrived ORDER BY id")


def elements_of(session: Session, n: int) -> list[Any]:
    """A column of arrays with its elements as Postgres prints them.

    A composite whose fields are all NULL says that it IS NULL, but it is DISTINCT FROM it.
    """
    query = f"""
        SELECT CASE WHEN c{n} IS NOT NULL THEN ARRAY(
            SELECT CASE WHEN c{n}[i] IS DISTINCT FROM NULL THEN format('%s', c{n}[i]) END
            FROM generate_subscripts(c{n}, 1) i ORDER BY i) END
        FROM public.everything ORDER BY id
    """
    return [row[0] for row in session.execute(query.encode()).fetchall()]
