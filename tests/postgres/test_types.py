from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.types import (
    NUMERIC_OID,
    TypeInfo,
    arrow_type,
    base_oid,
    override,
    resolve,
    spark_type,
    value_type,
)
from penstock.schema import STRING, ValueKind, ValueType

DDL = """
CREATE TYPE mood AS ENUM ('sad', 'it''s, ok');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN price AS numeric(12,2) CHECK (VALUE > 0);
CREATE DOMAIN low_price AS price CHECK (VALUE < 100);
CREATE DOMAIN moods AS mood[];
CREATE DOMAIN grid AS int[];
"""

EXPECTED = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "oid": "bigint",
    "real": "float",
    "double precision": "double",
    "numeric(12,2)": "decimal(12,2)",
    "numeric(38,38)": "decimal(38,38)",
    "numeric(5)": "decimal(5,0)",
    "numeric": "string",
    "numeric(39,2)": "string",
    "numeric(5,-2)": "string",
    "numeric(2,5)": "string",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamp(3)": "timestamp_ntz",
    "timestamptz": "timestamp",
    "time": "string",
    "timetz": "string",
    "interval": "string",
    "bytea": "binary",
    "uuid": "string",
    "json": "string",
    "jsonb": "string",
    "xml": "string",
    "text": "string",
    "varchar(10)": "string",
    "char(3)": "string",
    "name": "string",
    '"char"': "string",
    "mood": "string",
    "pair": "string",
    "price": "decimal(12,2)",
    "low_price": "decimal(12,2)",
    "information_schema.cardinal_number": "int",
    "int4range": "string",
    "int4multirange": "string",
    "inet": "string",
    "money": "string",
    "bit(3)": "string",
    "point": "string",
    "box": "string",
    "tsvector": "string",
    "int2vector": "string",
    "integer[]": "array<int>",
    "integer[][]": "array<int>",
    "numeric(12,2)[]": "array<decimal(12,2)>",
    "numeric[]": "array<string>",
    "timestamptz[]": "array<timestamp>",
    "bytea[]": "array<binary>",
    "text[]": "array<string>",
    "uuid[]": "array<string>",
    "box[]": "array<string>",
    "mood[]": "array<string>",
    "pair[]": "array<string>",
    "low_price[]": "array<decimal(12,2)>",
    "moods": "array<string>",
    "grid": "array<int>",
    "grid[]": "array<array<int>>",
}


