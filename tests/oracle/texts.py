r"""Every type of the contract, with texts for it that Postgres may read.

Unlike the values of `columns` these go to the edges: infinities, years before 1 and
after 9999, 131,072 digits, arrays with bounds and with more dimensions. `edges` are
always tried, `texts` at random. A text need not be valid; Postgres is asked first.
What a server lacks (an extension, xml) is left out there: see `TextType.needs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hypothesis import strategies as st

Texts = st.SearchStrategy[str]

EXTENSIONS = ("citext", "hstore", "vector")

# `folded` is made as citext is, which the embedded server does not have; `piped` has a
# delimiter of its own, as `box` has.
DEFINITIONS = r"""
CREATE SCHEMA "Other ""schema";
CREATE TYPE "Other ""schema"."Odd.type" AS ENUM ('a,b', '{c}', 'NULL', '"', '\', ' ', '', 'é🚰');
CREATE TYPE pair AS (a integer, b text);
CREATE TYPE nest AS (p pair, many pair[], "when" timestamptz, raw bytea);
CREATE TYPE spread AS RANGE (subtype = float8, multirange_type_name = spreads);
CREATE DOMAIN price AS numeric(10,3);
CREATE DOMAIN low_price AS price CHECK (VALUE < 100);
CREATE DOMAIN day AS date;
CREATE DOMAIN any_day AS day;
CREATE DOMAIN grid AS integer[];
CREATE DOMAIN grids AS grid;
CREATE DOMAIN blobs AS bytea[];
CREATE DOMAIN couple AS pair;
CREATE TYPE folded;
CREATE FUNCTION folded_in(cstring) RETURNS folded AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION folded_out(folded) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE folded (INPUT = folded_in, OUTPUT = folded_out, LIKE = text, CATEGORY = 'S');
CREATE TYPE piped;
CREATE FUNCTION piped_in(cstring) RETURNS piped AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION piped_out(piped) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE piped (INPUT = piped_in, OUTPUT = piped_out, LIKE = text, DELIMITER = '|');
"""


@dataclass(frozen=True)
class TextType:
    """`kind` is how its values are carried, where that is not as text.

    `needs` is a query that says whether this server has the type.
    """

    sql: str
    texts: Texts = field(repr=False)
    edges: tuple[str, ...] = field(repr=False)
    kind: str = "text"
    array: bool = False
    delimiter: str = ","
    needs: str = "SELECT true"


def extension(name: str) -> str:
    """A need: the extension is installed in the database."""
    return f"SELECT EXISTS (SELECT FROM pg_extension WHERE extname = '{name}')"


SINCE_15 = "SELECT current_setting('server_version_num')::int >= 150000"
LIBXML = "SELECT bool_or(setting LIKE '%--with-libxml%') FROM pg_config WHERE name = 'CONFIGURE'"


def integers(bits: int) -> tuple[Texts, tuple[str, ...]]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.integers(low, high).map(str), (str(low), str(high), "0", "-1")


def numbers(digits: int, places: int) -> Texts:
    """Decimals of up to so many digits, with up to so many of them behind the point."""
    return st.builds(
        lambda number, exponent: f"{number}e-{exponent}",
        st.integers(-(10**digits) + 1, 10**digits - 1),
        st.integers(0, places),
    )


def few(low: int = -99, high: int = 99) -> Texts:
    return st.integers(low, high).map(str)


def strings(max_size: int = 20) -> Texts:
    readable = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    return st.text(readable, max_size=max_size) | st.text('{}(),;|"\\N \t\n\r\b\f\v', max_size=9)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def documents() -> st.SearchStrategy[object]:
    leaves = st.none() | st.booleans() | st.integers() | strings(5)
    return st.recursive(
        leaves,
        lambda c: st.lists(c, max_size=2) | st.dictionaries(strings(3), c, max_size=2),
        max_leaves=4,
    )


def ranges(bounds: Texts, order: Callable[[str], Any] = str) -> Texts:
    def text(bounds: list[str], opening: str, closing: str) -> str:
        low, high = sorted(bounds, key=order)
        return f"{opening}{quoted(low)},{quoted(high)}{closing}"

    two = st.lists(bounds, min_size=2, max_size=2)
    return st.builds(text, two, st.sampled_from("[("), st.sampled_from("])"))


def pairs() -> Texts:
    return st.builds(lambda n, t: f"({n},{quoted(t)})", few(), strings())


def coordinates(count: int, shape: str) -> Texts:
    number = st.floats(-1e9, 1e9).map(repr) | few() | st.sampled_from(["NaN", "Infinity", "-0"])
    return st.lists(number, min_size=count, max_size=count).map(lambda n: shape.format(*n))


_YEARS = st.integers(1, 9999) | st.integers(1, 4713) | st.integers(9990, 10_010)
DATES = st.builds(
    lambda year, month, day, era: f"{year:04}-{month:02}-{day:02}{era}",
    _YEARS | st.integers(1, 294_276),
    st.integers(1, 12),
    st.integers(1, 31),
    st.sampled_from(["", "", "", " BC"]),
)
CLOCKS = st.builds(
    lambda h, m, s, f: f"{h:02}:{m:02}:{s:02}{f}",
    st.integers(0, 24),
    st.integers(0, 59),
    st.integers(0, 60),
    st.sampled_from(["", ".5", ".000001", ".999999", ".9999999"])
    | st.integers(0, 999_999).map(lambda n: f".{n:06}"),
)
ZONES = st.builds(
    lambda sign, h, m: f"{sign}{h:02}:{m:02}",
    st.sampled_from("+-"),
    st.integers(0, 15),
    st.integers(0, 59),
) | st.sampled_from([" Europe/Berlin", " Asia/Kathmandu", " America/New_York", "Z"])
MOMENTS = st.builds(
    lambda date, clock: f"{date[:-3]} {clock} BC" if "BC" in date else f"{date} {clock}",
    DATES,
    CLOCKS,
) | st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(str)  # noqa: DTZ001
ZONED = st.builds(
    lambda moment, zone: f"{moment[:-3]}{zone} BC" if "BC" in moment else f"{moment}{zone}",
    MOMENTS,
    ZONES,
)
_FAR = ("infinity", "-infinity", "epoch")
DATE_EDGES = (
    *_FAR,
    *("4714-11-24 BC", "0001-12-31 BC", "0001-01-01", "0044-03-15 BC", "2000-02-29"),
    *("9999-12-31", "10000-01-01", "5874897-12-31"),
)
MOMENT_EDGES = (
    *_FAR,
    *("4714-11-24 00:00:00 BC", "0001-12-31 23:59:59.999999 BC", "0001-01-01 00:00:00"),
    *("9999-12-31 23:59:59.999999", "9999-12-31 24:00:00", "10000-01-01 00:00:00"),
    *("294276-12-31 23:59:59.999999", "2016-12-31 23:59:60", "1969-12-31 23:59:59.999999"),
)
ZONED_EDGES = (
    *MOMENT_EDGES,
    *("9999-12-31 23:59:59.999999-00:01", "10000-01-01 00:59:59+01", "0001-01-01 00:00:00+01"),
    *("0001-12-31 23:30:00-01 BC", "2024-10-27 02:30:00 Europe/Berlin", "1900-01-01 LMT"),
    "1883-11-18 12:03:57 America/New_York",
)
TEXT_EDGES = (
    "",
    " ",
    "NULL",
    "null",
    *("\\N", "\\.", "\\", "\\\\", "\\t", '"', "'", "{}", "{a,b}", "(1,2)", "\r\n", "\ufeff"),
    "".join(map(chr, range(1, 0x180))),
    "".join(chr(0x10000 * plane + at) for plane in range(1, 17) for at in (0, 0x41, 0xFFFD)),
    "\ud7ff\ue000\ufffd\ufffe\uffff",
    "\u202edna\u0301 🏳️\u200d🌈",
    "\\" * 999,
    "x\ty" * 3000,
)
ALL_BYTES = "\\x" + bytes(range(256)).hex()
FLOAT_EDGES = ("NaN", "Infinity", "-Infinity", "0", "-0", "0.1", "1e15", "123456789", "1e-5")


def _scalars() -> tuple[TextType, ...]:
    ones_and_zeros = st.text("01", max_size=12)
    return (
        TextType("boolean", st.booleans().map(str), ("t", "f"), "boolean"),
        TextType("smallint", *integers(16), "number"),
        TextType("integer", *integers(32), "number"),
        TextType("bigint", *integers(64), "number"),
        TextType("oid", few(0, 2**32 - 1), ("0", "4294967295"), "number"),
        TextType(
            "real",
            st.floats(width=32).map(repr),
            (*FLOAT_EDGES, "1e-45", "1.17549435e-38", "3.4028235e38", "16777217", "7.038531e-26"),
            "float",
        ),
        TextType(
            "double precision",
            st.floats().map(repr) | numbers(25, 300),
            (*FLOAT_EDGES, "4.9e-324", "2.2250738585072014e-308", "1.7976931348623157e308"),
            "float",
        ),
        TextType("numeric(12,2)", numbers(12, 12), ("NaN", "-0.00", "9999999999.99"), "decimal"),
        TextType("numeric(38,10)", numbers(28, 20), ("NaN", "9" * 28 + ".9999999999"), "decimal"),
        TextType("numeric(38,0)", numbers(38, 0), ("NaN", "-" + "9" * 38), "decimal"),
        TextType("numeric(38,38)", numbers(38, 0).map(lambda n: n + "38"), ("0",), "decimal"),
        TextType("numeric(1)", few(-9, 9), ("NaN",), "decimal"),
        TextType(
            "numeric",
            numbers(60, 30) | st.decimals(allow_nan=False).map(str),
            (
                *("NaN", "Infinity", "-Infinity", "1.0", "1.00", "-0.000", "1e-16383"),
                *("9" * 131_072, "-" + "9" * 131_072 + "." + "9" * 16_383),
            ),
        ),
        TextType("numeric(39,2)", numbers(37, 2), ("NaN",)),
        TextType(
            "numeric(5,-2)",
            few(-9_999_999, 9_999_999),
            ("149", "150", "NaN"),
            needs=SINCE_15,
        ),
        TextType(
            "numeric(3,5)",
            numbers(3, 0).map(lambda n: n + "5"),
            ("0.00999",),
            needs=SINCE_15,
        ),
        TextType("date", DATES, DATE_EDGES, "date"),
        TextType("timestamp", MOMENTS, MOMENT_EDGES, "moment"),
        TextType("timestamp(0)", MOMENTS, MOMENT_EDGES, "moment"),
        TextType("timestamptz", ZONED, ZONED_EDGES, "instant"),
        TextType("timestamptz(3)", ZONED, ZONED_EDGES, "instant"),
        TextType("time", CLOCKS, ("24:00:00", "00:00:00", "23:59:60")),
        TextType("timetz", st.builds(str.__add__, CLOCKS, ZONES), ("24:00:00-15:59:59",)),
        TextType(
            "interval",
            st.builds(
                lambda m, d, s: f"{m} mons {d} days {s}.5 secs", few(), few(), few(-9999, 9999)
            ),
            ("infinity", "-infinity", "0", "178000000 years", "-1 mons +2 days -00:00:01"),
        ),
        TextType(
            "bytea",
            st.binary(max_size=40).map(lambda b: "\\x" + b.hex()),
            ("", ALL_BYTES, "\\x5c5c", "\\\\", "it''s"),
            "binary",
        ),
        TextType("uuid", st.uuids().map(str), ("0" * 32,)),
        TextType(
            "json",
            documents().map(lambda d: json.dumps(d, indent=1)) | documents().map(json.dumps),
            ('{"a":1,"a" : 2}', "1e400", '"\\u0000"', ' [ ] \n\t"x"'[:6]),
        ),
        TextType(
            "jsonb",
            documents().map(json.dumps),
            ('{"b":1,"a" : 2}', "1e400", "1.00", '"\\ud83d\\udeb0\\t\\\\"', "null"),
        ),
        TextType("text", strings(), TEXT_EDGES),
        TextType("varchar(20)", strings(20), ("", "🚰" * 20, "x" * 20)),
        TextType("char(6)", strings(6), ("", "a ", "🚰" * 6)),
        TextType("name", strings(15), ("", "x" * 63, "a.b")),
        # Before 15 its bytes above 127 were sent as they are, which is no UTF-8.
        TextType('"char"', strings(1), ("", "a", "\\303", "\\000", "\\", "\t"), needs=SINCE_15),
        TextType(
            '"Other ""schema"."Odd.type"',
            st.sampled_from(["a,b", "{c}", "NULL", '"', "\\", " ", "", "é🚰"]),
            (),
        ),
        TextType("low_price", numbers(5, 3), ("NaN", "99.999"), "decimal"),
        TextType("any_day", DATES, DATE_EDGES, "date"),
        TextType("pair", pairs(), ("(,)", '(1,"")', '(-1,"a ""b"" \\\\ \n")')),
        TextType(
            "nest",
            st.builds(
                lambda p, q, m: f"({quoted(p)},{quoted(f'{{{quoted(q)}}}')},{m},\\\\x00ff)",
                pairs(),
                pairs(),
                st.sampled_from(["infinity", "2024-01-01", '"0044-03-15 12:00:00+01 BC"']),
            ),
            ("(,,,)",),
        ),
        TextType("couple", pairs(), ("(,)",)),
        TextType("int4range", ranges(few(), int), ("empty", "(,)", "[1,)")),
        TextType("numrange", ranges(numbers(9, 9), float), ("[NaN,NaN]", "(-Infinity,Infinity]")),
        TextType("daterange", ranges(DATES), ("[-infinity,infinity)", "(,)")),
        TextType("tstzrange", ranges(ZONED), ("[2024-01-01 00:00:00+05:45,)", "empty")),
        TextType("spread", ranges(st.floats().map(repr), float), ("[0.1,0.3)", "(,)")),
        TextType(
            "int4multirange",
            st.lists(ranges(few(), int), max_size=3).map(lambda r: f"{{{','.join(r)}}}"),
            ("{}", "{[1,2),[5,)}"),
        ),
        TextType("spreads", ranges(few(), int).map(lambda r: f"{{{r}}}"), ("{}",)),
        TextType(
            "inet",
            st.ip_addresses().map(str)
            | st.builds(lambda a, n: f"{a}/{n}", st.ip_addresses(v=4), few(0, 32)),
            ("::ffff:1.2.3.4", "10.0.0.1/32", "::1/128"),
        ),
        TextType("cidr", few(0, 255).map(lambda n: f"10.{n}.0.0/16"), ("::/0",)),
        TextType("macaddr", few(10, 99).map(lambda n: f"08:00:2b:01:02:{n}"), ()),
        TextType("macaddr8", few(10, 99).map(lambda n: f"08:00:2b:01:02:03:04:{n}"), ()),
        TextType(
            "money",
            st.integers(-(10**12), 10**12).map(lambda n: f"{n}.{abs(n) % 100:02}"),
            ("-92233720368547758.08", "92233720368547758.07", "$1,000.5", "(1)"),
        ),
        TextType("bit(5)", st.text("01", min_size=5, max_size=5), ("00000",)),
        TextType("bit varying(9)", ones_and_zeros, ("",)),
        TextType("point", coordinates(2, "({},{})"), ("(NaN,Infinity)",)),
        TextType("line", coordinates(3, "{{{},{},{}}}"), ("{1,-1,0}",)),
        TextType("lseg", coordinates(4, "[({},{}),({},{})]"), ()),
        TextType("box", coordinates(4, "({},{}),({},{})"), ("(1,2),(3,4)",), delimiter=";"),
        TextType("path", coordinates(4, "[({},{}),({},{})]"), ("((1,2),(3,4))",)),
        TextType("polygon", coordinates(4, "(({},{}),({},{}))"), ("((0,0))",)),
        TextType("circle", coordinates(3, "<({},{}),{}>"), ()),
        TextType("tsvector", strings().map(lambda t: f"'{t}':1A"), ("", "'it''s':3B 'a\\\\b'")),
        TextType("tsquery", st.sampled_from(["a & !b", "'it''s' <-> c:*"]), ("",)),
        TextType("jsonpath", few().map(lambda n: f"$.a[*] ? (@ > {n})"), ('$."a b"',)),
        TextType("pg_lsn", few(0, 2**32 - 1).map(lambda n: f"1/{int(n):X}"), ("0/0",)),
        TextType("pg_snapshot", few(20, 99).map(lambda n: f"10:{n}:11,12"), ()),
        TextType("xid8", few(0, 2**63), ("18446744073709551615",)),
        TextType("tid", few(0, 2**16 - 1).map(lambda n: f"({n},{n})"), ("(4294967295,65535)",)),
        TextType("regtype", st.sampled_from(["int4", "pair", "text[]", "-"]), ("timestamptz",)),
        TextType("regclass", st.sampled_from(["pg_class", "-", "information_schema.tables"]), ()),
        TextType("int2vector", st.lists(few(), max_size=4).map(" ".join), ("",)),
        TextType(
            "vector",
            st.lists(few(), min_size=1, max_size=3).map(lambda v: f"[{','.join(v)}]"),
            (),
            needs=extension("vector"),
        ),
        TextType("citext", strings(), TEXT_EDGES, needs=extension("citext")),
        TextType(
            "hstore",
            st.lists(
                st.builds(lambda k, v: f"{quoted(k)}=>{quoted(v)}", strings(5), strings(9))
            ).map(", ".join),
            ("", "a=>NULL", '"NULL"=>"NULL"', '"a=>b"=>"\\", c=>", "'),
            needs=extension("hstore"),
        ),
        TextType(
            "xml",
            strings().map(lambda t: f"<a><![CDATA[{t}]]></a>"),
            ("", "<a b='1'/>", "<?xml version='1.0'?><a>é🚰</a>", "only text"),
            needs=LIBXML,
        ),
        TextType("folded", strings(), TEXT_EDGES),
        TextType("piped", strings(), ("a|b", "", "NULL"), delimiter="|"),
    )


SCALARS = _scalars()


def _literal(elements: list[str | None], delimiter: str, bound: int | None) -> str:
    """An array as Postgres reads it, with a lower bound where there is one."""
    inside = delimiter.join("NULL" if e is None else quoted(e) for e in elements)
    prefix = f"[{bound}:{bound + len(elements) - 1}]=" if bound is not None and elements else ""
    return f"{prefix}{{{inside}}}"


def array_of(element: TextType) -> TextType:
    """The type's array: elements of all kinds, with bounds and with dimensions."""
    short = tuple(edge for edge in element.edges if len(edge) < 1000)
    one = element.texts | st.sampled_from(short) if short else element.texts
    flat = st.builds(
        _literal,
        st.lists(st.none() | one, max_size=4),
        st.just(element.delimiter),
        st.sampled_from([None, None, None, 0, 2, -3]),
    )
    deep = st.lists(one, min_size=2, max_size=2).map(
        lambda pair: "{" + element.delimiter.join(_literal([e], ",", None) for e in pair) + "}"
    )
    edges = ("{}", "{NULL}", *(_literal([e], element.delimiter, None) for e in short))
    return replace(
        element, sql=f"{element.sql}[]", texts=flat | flat | flat | deep, edges=edges, array=True
    )


ARRAYS = (
    *map(array_of, SCALARS),
    TextType("grids", array_of(SCALARS[2]).texts, ("{}", "{{1}}"), "number", array=True),
    TextType("blobs", st.just('{"\\\\x00ff",NULL}'), ("{}",), "binary", array=True),
)
TYPES = (*SCALARS, *ARRAYS)
