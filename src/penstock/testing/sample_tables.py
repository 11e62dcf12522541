"""Tables to try a destination with: a simple one, composite and absent keys, every
type, and names that a careless destination trips over."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from penstock.schema import (
    STRING,
    ColumnSchema,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
    ValueKind,
    ValueType,
)

LONG = ValueType(ValueKind.LONG)
ID = ColumnSchema("id", 1, LONG, 20, nullable=False, key_position=0)

NOTES = TableSchema(
    TableId(16_384),
    TableName("public", "notes"),
    (ID, ColumnSchema("note", 2, STRING, 25), ColumnSchema("rank", 3, LONG, 20)),
)
WORDS = replace(NOTES, columns=(replace(ID, type=STRING), *NOTES.columns[1:]))
LINES = TableSchema(
    TableId(16_385),
    TableName("public", "lines"),
    (
        ColumnSchema("line", 1, STRING, 25, nullable=False, key_position=1),
        ColumnSchema("order", 2, LONG, 20, nullable=False, key_position=0),
        ColumnSchema("note", 3, STRING, 25),
    ),
)
KEYLESS = replace(
    NOTES,
    id=TableId(16_386),
    name=TableName("public", "log"),
    identity=ReplicaIdentity.FULL,
    columns=(replace(ID, key_position=None, nullable=True), *NOTES.columns[1:]),
)

DOUBLE = ValueType(ValueKind.DOUBLE)
SIZES = TableSchema(
    TableId(16_389),
    TableName("public", "sizes"),
    (
        ColumnSchema("size", 1, DOUBLE, 701),
        ColumnSchema("sizes", 2, ValueType(ValueKind.ARRAY, element=DOUBLE), 1022),
    ),
    ReplicaIdentity.FULL,
)


def note(id: int, note: str | None = None, rank: int | None = None) -> dict[str, Any]:  # noqa: A002
    return {"id": id, "note": note, "rank": rank}


def line(line: str, order: int, note: str | None = None) -> dict[str, Any]:
    return {"line": line, "order": order, "note": note}


def _typed() -> dict[str, tuple[ValueType, Any, Any]]:
    """For each column its type, a usual value and an extreme one."""
    kinds = {kind: ValueType(kind) for kind in ValueKind}
    first, last = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
    scalars: dict[str, tuple[ValueType, Any, Any]] = {
        "boolean": (kinds[ValueKind.BOOLEAN], True, False),
        "short": (kinds[ValueKind.SHORT], 7, -(2**15)),
        "integer": (kinds[ValueKind.INTEGER], 7, 2**31 - 1),
        "long": (kinds[ValueKind.LONG], 7, -(2**63)),
        "float": (kinds[ValueKind.FLOAT], 1.5, -math.inf),
        "double": (kinds[ValueKind.DOUBLE], 0.1, math.inf),
        "nan": (kinds[ValueKind.DOUBLE], -0.5, math.nan),
        "price": (ValueType(ValueKind.DECIMAL, 12, 2), Decimal("9.99"), Decimal("-9999999999.99")),
        "huge": (ValueType(ValueKind.DECIMAL, 38, 0), Decimal(1), Decimal(10**38 - 1)),
        "fine": (
            ValueType(ValueKind.DECIMAL, 38, 38),
            Decimal(f"0.{'1' * 38}"),
            Decimal(f"-0.{'9' * 38}"),
        ),
        "date": (kinds[ValueKind.DATE], date(2026, 2, 28), date(1, 1, 1)),
        "timestamp_ntz": (kinds[ValueKind.TIMESTAMP_NTZ], datetime(2026, 3, 29, 2, 30), last),  # noqa: DTZ001
        "timestamp": (
            kinds[ValueKind.TIMESTAMP],
            datetime(2026, 10, 25, 0, 30, 0, 1, tzinfo=UTC),
            first.replace(tzinfo=UTC),
        ),
        "binary": (kinds[ValueKind.BINARY], b"\x00\xff", b""),
        "string": (STRING, "text", "☃\x01\n'\"\\ \U0001f600"),
    }
    arrays: dict[str, tuple[ValueType, Any, Any]] = {
        f"{name}_array": (
            ValueType(ValueKind.ARRAY, element=kind),
            [usual, None, extreme],
            [],
        )
        for name, (kind, usual, extreme) in scalars.items()
    }
    nested = {
        name: (ValueType(ValueKind.ARRAY, element=kind), [usual, None, []], [extreme])
        for name, (kind, usual, extreme) in {
            f"nested_{name}": arrays[name] for name in ("long_array", "timestamp_array")
        }.items()
    }
    nested["nested_binary_array"] = (
        ValueType(ValueKind.ARRAY, element=arrays["binary_array"][0]),
        [[b"\x00"], None],
        [[]],
    )
    return scalars | arrays | nested


_TYPED = _typed()
TYPES = TableSchema(
    TableId(16_390),
    TableName("public", "types"),
    (ID, *(ColumnSchema(n, i, t[0], 0) for i, (n, t) in enumerate(_TYPED.items(), 2))),
)
TYPICAL = {name: usual for name, (_, usual, _) in _TYPED.items()}
EXTREME = {name: extreme for name, (_, _, extreme) in _TYPED.items()}

_ODD_NAMES = (
    "the key",
    "key",
    "row",
    "missing",
    *("op", "commit_lsn", "tx_ordinal", "commit_ts", "xid", "before", "after", "unchanged"),
    *("deleted", "new", "origin", "kind", "part", "moved", "first", "last", "gone", "change"),
    "c0",
    "k0",
    "a.b",
    "a`b",
    'a"b',
    "a,b;{c}(d)=e",
    "tab\tnew\nline",
    "ÄÖ☃",
    "select",
    "_metadata",
    "ENORMOUS",
    "%41",
    "🚰",
    ".path",
    "[0]",
)
ODD = TableSchema(
    TableId(16_391),
    TableName("Odd %/schema", "_táble `x` .."),
    tuple(
        ColumnSchema(name, n, LONG, 20, nullable=n > 1, key_position=0 if n == 1 else None)
        for n, name in enumerate(_ODD_NAMES, 1)
    ),
)
