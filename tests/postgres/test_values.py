"""Scalars: what Postgres prints, decoded, is what Postgres meant."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.numeric import Float4

from penstock.errors import PenstockError
from penstock.postgres import values
from penstock.postgres.types import arrow_type
from penstock.postgres.values import TextColumn, decode, warm_up
from penstock.schema import STRING, ValueKind, ValueType
from penstock.testing import EmbeddedPostgres
from tests.postgres.text_columns import UNCHANGED, decoded, pinned, text_column, texts

BOOLEAN = ValueType(ValueKind.BOOLEAN)
INTEGERS = {
    "int2": ValueType(ValueKind.SHORT),
    "int4": ValueType(ValueKind.INTEGER),
    "int8": ValueType(ValueKind.LONG),
}
DOUBLE = ValueType(ValueKind.DOUBLE)
FLOAT = ValueType(ValueKind.FLOAT)
DATE = ValueType(ValueKind.DATE)
TIMESTAMP = ValueType(ValueKind.TIMESTAMP)
TIMESTAMP_NTZ = ValueType(ValueKind.TIMESTAMP_NTZ)
BINARY = ValueType(ValueKind.BINARY)
SCALARS = [
    ValueType(kind, 12, 2) if kind is ValueKind.DECIMAL else ValueType(kind)
    for kind in ValueKind
    if kind is not ValueKind.ARRAY
]
FIRST_MICROSECOND = -62_135_596_800_000_000
LAST_MICROSECOND = 253_402_300_799_999_999

# Postgres's own ranges: 4713 BC to 5874897 (dates) and to 294276 (timestamps).
DAYS = st.integers(-2_440_588, 2_145_031_948) | st.integers(-800_000, 3_000_000)
MICROSECONDS = (
    st.integers(-210_866_000_000_000_000, 9_223_000_000_000_000_000)
    | st.integers(FIRST_MICROSECOND - 10**12, FIRST_MICROSECOND + 10**12)
    | st.integers(LAST_MICROSECOND - 10**12, LAST_MICROSECOND + 10**12)
    | st.integers(0, 2_000_000_000).map(lambda seconds: seconds * 1_000_000)
)


@pytest.fixture(scope="module")
def postgres(server: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with server.connect() as connection:
        yield pinned(connection)


def print_values(
    postgres: psycopg.Connection[Any], sql_type: str, values: list[Any], placeholder: str = "%s"
) -> list[bytes | None]:
    """How Postgres prints these values of a type."""
    rows = " UNION ALL ".join(f"SELECT {n}, {placeholder}::{sql_type}" for n in range(len(values)))
    return texts(postgres, f"SELECT v FROM ({rows}) AS t(n, v) ORDER BY n", values)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, min_size=1, max_size=40)


@pytest.mark.parametrize("each", SCALARS, ids=lambda value: value.kind.value)
def test_null_and_unchanged_values_are_null_and_not_bad(each: ValueType) -> None:
    result = decoded([None, UNCHANGED] * 9, each)
    assert result.array.type == arrow_type(each)
    assert result.array.null_count == 18
    assert result.bad.size == 0


@pytest.mark.parametrize("each", SCALARS, ids=lambda value: value.kind.value)
def test_an_empty_column_decodes_to_an_empty_array(each: ValueType) -> None:
    result = decoded([], each)
    assert result.array.to_pylist() == []
    assert result.array.type == arrow_type(each)


@pytest.mark.parametrize(
    "each", [each for each in SCALARS if each != STRING], ids=lambda value: value.kind.value
)
def test_text_that_is_no_value_is_bad_wherever_it_stands(each: ValueType) -> None:
    nonsense = [b"", b"x", b"-", b"--1", b"1.2.3", b"\xff", b"infinity-ish-nonsense-text", b"\\x0"]
    result = decoded([None, *nonsense, UNCHANGED], each)
    assert result.array.null_count == len(nonsense) + 2
    assert result.bad.tolist() == list(range(1, len(nonsense) + 1))


def test_a_column_without_nulls_has_no_bitmap() -> None:
    array = decoded([b"1", b"2"], INTEGERS["int4"]).array
    assert array.buffers()[0] is None


def test_strided_and_narrow_slices_decode_like_others() -> None:
    column = text_column([b"1", b"2", b"3", b"4"])
    sparse = TextColumn(column.buffer, column.starts[::2], column.lengths.astype(np.int64)[::2])
    assert decode(sparse, INTEGERS["int8"]).array.to_pylist() == [1, 3]


def test_after_warming_up_nothing_is_left_to_compile() -> None:
    warm_up()
    column = text_column([b"1", None])
    writable = TextColumn(column.buffer.copy(), column.starts.copy(), column.lengths.copy())
    for each in [*SCALARS, ValueType(ValueKind.ARRAY, element=STRING)]:
        decode(column, each)
        decode(writable, each)
    versions = {
        name: len(kernel.signatures)
        for name, kernel in vars(values).items()
        if hasattr(kernel, "signatures")
    }
    assert versions.pop("parse_integers") == 3
    assert set(versions.values()) == {1}


@given(st.lists(st.sampled_from([True, False, None]), max_size=70))
def test_booleans(values: list[bool | None]) -> None:
    printed = [None if value is None else b"t" if value else b"f" for value in values]
    assert decoded(printed, BOOLEAN).array.to_pylist() == values


@pytest.mark.parametrize(("sql_type", "bits"), [("int2", 16), ("int4", 32), ("int8", 64)])
def test_integers(postgres: psycopg.Connection[Any], sql_type: str, bits: int) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    @given(optional(st.integers(low, high) | st.sampled_from([low, high, 0, -1])))
    def check(values: list[int | None]) -> None:
        result = decoded(print_values(postgres, sql_type, values), INTEGERS[sql_type])
        assert result.array.to_pylist() == values

    check()


@pytest.mark.parametrize(("sql_type", "bits"), [("int2", 16), ("int4", 32), ("int8", 64)])
def test_integers_out_of_range_are_bad(sql_type: str, bits: int) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    values = [low - 1, low, high, high + 1, 10**19, 2**64, 2**64 + 1, -(10**30)]
    result = decoded([str(value).encode() for value in values], INTEGERS[sql_type])
    assert result.array.to_pylist() == [None, low, high, None, None, None, None, None]
    assert result.bad.tolist() == [0, 3, 4, 5, 6, 7]


def test_oids_are_longs(postgres: psycopg.Connection[Any]) -> None:
    printed = print_values(postgres, "oid", [0, 2**32 - 1])
    assert decoded(printed, INTEGERS["int8"]).array.to_pylist() == [0, 2**32 - 1]


@pytest.mark.parametrize(("precision", "scale"), [(38, 0), (38, 38), (38, 10), (12, 2), (1, 0)])
def test_decimals(postgres: psycopg.Connection[Any], precision: int, scale: int) -> None:
    largest = 10**precision - 1
    unscaled = st.integers(-largest, largest) | st.sampled_from([largest, -largest, 0, 1, -1])
    values = unscaled.map(lambda number: Decimal(f"{number}e-{scale}"))

    @given(optional(values))
    def check(values: list[Decimal | None]) -> None:
        printed = print_values(postgres, f"numeric({precision},{scale})", values)
        result = decoded(printed, ValueType(ValueKind.DECIMAL, precision, scale))
        assert result.array.to_pylist() == values
        assert result.bad.size == 0

    check()


@given(data=st.data(), precision=st.integers(1, 38))
def test_numerics_fit_a_chosen_decimal_or_are_bad(
    postgres: psycopg.Connection[Any], data: st.DataObject, precision: int
) -> None:
    scale = data.draw(st.integers(0, precision))
    values = data.draw(
        optional(
            st.decimals(allow_nan=False).filter(
                lambda value: not value.is_finite() or abs(value.adjusted()) < 1000
            )
            | st.decimals(-1000, 1000, places=3)
            | st.just(Decimal("NaN"))
        )
    )
    result = decoded(
        print_values(postgres, "numeric", values), ValueType(ValueKind.DECIMAL, precision, scale)
    )

    def fits(value: Decimal | None) -> bool:
        if value is None or not value.is_finite():
            return False
        fraction = max(0, -int(value.normalize().as_tuple().exponent))
        return abs(value) < 10 ** (precision - scale) and fraction <= scale

    expected = [value if fits(value) else None for value in values]
    assert result.array.to_pylist() == expected
    bad = [n for n, value in enumerate(values) if value is not None and not fits(value)]
    assert result.bad.tolist() == bad


def bits_of_doubles(values: list[float | None]) -> list[bytes | None]:
    return [None if value is None else struct.pack(">d", value) for value in values]


HARD_DOUBLES = [
    5e-324, -5e-324, 2.2250738585072014e-308, 2.225073858507201e-308, 1.7976931348623157e308,
    1e308, -0.0, 0.0, 1e22, 1e23, 9007199254740993.0, 0.1, 1 / 3, 123456789012345680.0,
    float("inf"), float("-inf"), 8.41e21, 9.5367431640625e-07, 4.450147717014403e-308,
]  # fmt: skip


@given(optional(st.floats(allow_nan=False) | st.sampled_from(HARD_DOUBLES)))
def test_doubles_come_back_bit_by_bit(
    postgres: psycopg.Connection[Any], values: list[float | None]
) -> None:
    result = decoded(print_values(postgres, "float8", values, "%b"), DOUBLE)
    assert bits_of_doubles(result.array.to_pylist()) == bits_of_doubles(values)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=200, max_size=200))
def test_doubles_round_like_python(bits: list[int]) -> None:
    values = np.array(bits, np.uint64).view(np.float64)
    values = values[np.isfinite(values)]
    printed = [repr(value).encode() for value in values.tolist()]
    array = decoded(printed, DOUBLE).array
    assert np.asarray(array).view(np.uint64).tolist() == values.view(np.uint64).tolist()


@given(
    st.lists(
        st.tuples(
            st.text("0123456789", min_size=1, max_size=40), st.text("0123456789", max_size=40)
        ),
        min_size=1,
    )
)
def test_long_decimals_round_to_the_nearest_double(parts: list[tuple[str, str]]) -> None:
    numbers = [f"{whole}.{fraction}" if fraction else whole for whole, fraction in parts]
    array = decoded([number.encode() for number in numbers], DOUBLE).array
    assert array.to_pylist() == [float(number) for number in numbers]


def test_zeros_do_not_count_as_digits() -> None:
    numbers = ["0." + "0" * 30, "0" * 30, "0." + "0" * 25 + "123", "-0." + "0" * 17 + "5"]
    array = decoded([number.encode() for number in numbers], DOUBLE).array
    assert array.to_pylist() == [float(number) for number in numbers]


def test_a_numeric_too_large_for_a_double_is_bad() -> None:
    result = decoded([b"1" + b"0" * 400, b"-1" + b"0" * 308, b"NaN", b"2e308"], DOUBLE)
    assert result.bad.tolist() == [0, 3]
    assert result.array[1].as_py() == -1e308
    assert np.isnan(result.array[2].as_py())


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_floats_come_back_bit_by_bit(postgres: psycopg.Connection[Any], bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    if values.size == 0:
        return
    printed = print_values(postgres, "float4", [Float4(value) for value in values.tolist()], "%b")
    array = decoded(printed, FLOAT).array
    assert np.asarray(array).view(np.uint32).tolist() == values.view(np.uint32).tolist()


@pytest.mark.parametrize("each", [FLOAT, DOUBLE], ids=["float", "double"])
def test_nan_and_infinities_are_kept(each: ValueType) -> None:
    result = decoded([b"NaN", b"Infinity", b"-Infinity", b"-NaN", b"inf"], each)
    assert repr(result.array.to_pylist()) == "[nan, inf, -inf, None, None]"
    assert result.bad.tolist() == [3, 4]


def test_floats_are_rounded_once(postgres: psycopg.Connection[Any]) -> None:
    # Halfway between two floats once rounded to a double, but not before.
    tricky = ["1.00000017881393421514957253748434595763683319091796875001", "16777217", "33554435"]
    (expected,) = postgres.execute("SELECT %s::text[]::float4[]", (tricky,)).fetchone() or ()
    result = decoded([text.encode() for text in tricky], FLOAT)
    assert np.asarray(result.array).tolist() == np.array(expected, np.float32).tolist()


@given(st.lists(DAYS, min_size=1, max_size=40))
def test_dates(postgres: psycopg.Connection[Any], days: list[int]) -> None:
    printed = texts(
        postgres,
        "SELECT '1970-01-01'::date + day"
        " FROM unnest(%s::int[]) WITH ORDINALITY AS t(day, n) ORDER BY n",
        (days,),
    )
    result = decoded(printed, DATE)
    first, last = date.min.toordinal() - 719_163, date.max.toordinal() - 719_163
    assert result.array.cast(pa.int32()).to_pylist() == [
        day if first <= day <= last else None for day in days
    ]


@given(st.lists(MICROSECONDS, min_size=1, max_size=40))
def test_timestamps(postgres: psycopg.Connection[Any], microseconds: list[int]) -> None:
    check_timestamps(postgres, microseconds, "timestamp", TIMESTAMP_NTZ)


@pytest.mark.parametrize(
    "zone", ["UTC", "Asia/Kolkata", "America/St_Johns", "Africa/Monrovia", "+14", "Asia/Manila"]
)
def test_timestamps_with_time_zone(postgres: psycopg.Connection[Any], zone: str) -> None:
    postgres.execute("SELECT set_config('TimeZone', %s, false)", (zone,))
    try:
        given(st.lists(MICROSECONDS, min_size=1, max_size=40))(
            lambda values: check_timestamps(postgres, values, "timestamptz", TIMESTAMP)
        )()
    finally:
        postgres.execute("SET TimeZone = 'UTC'")


def check_timestamps(
    postgres: psycopg.Connection[Any], values: list[int], sql_type: str, decoded_type: ValueType
) -> None:
    """Make timestamps near these microseconds, and compare with what Postgres says they are."""
    query = (
        "SELECT v, extract(epoch FROM v) * 1000000 AS exact FROM ("
        f" SELECT n, '1970-01-01 00:00:00+00'::{sql_type}"
        " + (m / 86400000000) * interval '1 day' + (m %% 86400000000) * interval '1 us' AS v"
        " FROM unnest(%s::bigint[]) WITH ORDINALITY AS t(m, n)) AS made ORDER BY n"
    )
    printed = texts(postgres, query, (values,))
    exact = [
        row[0] for row in postgres.execute(f"SELECT made.exact FROM ({query}) AS made", (values,))
    ]
    expected = [
        value if FIRST_MICROSECOND <= value <= LAST_MICROSECOND else None for value in exact
    ]
    result = decoded(printed, decoded_type)
    assert result.array.cast(pa.int64()).to_pylist() == expected
    assert result.bad.tolist() == [n for n, value in enumerate(expected) if value is None]


def test_the_edges_of_time() -> None:
    texts = [
        b"0001-01-01 00:00:00.000001",
        b"9999-12-31 23:59:59.999999",
        b"2016-12-31 23:59:60",
        b"1999-12-31 24:00:00",
        b"infinity",
        b"-infinity",
        b"0001-12-31 23:59:59.999999 BC",
        b"10000-01-01 00:00:00",
        b"2023-02-29 00:00:00",
        b"2024-13-01 00:00:00",
        b"2024-01-01 00:00:00+00",
        b"2024-01-01T00:00:00",
        b"2024-01-01 00:00:00.",
    ]
    result = decoded(texts, TIMESTAMP_NTZ)
    assert result.array.to_pylist()[:4] == [
        datetime(1, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
        datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
        datetime(2017, 1, 1),  # noqa: DTZ001
        datetime(2000, 1, 1),  # noqa: DTZ001
    ]
    assert result.bad.tolist() == list(range(4, len(texts)))


def test_an_offset_can_bring_a_local_time_into_the_representable_years() -> None:
    texts = [
        b"10000-01-01 00:30:00+01",
        b"0001-12-31 23:30:00-01 BC",
        b"0001-01-01 00:30:00+01",
        b"2024-03-01 00:00:00+05:30:15",
        b"2024-03-01 00:00:00",
        b"2024-03-01 00:00:00+5",
    ]
    result = decoded(texts, TIMESTAMP)
    assert result.array.to_pylist()[0] == datetime(9999, 12, 31, 23, 30, tzinfo=UTC)
    assert result.array.to_pylist()[1] == datetime(1, 1, 1, 0, 30, tzinfo=UTC)
    assert result.array.to_pylist()[3] == datetime(2024, 2, 29, 18, 29, 45, tzinfo=UTC)
    assert result.bad.tolist() == [2, 4, 5]


def test_every_day_of_four_centuries() -> None:
    days = [date.fromordinal(n) for n in range(693_000, 693_000 + 146_097 + 366)]
    array = decoded([day.isoformat().encode() for day in days], DATE).array
    assert array.to_pylist() == days


@pytest.mark.parametrize(
    "text",
    [b"2023-02-29", b"1900-02-29", b"2024-04-31", b"2024-06-31", b"2024-09-31", b"2024-11-31"],
)
def test_days_that_do_not_exist_are_bad(text: bytes) -> None:
    assert decoded([text], DATE).bad.tolist() == [0]


@given(optional(st.binary(max_size=40)))
def test_bytes(postgres: psycopg.Connection[Any], values: list[bytes | None]) -> None:
    result = decoded(print_values(postgres, "bytea", values, "%b"), BINARY)
    assert result.array.to_pylist() == values


def test_bytes_after_bad_ones_are_right() -> None:
    result = decoded([b"\\xzz00", b"\\x01", b"\\x0", b"", b"01", b"\\xABcd"], BINARY)
    assert result.array.to_pylist() == [None, b"\x01", None, None, None, b"\xab\xcd"]
    assert result.bad.tolist() == [0, 2, 3, 4]


@given(optional(st.text(st.characters(exclude_characters="\0", codec="utf-8"))))
def test_strings_are_kept_exactly(
    postgres: psycopg.Connection[Any], values: list[str | None]
) -> None:
    printed = print_values(postgres, "text", values)
    assert decoded(printed, STRING).array.to_pylist() == values


def test_a_column_beyond_two_gibibytes_is_refused() -> None:
    column = TextColumn(np.zeros(1, np.uint8), np.zeros(3, np.int64), np.full(3, 2**30, np.int32))
    with pytest.raises(PenstockError, match="decoded at once"):
        decode(column, STRING)
