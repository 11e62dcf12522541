"""Text columns to typed Arrow columns: the one value decoder, for copy and stream.

A column arrives as slices of the buffer that Postgres filled, in Postgres's text
form under the session settings that `postgres.connection` pins. A kernel per
kind of value goes over the slices once and fills Arrow's buffers directly, so no
Python runs per value, and a value that came by copy equals the same value that
came by stream.

Text that the type cannot hold (`infinity` in a date, NaN in a decimal, an array
of two dimensions, bytes that are no UTF-8) becomes NULL and is reported as bad; what
happens then is the caller's decision. So is the size of a column: Arrow's strings and
lists have 32-bit offsets, so one `TextColumn` may not hold more than 2 GiB of text.
Callers work through buffers of some megabytes, and a single value of Postgres
has at most 1 GiB, so nothing ever needs splitting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.array_kernels import count_elements, split_elements, unescape
from penstock.postgres.bytes_kernels import gather, measure, parse_hex
from penstock.postgres.number_kernels import (
    POWERS_OF_TEN,
    parse_booleans,
    parse_decimals,
    parse_doubles,
    parse_integers,
)
from penstock.postgres.time_kernels import parse_dates, parse_timestamps
from penstock.postgres.types import arrow_type
from penstock.schema import STRING, ValueKind, ValueType

_Array = np.ndarray[Any, np.dtype[Any]]
_NOTHING_BAD = np.empty(0, np.int64)
_MAX_BYTES = 2**31 - 1
_NOT_ASCII = 0x80


@dataclass(frozen=True)
class TextColumn:
    """n values as slices of one byte buffer: value i is buffer[starts[i]:starts[i]+lengths[i]].

    A length of -1 is NULL, -2 an unchanged TOAST value, which decodes as NULL.
    """

    buffer: _Array  # uint8
    starts: _Array  # int64[n]
    lengths: _Array  # int32[n]


@dataclass(frozen=True)
class Decoded:
    """`array` has `arrow_type(type)`; `bad` has the places of values it could not hold."""

    array: pa.Array
    bad: _Array  # int64, ascending; usually empty


def decode(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    """The values of `column` as an Arrow array."""
    column = TextColumn(
        _read_only(column.buffer, np.uint8),
        _read_only(column.starts, np.int64),
        _read_only(column.lengths, np.int32),
    )
    return _DECODERS[type.kind](column, type)


def warm_up() -> None:
    """Compile every kernel, or load it from the cache, before the first value waits for it."""
    text = np.frombuffer(b"0", np.uint8)
    column = TextColumn(text, np.zeros(1, np.int64), np.ones(1, np.int32))
    for kind in ValueKind:
        decode(column, ValueType(kind, 1, 0, STRING))
    array = np.frombuffer(rb'{"\\"}', np.uint8)
    array_column = TextColumn(array, np.zeros(1, np.int64), np.full(1, array.size, np.int32))
    decode(array_column, ValueType(ValueKind.ARRAY, element=STRING))


def _read_only(array: _Array, dtype: type[np.generic]) -> _Array:
    """The array in the one form that kernels are compiled for."""
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def _finish(
    column: TextColumn,
    type: ValueType,  # noqa: A002
    valid: int,
    validity: _Array,
    *buffers: _Array,
    children: list[pa.Array] | None = None,
) -> Decoded:
    """The Arrow array over what a kernel has filled."""
    count = column.starts.size
    array = pa.Array.from_buffers(
        arrow_type(type),
        count,
        [
            pa.py_buffer(validity) if valid < count else None,
            *(pa.py_buffer(buffer) for buffer in buffers),
        ],
        count - valid,
        children=children,
    )
    if valid == count:
        return Decoded(array, _NOTHING_BAD)
    present = column.lengths >= 0
    if np.count_nonzero(present) == valid:
        return Decoded(array, _NOTHING_BAD)
    decoded = np.unpackbits(validity, count=count, bitorder="little").view(np.bool_)
    return Decoded(array, np.flatnonzero(present & ~decoded))


def _bitmap(column: TextColumn) -> _Array:
    return np.zeros((column.starts.size + 7) // 8, np.uint8)


def _booleans(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    values, validity = _bitmap(column), _bitmap(column)
    valid = parse_booleans(column.buffer, column.starts, column.lengths, values, validity)
    return _finish(column, type, valid, validity, values)


def _integers(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    dtype = arrow_type(type).to_pandas_dtype()
    values, validity = np.zeros(column.starts.size, dtype), _bitmap(column)
    largest = np.uint64(np.iinfo(dtype).max)
    valid = parse_integers(column.buffer, column.starts, column.lengths, largest, values, validity)
    return _finish(column, type, valid, validity, values)


def _decimals(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    values, validity = np.zeros(2 * column.starts.size, np.uint64), _bitmap(column)
    limit_high, limit_low = divmod(10 ** (type.precision or 0), 2**64)
    valid = parse_decimals(
        column.buffer,
        column.starts,
        column.lengths,
        type.scale or 0,
        np.uint64(limit_high),
        np.uint64(limit_low),
        values,
        validity,
    )
    return _finish(column, type, valid, validity, values)


def _doubles(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    values, validity = np.zeros(column.starts.size, np.float64), _bitmap(column)
    hard = np.empty(column.starts.size, np.int64)
    valid, hard_count = parse_doubles(
        column.buffer,
        column.starts,
        column.lengths,
        POWERS_OF_TEN,
        values.view(np.uint64),
        validity,
        hard,
    )
    hard = hard[:hard_count]
    if type.kind is ValueKind.FLOAT:
        hard = np.union1d(hard, _doubtful_floats(values))
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
    if hard.size:
        values[hard] = _round_hard(column, type, hard)
        overflown = hard[np.isinf(values[hard])]
        np.bitwise_and.at(validity, overflown >> 3, ~(1 << (overflown & 7)).astype(np.uint8))
        valid -= overflown.size
    return _finish(column, type, valid, validity, values)


def _doubtful_floats(doubles: _Array) -> _Array:
    """Where rounding text to a double, and that to a float, may differ from rounding once.

    Namely where the double lies exactly between two floats, though the text may
    not, and where the float is subnormal or too large.
    """
    tail = doubles.view(np.uint64) & np.uint64(0x1FFFFFFF)
    size = np.abs(doubles)
    limits = np.finfo(np.float32)
    subnormal = (size < limits.smallest_normal) & (size > 0)
    large = (size > limits.max) & np.isfinite(size)
    return np.flatnonzero((tail == 0x10000000) | subnormal | large)


def _round_hard(column: TextColumn, type: ValueType, places: _Array) -> _Array:  # noqa: A002
    """The numbers in these places, rounded by Arrow: slower, but right in every case."""
    chosen = TextColumn(column.buffer, column.starts[places], column.lengths[places])
    return np.asarray(decode(chosen, STRING).array.cast(arrow_type(type)))


def _dates(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    values, validity = np.zeros(column.starts.size, np.int32), _bitmap(column)
    valid = parse_dates(column.buffer, column.starts, column.lengths, values, validity)
    return _finish(column, type, valid, validity, values)


def _timestamps(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    values, validity = np.zeros(column.starts.size, np.int64), _bitmap(column)
    zoned = type.kind is ValueKind.TIMESTAMP
    valid = parse_timestamps(column.buffer, column.starts, column.lengths, zoned, values, validity)
    return _finish(column, type, valid, validity, values)


def _strings(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    data, offsets, validity, valid = _gathered(column, _size(column))
    decoded = _finish(column, type, valid, validity, offsets, data)
    if not data.size or data.max() < _NOT_ASCII:
        return decoded
    try:
        decoded.array.validate(full=True)
    except pa.ArrowInvalid:
        bad = _not_utf8(decoded.array)
        lengths = column.lengths.copy()
        lengths[bad] = -1
        return Decoded(decode(replace(column, lengths=lengths), type).array, bad)
    return decoded


def _not_utf8(texts: pa.Array) -> _Array:
    """Where bytes are no text: slow, but a server that knows its encoding sends none."""
    bad = []
    for place, value in enumerate(texts.cast(pa.binary())):
        try:
            bytes(value.as_py() or b"").decode()
        except UnicodeDecodeError:
            bad.append(place)
    return np.array(bad, np.int64)


def _binaries(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    data = np.empty(_size(column) // 2, np.uint8)
    offsets, validity = np.empty(column.starts.size + 1, np.int32), _bitmap(column)
    valid = parse_hex(column.buffer, column.starts, column.lengths, data, offsets, validity)
    return _finish(column, type, valid, validity, offsets, data)


def _arrays(column: TextColumn, type: ValueType) -> Decoded:  # noqa: A002
    if type.element is None:
        raise ValueError("an array type without its element type")
    delimiter = ord(type.delimiter)
    size = _size(column)
    counts = np.empty(column.starts.size, np.int32)
    escaped = count_elements(column.buffer, column.starts, column.lengths, delimiter, counts)
    text = column
    if escaped:
        data, starts, _, _ = _gathered(column, size)
        text = TextColumn(data, _read_only(starts[:-1], np.int64), column.lengths)
    elements = np.maximum(counts, 0).sum(dtype=np.int64)
    element_starts, element_lengths = np.empty(elements, np.int64), np.empty(elements, np.int32)
    offsets, validity = np.empty(counts.size + 1, np.int32), _bitmap(column)
    valid = split_elements(
        _read_only(text.buffer, np.uint8),
        text.starts,
        text.lengths,
        delimiter,
        counts,
        offsets,
        validity,
        element_starts,
        element_lengths,
    )
    if escaped:
        unescape(text.buffer, element_starts, element_lengths)
    children = decode(TextColumn(text.buffer, element_starts, element_lengths), type.element)
    if children.bad.size:
        # A list that is NULL may have no elements in Parquet: decode again without it.
        arrays = np.unique(np.searchsorted(offsets, children.bad, "right") - 1)
        lengths = column.lengths.copy()
        lengths[arrays] = -1
        rest = decode(replace(column, lengths=lengths), type)
        return Decoded(rest.array, np.union1d(rest.bad, arrays))
    return _finish(column, type, valid, validity, offsets, children=[children.array])


def _gathered(column: TextColumn, size: int) -> tuple[_Array, _Array, _Array, int]:
    """The text behind each other: data, offsets, validity and how many are not NULL."""
    data = np.empty(size, np.uint8)
    offsets, validity = np.empty(column.starts.size + 1, np.int32), _bitmap(column)
    valid = gather(column.buffer, column.starts, column.lengths, data, offsets, validity)
    return data, offsets, validity, valid


def _size(column: TextColumn) -> int:
    """How much text there is, where Arrow's offsets have to reach across it."""
    size = measure(column.lengths)
    if size > _MAX_BYTES:
        raise PenstockError(
            ErrorKind.INTERNAL,
            f"a column of {size} bytes was to be decoded at once",
            hint="please report this: buffers should be split long before 2 GiB",
        )
    return size


_DECODERS: dict[ValueKind, Callable[[TextColumn, ValueType], Decoded]] = {
    ValueKind.BOOLEAN: _booleans,
    ValueKind.SHORT: _integers,
    ValueKind.INTEGER: _integers,
    ValueKind.LONG: _integers,
    ValueKind.FLOAT: _doubles,
    ValueKind.DOUBLE: _doubles,
    ValueKind.DECIMAL: _decimals,
    ValueKind.DATE: _dates,
    ValueKind.TIMESTAMP_NTZ: _timestamps,
    ValueKind.TIMESTAMP: _timestamps,
    ValueKind.BINARY: _binaries,
    ValueKind.STRING: _strings,
    ValueKind.ARRAY: _arrays,
}
