"""Every type of the contract, with values for it as Postgres reads them.

A value is text (or a list of texts, for arrays) that is cast to the type in the
statement, so that what reaches the table is Postgres's own reading of it. Values
that the mapping calls unrepresentable (infinite dates, NaN in numeric(p,s), arrays
of arrays) are left out here; they have tests of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

Values = st.SearchStrategy[Any]

# Types of our own, to be made before the tables are.
DEFINITIONS = """
CREATE TYPE mood AS ENUM ('sad', 'so, so', 'happy "er"', '');
CREATE TYPE pair AS (a integer, b text);
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN price AS numeric(10,3);
CREATE DOMAIN label AS varchar(20);
CREATE DOMAIN labels AS text[];
"""


@dataclass(frozen=True)
class ColumnType:
    """`sql` is what the column is declared as; `key` whether a key may have it."""

    sql: str
    values: Values = field(repr=False)
    key: bool = False

    @property
    def cast(self) -> str:
        """A parameter of this type. Lists come as text arrays."""
        return f"%s::text[]::{self.sql}" if self.array else f"%s::{self.sql}"

    @property
    def array(self) -> bool:
        return self.sql.endswith("[]") or self.sql == "labels"


def texts(max_size: int = 12) -> Values:
    return st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=max_size
    )


def integers(bits: int) -> Values:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(str)


def decimals(digits: int, places: int) -> Values:
    def text(number: int) -> str:
        unsigned = f"{abs(number):0{places + 1}}"
        cut = len(unsigned) - places
        return f"{'-' if number < 0 else ''}{unsigned[:cut]}.{unsigned[cut:]}"

    return st.integers(-(10**digits) + 1, 10**digits - 1).map(text)


def moments() -> Values:
    return st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31))  # noqa: DTZ001


def offsets() -> Values:
    return st.integers(-12 * 4, 14 * 4).map(lambda n: timezone(timedelta(minutes=15 * n)))


def numbers() -> Values:
    return st.integers(-99, 99)


def ranges(low: Values) -> Values:
    bounds = st.tuples(low, low).map(sorted).map(lambda pair: f"[{pair[0]},{pair[1]})")
    return st.sampled_from(["empty", "(,)"]) | bounds


def documents() -> Values:
    leaves = st.none() | st.booleans() | numbers() | texts(5)
    return st.recursive(
        leaves,
        lambda c: st.lists(c, max_size=2) | st.dictionaries(texts(3), c, max_size=2),
        max_leaves=3,
    )


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'


SPECIAL_NUMBERS = st.sampled_from(["NaN", "Infinity", "-Infinity", "-0", "1e-20", "1.00", "1.0"])
BIG_TEXTS = st.integers(0, 9).map(lambda n: "".join(f"{n}/{i} ü" for i in range(900)))

SCALARS = (
    ColumnType("boolean", st.sampled_from(["true", "false"])),
    ColumnType("smallint", integers(16), key=True),
    ColumnType("integer", integers(32), key=True),
    ColumnType("bigint", integers(64), key=True),
    ColumnType("oid", st.integers(0, 2**32 - 1).map(str), key=True),
    ColumnType("real", st.floats(width=32).map(repr)),
    ColumnType("double precision", st.floats().map(repr)),
    ColumnType("numeric(12,2)", decimals(12, 2), key=True),
    ColumnType("numeric(38,10)", decimals(38, 10)),
    ColumnType("numeric(3,0)", decimals(3, 0)),
    ColumnType("numeric", decimals(40, 15) | SPECIAL_NUMBERS, key=True),
    ColumnType("numeric(50,3)", decimals(50, 3)),
    ColumnType("numeric(3,5)", decimals(3, 5)),
    ColumnType("date", st.dates().map(str), key=True),
    ColumnType("timestamp", moments().map(str), key=True),
    ColumnType("timestamp(0)", moments().map(str)),
    ColumnType(
        "timestamptz",
        st.builds(
            lambda m, o: m.replace(tzinfo=UTC).astimezone(o).isoformat(), moments(), offsets()
        ),
        key=True,
    ),
    ColumnType("time", st.times().map(str)),
    ColumnType(
        "timetz", st.builds(lambda t, o: t.replace(tzinfo=o).isoformat(), st.times(), offsets())
    ),
    ColumnType(
        "interval",
        st.builds(lambda m, d, s: f"{m} mons {d} days {s}.5 secs", numbers(), numbers(), numbers()),
    ),
    ColumnType("bytea", st.binary(max_size=12).map(lambda b: "\\x" + b.hex()), key=True),
    ColumnType("uuid", st.uuids().map(str), key=True),
    ColumnType("json", documents().map(lambda d: json.dumps(d, indent=1))),
    ColumnType("jsonb", documents().map(json.dumps)),
    ColumnType("text", texts(), key=True),
    ColumnType("varchar(20)", texts(20), key=True),
    ColumnType("char(6)", texts(6), key=True),
    ColumnType("name", texts(12)),
    ColumnType('"char"', st.sampled_from('aZ0 ,"\\{')),
    ColumnType("mood", st.sampled_from(["sad", "so, so", 'happy "er"', ""]), key=True),
    ColumnType("positive", st.integers(1, 2**31 - 1).map(str), key=True),
    ColumnType("price", decimals(10, 3)),
    ColumnType("label", texts(20), key=True),
    ColumnType("pair", st.builds(lambda n, t: f"({n},{quoted(t)})", numbers(), texts())),
    ColumnType("int4range", ranges(numbers())),
    ColumnType("daterange", ranges(st.dates())),
    ColumnType(
        "int4multirange",
        st.lists(ranges(numbers()), max_size=2).map(lambda r: f"{{{','.join(r)}}}"),
    ),
    ColumnType("inet", st.ip_addresses().map(str), key=True),
    ColumnType("cidr", st.integers(0, 255).map(lambda n: f"10.{n}.0.0/16")),
    ColumnType("macaddr", st.integers(0, 255).map(lambda n: f"08:00:2b:01:02:{n:02x}")),
    ColumnType("money", decimals(9, 2)),
    ColumnType("bit(5)", st.integers(0, 31).map(lambda n: f"{n:05b}")),
    ColumnType("bit varying(9)", st.integers(0, 511).map(lambda n: f"{n:b}")),
    ColumnType("point", st.builds(lambda x, y: f"({x}.25,{y}e-3)", numbers(), numbers())),
    ColumnType("box", st.builds(lambda x, y: f"({x},{y}),(1,2)", numbers(), numbers())),
    ColumnType("path", st.builds(lambda x, y: f"[({x},{y}),(1,2)]", numbers(), numbers())),
    ColumnType("tsvector", st.sampled_from(["'a':1 'b':2,3A", "'it''s'", ""])),
    ColumnType("pg_lsn", st.integers(0, 2**32 - 1).map(lambda n: f"1/{n:X}")),
)


def _array_of(sql: str) -> ColumnType:
    element = next(each for each in SCALARS if each.sql == sql)
    return ColumnType(f"{sql}[]", st.lists(st.none() | element.values, max_size=3))


_IN_ARRAYS = (
    *("boolean", "smallint", "integer", "bigint", "oid", "real", "double precision"),
    *("numeric(12,2)", "numeric", "date", "timestamp", "timestamptz", "time", "interval"),
    *("bytea", "uuid", "json", "jsonb", "text", "varchar(20)", "char(6)", "name", "mood"),
    *("pair", "int4range", "money", "bit(5)", "point", "box"),
)

TYPES = (
    *SCALARS,
    *map(_array_of, _IN_ARRAYS),
    ColumnType("labels", st.lists(st.none() | texts(), max_size=3)),
)
KEY_TYPES = tuple(each for each in TYPES if each.key)
BIG_TEXT = ColumnType("text", BIG_TEXTS)
"""Stored out of line, so that an update of another column does not resend it."""
