r"""Arrays: elements with quotes, backslashes, delimiters and NULLs among them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.postgres.values import decode
from penstock.schema import STRING, ValueKind, ValueType
from penstock.testing import EmbeddedPostgres
from tests.postgres.text_columns import UNCHANGED, decoded, pinned, text_column, texts

INTEGERS = ValueType(ValueKind.ARRAY, element=ValueType(ValueKind.INTEGER))
STRINGS = ValueType(ValueKind.ARRAY, element=STRING)

AWKWARD = st.sampled_from(
    ["", "NULL", "null", " ", "\t", "{", "}", "{}", ",", ";", '"', "\\", '\\"', "a b", "é", "日本"]
)
TEXT = st.lists(
    AWKWARD | st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5), max_size=4
).map("".join)


@pytest.fixture(scope="module")
def postgres(server: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with server.connect() as connection:
        yield pinned(connection)


def print_arrays(
    postgres: psycopg.Connection[Any], element: str, arrays: list[list[Any] | None]
) -> list[bytes | None]:
    """How Postgres prints these arrays."""
    rows = " UNION ALL ".join(f"SELECT {n}, %s::{element}[]" for n in range(len(arrays)))
    return texts(postgres, f"SELECT v FROM ({rows}) AS t(n, v) ORDER BY n", arrays)


def arrays_of(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    array = st.none() | st.lists(st.none() | elements, max_size=6)
    return st.lists(array, min_size=1, max_size=20)


@given(arrays_of(TEXT))
def test_text_arrays(postgres: psycopg.Connection[Any], arrays: list[Any]) -> None:
    result = decoded(print_arrays(postgres, "text", arrays), STRINGS)
    assert result.array.to_pylist() == arrays
    assert result.bad.size == 0


@pytest.mark.parametrize(
    ("sql_type", "element", "elements"),
    [
        ("bool", ValueType(ValueKind.BOOLEAN), st.booleans()),
        ("int2", ValueType(ValueKind.SHORT), st.integers(-(2**15), 2**15 - 1)),
        ("int8", ValueType(ValueKind.LONG), st.integers(-(2**63), 2**63 - 1)),
        ("float8", ValueType(ValueKind.DOUBLE), st.floats(allow_nan=False)),
        (
            "numeric(38,6)",
            ValueType(ValueKind.DECIMAL, 38, 6),
            st.decimals(-(10**20), 10**20, places=6),
        ),
        ("date", ValueType(ValueKind.DATE), st.dates()),
        ("timestamp", ValueType(ValueKind.TIMESTAMP_NTZ), st.datetimes()),
        (
            "timestamptz",
            ValueType(ValueKind.TIMESTAMP),
            st.datetimes(timezones=st.just(UTC)),
        ),
        ("bytea", ValueType(ValueKind.BINARY), st.binary(max_size=8)),
        ("uuid", STRING, st.uuids().map(str)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_typed_arrays(
    postgres: psycopg.Connection[Any],
    sql_type: str,
    element: ValueType,
    elements: st.SearchStrategy[Any],
) -> None:
    @given(arrays_of(elements))
    def check(arrays: list[Any]) -> None:
        printed = print_arrays(postgres, sql_type, arrays)
        result = decoded(printed, ValueType(ValueKind.ARRAY, element=element))
        assert result.array.to_pylist() == arrays

    check()


def test_null_unchanged_and_empty_arrays() -> None:
    result = decoded([None, b"{}", UNCHANGED, b"{NULL}"], INTEGERS)
    assert result.array.to_pylist() == [None, [], None, [None]]
    assert result.bad.size == 0
    assert decoded([], INTEGERS).array.to_pylist() == []


def test_bounds_are_dropped(postgres: psycopg.Connection[Any]) -> None:
    printed = texts(postgres, "VALUES ('[2:3]={7,8}'::int[]), ('[-1:-1]={9}'), ('{1}')")
    assert printed[0] == b"[2:3]={7,8}"
    assert decoded(printed, INTEGERS).array.to_pylist() == [[7, 8], [9], [1]]


def test_more_dimensions_are_bad(postgres: psycopg.Connection[Any]) -> None:
    printed = texts(
        postgres,
        "VALUES ('{{1,2},{3,4}}'::int[]), ('{5}'), ('[0:0][0:0]={{6}}'), ('{{{7}}}'), (NULL)",
    )
    result = decoded(printed, INTEGERS)
    assert result.array.to_pylist() == [None, [5], None, None, None]
    assert result.bad.tolist() == [0, 2, 3]


def test_a_bad_element_makes_its_array_bad_and_no_other(postgres: psycopg.Connection[Any]) -> None:
    printed = texts(
        postgres,
        "VALUES ('{2024-01-01}'::date[]), ('{2024-01-01,infinity,-infinity}'), ('{}'), (NULL),"
        " ('{{2024-01-01},{2024-01-02}}'), ('{0044-03-15 BC}'), ('{NULL,2024-01-02}')",
    )
    result = decoded(printed, ValueType(ValueKind.ARRAY, element=ValueType(ValueKind.DATE)))
    assert [array and len(array) for array in result.array.to_pylist()] == [
        *[1, None, [], None, None, None, 2]
    ]
    assert result.bad.tolist() == [1, 4, 5]
    assert len(result.array.values) == 3, "a NULL list has no elements, or Parquet refuses it"


def test_the_delimiter_is_the_element_types_own(postgres: psycopg.Connection[Any]) -> None:
    boxes = texts(postgres, "SELECT ARRAY['(1,2),(3,4)'::box, NULL, '(5,6),(7,8)'::box]")
    result = decoded(boxes, ValueType(ValueKind.ARRAY, element=STRING, delimiter=";"))
    assert result.array.to_pylist() == [["(3,4),(1,2)", None, "(7,8),(5,6)"]]


def test_arrays_of_a_domain_over_arrays(postgres: psycopg.Connection[Any]) -> None:
    postgres.execute("CREATE DOMAIN pg_temp.words AS text[]")
    words = [["a", '"quoted"', "back\\slash"], None, []]
    query = f"SELECT ARRAY[{', '.join(['%s::text[]::pg_temp.words'] * 3)}]"
    printed = texts(postgres, query, words)
    result = decoded(printed, ValueType(ValueKind.ARRAY, element=STRINGS))
    assert result.array.to_pylist() == [words]


def test_composite_elements_are_kept_as_text(postgres: psycopg.Connection[Any]) -> None:
    printed = texts(postgres, "SELECT ARRAY[ROW(1, 'a \"b\" \\ c')]")
    assert decoded(printed, STRINGS).array.to_pylist() == [['(1,"a ""b"" \\\\ c")']]


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"}", b"{1", b"1}", b"{1,}", b"{,1}", b"{1,,2}", b'{"1}', b'{"1"2}', b"{1}2",
     b"[1]", b"[1:1]", b"[1:1]=", b"[1:1]={", b"={1}", b'{"\\', b'{"\\"}', b"{{}", b"{}}",
     b"{1},{2}"],
)  # fmt: skip
def test_text_that_is_no_array_is_bad(text: bytes) -> None:
    result = decoded([b"{1}", text, b"{2}"], INTEGERS)
    assert result.array.to_pylist() == [[1], None, [2]]
    assert result.bad.tolist() == [1]


def test_the_source_buffer_is_left_alone() -> None:
    column = text_column([rb'{"a\\b"}', b"{x}"])
    writable = column.buffer.copy()
    result = decode(type(column)(writable, column.starts, column.lengths), STRINGS)
    assert result.array.to_pylist() == [["a\\b"], ["x"]]
    assert np.array_equal(writable, column.buffer)


def test_deep_values_keep_their_types() -> None:
    result = decoded(
        [b"{1.50,NULL}"], ValueType(ValueKind.ARRAY, element=ValueType(ValueKind.DECIMAL, 5, 2))
    )
    assert result.array.to_pylist() == [[Decimal("1.50"), None]]
    stamps = ValueType(ValueKind.ARRAY, element=ValueType(ValueKind.TIMESTAMP))
    result = decoded([b'{"2024-01-01 00:00:00+00"}'], stamps)
    assert result.array.to_pylist() == [[datetime(2024, 1, 1, tzinfo=UTC)]]


@given(st.lists(st.text('{},"\\N1[]:= ', max_size=12), min_size=1, max_size=10))
def test_no_text_confuses_the_decoder(values: list[str]) -> None:
    decoded([value.encode() for value in values], INTEGERS)
    decoded([value.encode() for value in values], STRINGS)