class Catalog:
    """Looks types up in `pg_type`, and remembers which ones it was asked for."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.asked: list[int] = []

    def __call__(self, oid: int) -> TypeInfo | None:
        self.asked.append(oid)
        row = self.connection.execute(
            "SELECT oid, typname, typtype, typcategory, typbasetype, typtypmod, typelem, typdelim"
            " FROM pg_type WHERE oid = %s",
            (oid,),
        ).fetchone()
        return TypeInfo(*row) if row else None


def test_every_type_of_the_contract_has_its_spark_type(database: Any) -> None:
    with database.connect() as connection:
        connection.execute(DDL)
        columns = ", ".join(f"c{n} {name}" for n, name in enumerate(EXPECTED))
        connection.execute(f"CREATE TABLE everything ({columns})")
        attributes = connection.execute(
            "SELECT atttypid, atttypmod FROM pg_attribute"
            " WHERE attrelid = 'everything'::regclass AND attnum > 0 ORDER BY attnum"
        ).fetchall()
        catalog = Catalog(connection)
        resolved = [resolve(oid, modifier, catalog) for oid, modifier in attributes]

    assert dict(zip(EXPECTED, map(spark_type, resolved), strict=True)) == EXPECTED
    assert min(catalog.asked) >= 10_000, "built-in types need no catalog"
    delimiters = dict(zip(EXPECTED, [each.delimiter for each in resolved], strict=True))
    assert delimiters.pop("box[]") == ";"
    assert set(delimiters.values()) == {","}


@pytest.mark.parametrize("kind", ["b", "r", "m"])
def test_every_built_in_array_type_is_known(database: Any, kind: str) -> None:
    with database.connect() as connection:
        arrays = connection.execute(
            "SELECT a.oid, e.oid, e.typdelim FROM pg_type AS e JOIN pg_type AS a"
            " ON e.typarray = a.oid WHERE a.oid < 10000 AND e.typtype = %s",
            (kind,),
        ).fetchall()
    assert arrays
    for array_oid, element_oid, delimiter in arrays:
        array = value_type(array_oid, -1)
        assert (array.kind, array.delimiter) == (ValueKind.ARRAY, delimiter)
        assert array.element == value_type(element_oid, -1)


def test_a_domain_over_a_built_in_type_needs_only_its_own_description() -> None:
    price = TypeInfo(
        20_000, "price", typtype="d", category="N", base_oid=1700, base_modifier=786438
    )
    assert value_type(20_000, -1, price) == ValueType(ValueKind.DECIMAL, 12, 2)


def test_an_extension_type_such_as_citext_is_carried_as_text() -> None:
    known = {
        20_000: TypeInfo(20_000, "citext", category="S"),
        20_001: TypeInfo(20_001, "_citext", category="A", element_oid=20_000),
    }
    assert resolve(20_000, -1, known.get) == STRING
    assert resolve(20_001, -1, known.get) == ValueType(ValueKind.ARRAY, element=STRING)


def test_an_unknown_type_is_carried_as_text() -> None:
    assert value_type(20_001, -1) == STRING


def test_a_domain_is_traced_to_its_base() -> None:
    known = {
        20_000: TypeInfo(20_000, "price", typtype="d", base_oid=NUMERIC_OID, base_modifier=786438),
        20_001: TypeInfo(20_001, "low_price", typtype="d", base_oid=20_000),
    }
    assert base_oid(20_001, known.get) == NUMERIC_OID
    assert base_oid(23, known.get) == 23


def test_arrow_types_keep_microseconds_and_zones() -> None:
    assert arrow_type(ValueType(ValueKind.TIMESTAMP)) == pa.timestamp("us", tz="UTC")
    assert arrow_type(ValueType(ValueKind.TIMESTAMP_NTZ)) == pa.timestamp("us")
    decimals = ValueType(ValueKind.ARRAY, element=ValueType(ValueKind.DECIMAL, 38, 3))
    assert arrow_type(decimals) == pa.list_(pa.decimal128(38, 3))


@pytest.mark.parametrize("kind", [kind for kind in ValueKind if kind is not ValueKind.ARRAY])
def test_every_kind_has_an_arrow_and_a_spark_type(kind: ValueKind) -> None:
    array = ValueType(ValueKind.ARRAY, element=ValueType(kind, 10, 2))
    assert isinstance(arrow_type(array), pa.ListType)
    assert spark_type(array).startswith("array<")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("string", STRING),
        ("double", ValueType(ValueKind.DOUBLE)),
        ("decimal(20,4)", ValueType(ValueKind.DECIMAL, 20, 4)),
        ("DECIMAL( 38 , 0 )", ValueType(ValueKind.DECIMAL, 38, 0)),
    ],
)
def test_a_column_can_be_carried_as(text: str, expected: ValueType) -> None:
    assert override(text, NUMERIC_OID) == expected


@pytest.mark.parametrize(
    "text", ["", "int", "decimal", "decimal(39,2)", "decimal(4,5)", "decimal(0,0)"]
)
def test_other_overrides_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(PenstockError, match="column_types") as caught:
        override(text)
    assert caught.value.kind is ErrorKind.CONFIG
    assert "decimal(p,s)" in (caught.value.hint or "")


def test_a_key_is_never_carried_as_a_double() -> None:
    assert override("decimal(20,4)", NUMERIC_OID, in_key=True) == ValueType(
        ValueKind.DECIMAL, 20, 4
    )
    assert override("string", NUMERIC_OID, in_key=True) == STRING
    with pytest.raises(PenstockError, match="part of the key") as caught:
        override("double", NUMERIC_OID, in_key=True)
    assert caught.value.kind is ErrorKind.CONFIG
    assert caught.value.hint == "carry it as decimal(p,s) or string"


def test_only_numeric_columns_become_decimals() -> None:
    assert override("string", 25) == STRING
    with pytest.raises(PenstockError, match="numeric columns only"):
        override("decimal(20,4)", 25)
