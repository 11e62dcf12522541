"""Postgres, Arrow and Spark types side by side.

A `ValueType` says what a column's values become. `resolve` finds it for a
Postgres type: built-in types are known by their oid, everything else is asked
of the catalog through a lookup, and followed through domains and arrays until a
known type is reached. What is known by no rule is carried as its text, exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from penstock.errors import ErrorKind, PenstockError
from penstock.schema import STRING, ValueKind, ValueType

NUMERIC_OID = 1700
_FIRST_UNFIXED_OID = 10_000  # smaller oids mean the same on every server
_BOX_ARRAY_OID = 1020
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """What `pg_type` says of a type: `typtype`, `typcategory`, and what it is made of.

    `base_oid` and `base_modifier` belong to domains, `element_oid` to arrays;
    zero means that there is none. `delimiter` is `typdelim`.
    """

    oid: int
    name: str
    typtype: str = "b"
    category: str = "U"
    base_oid: int = 0
    base_modifier: int = -1
    element_oid: int = 0
    delimiter: str = ","


TypeLookup = Callable[[int], TypeInfo | None]

_SCALARS = {
    oid: ValueType(kind)
    for oid, kind in {
        16: ValueKind.BOOLEAN,
        17: ValueKind.BINARY,
        20: ValueKind.LONG,
        21: ValueKind.SHORT,
        23: ValueKind.INTEGER,
        26: ValueKind.LONG,  # oid, unsigned
        700: ValueKind.FLOAT,
        701: ValueKind.DOUBLE,
        1082: ValueKind.DATE,
        1114: ValueKind.TIMESTAMP_NTZ,
        1184: ValueKind.TIMESTAMP,
    }.items()
}

_ARRAYS = {
    1000: 16,  # boolean[]
    1001: 17,  # bytea[]
    1005: 21,  # smallint[]
    1007: 23,  # integer[]
    1016: 20,  # bigint[]
    1020: 603,  # box[]
    1021: 700,  # real[]
    1022: 701,  # double precision[]
    1028: 26,  # oid[]
    1115: 1114,  # timestamp[]
    1182: 1082,  # date[]
    1185: 1184,  # timestamptz[]
    1231: 1700,  # numeric[]
}

# Arrays of all other built-in types: text, uuid, json, inet, ranges and so on.
_TEXT_ARRAYS = frozenset(
    {
        143,
        199,
        271,
        629,
        651,
        719,
        775,
        791,
        1002,
        1003,
        1006,
        1008,
        1009,
        1010,
        1011,
        1012,
        1013,
        1014,
        1015,
        1017,
        1018,
        1019,
        1027,
        1034,
        1040,
        1041,
        1183,
        1187,
        1270,
        1561,
        1563,
        2201,
        2207,
        2208,
        2209,
        2210,
        2211,
        2949,
        2951,
        3221,
        3643,
        3644,
        3645,
        3735,
        3770,
        3807,
        3905,
        3907,
        3909,
        3911,
        3913,
        3927,
        4073,
        4090,
        4097,
        4192,
        5039,
        6150,
        6151,
        6152,
        6153,
        6155,
        6157,
    }
)

_ARROW = {
    ValueKind.BOOLEAN: pa.bool_(),
    ValueKind.SHORT: pa.int16(),
    ValueKind.INTEGER: pa.int32(),
    ValueKind.LONG: pa.int64(),
    ValueKind.FLOAT: pa.float32(),
    ValueKind.DOUBLE: pa.float64(),
    ValueKind.DATE: pa.date32(),
    ValueKind.TIMESTAMP_NTZ: pa.timestamp("us"),
    ValueKind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    ValueKind.BINARY: pa.binary(),
    ValueKind.STRING: pa.string(),
}

_SPARK = {
    ValueKind.BOOLEAN: "boolean",
    ValueKind.SHORT: "smallint",
    ValueKind.INTEGER: "int",
    ValueKind.LONG: "bigint",
    ValueKind.FLOAT: "float",
    ValueKind.DOUBLE: "double",
    ValueKind.DATE: "date",
    ValueKind.TIMESTAMP_NTZ: "timestamp_ntz",
    ValueKind.TIMESTAMP: "timestamp",
    ValueKind.BINARY: "binary",
    ValueKind.STRING: "string",
}


def arrow_type(type: ValueType) -> pa.DataType:  # noqa: A002
    """The Arrow type that holds values of `type`."""
    match type.kind:
        case ValueKind.DECIMAL:
            return pa.decimal128(type.precision, type.scale)
        case ValueKind.ARRAY:
            return pa.list_(arrow_type(_element(type)))
        case kind:
            return _ARROW[kind]


def spark_type(type: ValueType) -> str:  # noqa: A002
    """The Spark type that holds values of `type`, as Spark SQL writes it."""
    match type.kind:
        case ValueKind.DECIMAL:
            return f"decimal({type.precision},{type.scale})"
        case ValueKind.ARRAY:
            return f"array<{spark_type(_element(type))}>"
        case kind:
            return _SPARK[kind]


def resolve(type_oid: int, type_modifier: int, lookup: TypeLookup) -> ValueType:
    """What values of a Postgres type become.

    A modifier belongs to the elements where the type is an array
    (`numeric(12,2)[]`), and to the base type where a domain sets one. `lookup`
    is asked about types that are not built in; None means that nothing is known.
    """
    if type_oid == NUMERIC_OID:
        return _numeric(type_modifier)
    if type_oid in _SCALARS:
        return _SCALARS[type_oid]
    if type_oid in _ARRAYS:
        element = resolve(_ARRAYS[type_oid], type_modifier, lookup)
        delimiter = ";" if type_oid == _BOX_ARRAY_OID else ","
        return ValueType(ValueKind.ARRAY, element=element, delimiter=delimiter)
    if type_oid in _TEXT_ARRAYS:
        return ValueType(ValueKind.ARRAY, element=STRING)
    info = lookup(type_oid) if type_oid >= _FIRST_UNFIXED_OID else None
    if info is None:
        return STRING
    if info.typtype == "d":
        return resolve(info.base_oid, info.base_modifier, lookup)
    if info.category == "A" and info.element_oid:
        element = resolve(info.element_oid, type_modifier, lookup)
        return ValueType(ValueKind.ARRAY, element=element, delimiter=info.delimiter)
    return STRING


def value_type(type_oid: int, type_modifier: int, info: TypeInfo | None = None) -> ValueType:
    """`resolve` for a type that is built in, or made of built-in types as `info` says."""
    known = {info.oid: info} if info else {}
    return resolve(type_oid, type_modifier, known.get)


def base_oid(type_oid: int, lookup: TypeLookup) -> int:
    """The type under a domain, and under the domain under it; other types are their own."""
    info = lookup(type_oid) if type_oid >= _FIRST_UNFIXED_OID else None
    return base_oid(info.base_oid, lookup) if info and info.typtype == "d" else type_oid


def override(text: str, base_type_oid: int | None = None, *, in_key: bool = False) -> ValueType:
    """What a user's `column_types` entry asks for: `string`, `decimal(p,s)` or `double`.

    With `base_type_oid`, the column's type without its domains, it is also made
    sure that the type allows it: only numeric can become a decimal or a double. A double
    is not exact, so a column that is `in_key` cannot be one: rows would be taken for one.
    """
    wanted = _parse_override(text)
    if wanted is None:
        raise PenstockError(
            ErrorKind.CONFIG,
            f"column_types: {text!r} is not a type a column can be carried as",
            hint="use string, or for a numeric column decimal(p,s) with p up to 38, or double",
        )
    if wanted != STRING and base_type_oid not in (None, NUMERIC_OID):
        raise PenstockError(
            ErrorKind.CONFIG,
            f"column_types: {text!r} is for numeric columns only",
            hint="carry the column as string, or leave its entry out",
        )
    if in_key and wanted.kind is ValueKind.DOUBLE:
        raise PenstockError(
            ErrorKind.CONFIG,
            f"column_types: {text!r} is not exact, and the column is part of the key: different"
            " rows would be taken for one",
            hint="carry it as decimal(p,s) or string",
        )
    return wanted


def carried_type(
    type_oid: int,
    type_modifier: int,
    wanted: str | None,
    lookup: TypeLookup,
    *,
    in_key: bool = False,
) -> ValueType:
    """What a column's values become: what `column_types` wants of it, where the column allows that.

    Where it does not, the column is taken for what it is: its type or the key may have changed
    while we run, and whoever decodes must go on. `override` tells what is wrong.
    """
    if wanted is not None:
        with suppress(PenstockError):
            return override(wanted, base_oid(type_oid, lookup), in_key=in_key)
    return resolve(type_oid, type_modifier, lookup)


def _parse_override(text: str) -> ValueType | None:
    normal = re.sub(r"\s+", "", text).lower()
    if normal in ("string", "double"):
        return ValueType(ValueKind(normal))
    if match := re.fullmatch(r"decimal\((\d{1,2}),(\d{1,2})\)", normal):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= _MAX_PRECISION and scale <= precision:
            return ValueType(ValueKind.DECIMAL, precision, scale)
    return None


@cache
def _numeric(type_modifier: int) -> ValueType:
    """`numeric(p,s)` where Spark has it. The scale is the low 11 bits, signed."""
    if type_modifier < 4:
        return STRING
    precision = (type_modifier - 4) >> 16 & 0xFFFF
    scale = ((type_modifier - 4 & 0x7FF) ^ 1024) - 1024
    if not 1 <= precision <= _MAX_PRECISION or not 0 <= scale <= precision:
        return STRING
    return ValueType(ValueKind.DECIMAL, precision, scale)


def _element(array: ValueType) -> ValueType:
    if array.element is None:
        raise ValueError("an array type without its element type")
    return array.element
