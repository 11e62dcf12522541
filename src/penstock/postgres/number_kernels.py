"""Numbers from their text form: booleans, integers, decimals and floats.

Each kernel reads value `i` from `buffer[starts[i] : starts[i] + lengths[i]]`,
writes it to the place Arrow wants it, sets its bit in `validity` (which comes
zeroed) and returns how many values it set. A value whose bit stays clear is
NULL, when its length is negative, or is text that the type cannot hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.postgres.kernels import byte, kernel, leading_zeros, load_word, multiply_high, word

_MINUS, _PLUS, _POINT = ord("-"), ord("+"), ord(".")
_LOW_HALF = word(0xFFFFFFFF)
_EVERY_OTHER_PAIR = word(0x000000FF000000FF)


@kernel
def parse_booleans(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    values: np.ndarray,
    validity: np.ndarray,
) -> int:
    """`t` and `f` into a bitmap."""
    valid = 0
    for i in range(starts.size):
        if lengths[i] != 1:
            continue
        letter = buffer[starts[i]]
        bit = byte(1 << (i & 7))
        if letter == ord("t"):
            values[i >> 3] |= bit
        elif letter != ord("f"):
            continue
        validity[i >> 3] |= bit
        valid += 1
    return valid


@kernel
def parse_integers(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    largest: np.uint64,
    values: np.ndarray,
    validity: np.ndarray,
) -> int:
    """Integers from `-largest - 1` to `largest`."""
    valid = 0
    for i in range(starts.size):
        if lengths[i] <= 0:
            continue
        at = starts[i]
        end = at + lengths[i]
        negative = buffer[at] == _MINUS
        if negative:
            at += 1
        if at == end or end - at > 19:  # 19 digits always fit 64 bits
            continue
        magnitude = word(0)
        wrong = False
        for j in range(at, end):
            digit = byte(buffer[j] - 48)
            wrong |= digit > 9
            magnitude = magnitude * word(10) + word(digit)
        if wrong or magnitude > largest + word(negative):
            continue
        value = np.int64(magnitude)
        values[i] = -value if negative else value
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
    return valid


@kernel
def parse_decimals(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    scale: int,
    limit_high: np.uint64,
    limit_low: np.uint64,
    values: np.ndarray,
    validity: np.ndarray,
) -> int:
    """Plain decimals into 128-bit integers counting units of 10^-scale, below the limit.

    `values` takes two uint64 each, low half first. Digits beyond the scale are
    fine as long as they are zeros. 38 significant digits always fit 127 bits.
    """
    valid = 0
    for i in range(starts.size):
        if lengths[i] <= 0:
            continue
        at = starts[i]
        end = at + lengths[i]
        negative = buffer[at] == _MINUS
        if negative:
            at += 1
        high = word(0)
        low = word(0)
        significant = 0
        integers = 0  # digits before the point
        missing = -1  # fraction digits still to come; -1 before the point
        wrong = False
        for j in range(at, end):
            digit = byte(buffer[j] - 48)
            if digit > 9:
                wrong |= buffer[j] != _POINT or missing >= 0
                missing = scale
                continue
            if missing < 0:
                integers += 1
            elif missing == 0:
                wrong |= digit != 0
                continue
            else:
                missing -= 1
            if significant < 19:
                low = low * word(10) + word(digit)
            else:
                lower = (low & _LOW_HALF) * word(10) + word(digit)
                upper = (low >> word(32)) * word(10) + (lower >> word(32))
                low = (upper << word(32)) | (lower & _LOW_HALF)
                high = high * word(10) + (upper >> word(32))
            significant += significant > 0 or digit > 0
        if missing < 0:
            missing = scale
        if wrong or integers == 0 or significant + missing * (significant > 0) > 38:
            continue
        for _ in range(missing):
            lower = (low & _LOW_HALF) * word(10)
            upper = (low >> word(32)) * word(10) + (lower >> word(32))
            low = (upper << word(32)) | (lower & _LOW_HALF)
            high = high * word(10) + (upper >> word(32))
        if high > limit_high or (high == limit_high and low >= limit_low):
            continue
        if negative:
            low = ~low + word(1)
            high = ~high + word(low == 0)
        values[2 * i] = low
        values[2 * i + 1] = high
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
    return valid


def _powers_of_ten() -> np.ndarray:
    """10^e for e from -348 to 347 as 128-bit mantissas, truncated, in rows of low and high."""
    table = np.empty((696, 2), np.uint64)
    for row, exponent in enumerate(range(-348, 348)):
        if exponent < 0:
            divisor = 10**-exponent
            mantissa = (1 << (divisor.bit_length() + 128)) // divisor
        else:
            mantissa = 10**exponent << 128
        mantissa >>= mantissa.bit_length() - 128
        table[row] = mantissa & (2**64 - 1), mantissa >> 64
    return table


POWERS_OF_TEN = _powers_of_ten()


@kernel
def _nearest_double(digits: Any, exponent: int, powers: np.ndarray) -> Any:
    """The bits of the double nearest to digits * 10^exponent; all ones if that is hard to tell.

    Daniel Lemire, "Number parsing at a gigabyte per second" (2021). The double
    is a normal one: subnormal numbers and overflows count as hard.
    """
    hard = word(0xFFFFFFFFFFFFFFFF)
    one = word(1)
    tail = word(0x1FF)
    if digits == 0:
        return word(0)
    if exponent < -348 or exponent > 347:
        return hard
    shift = leading_zeros(digits)
    digits <<= word(shift)
    high = multiply_high(digits, powers[exponent + 348, 1])
    low = digits * powers[exponent + 348, 1]
    if high & tail == tail and low + digits < digits:
        further_high = multiply_high(digits, powers[exponent + 348, 0])
        further_low = digits * powers[exponent + 348, 0]
        low += further_high
        if low < further_high:
            high += one
        if high & tail == tail and low + one == 0 and further_low + digits < digits:
            return hard
    top = high >> word(63)
    mantissa = high >> (top + word(9))
    binary_exponent = ((217706 * exponent) >> 16) + 64 + 1023 - shift - np.int64(one ^ top)
    if low == 0 and high & tail == 0 and mantissa & word(3) == one:
        return hard
    mantissa = (mantissa + (mantissa & one)) >> one
    if mantissa >> word(53):
        mantissa >>= one
        binary_exponent += 1
    if binary_exponent < 1 or binary_exponent > 2046:
        return hard
    return (word(binary_exponent) << word(52)) | (mantissa & word((1 << 52) - 1))


_INFINITY = np.frombuffer(b"Infinity", np.uint8)
_NAN = np.frombuffer(b"NaN", np.uint8)


@kernel
def _is_word(buffer: np.ndarray, at: int, end: int, text: np.ndarray) -> bool:
    if end - at != text.size:
        return False
    same = True
    for j in range(text.size):
        same &= buffer[at + j] == text[j]
    return same


@kernel
def _digits(buffer: np.ndarray, at: int, end: int, number: Any) -> tuple[Any, int]:
    """The number with the digits from `at` on behind its own, and where they end.

    Eight digits are taken at once: `digits` has one in each byte, the pairs of
    them become numbers below 100, and two multiplications put those together.
    """
    while at + 8 <= end:
        digits = load_word(buffer, at) ^ word(0x3030303030303030)
        if ((digits + word(0x7676767676767676)) | digits) & word(0x8080808080808080):
            break
        pairs = digits * word(10) + (digits >> word(8))
        outer = (pairs & _EVERY_OTHER_PAIR) * word(100 + (1_000_000 << 32))
        inner = ((pairs >> word(16)) & _EVERY_OTHER_PAIR) * word(1 + (10_000 << 32))
        number = number * word(100_000_000) + ((outer + inner) >> word(32))
        at += 8
    while at < end and byte(buffer[at] - 48) < 10:
        number = number * word(10) + word(byte(buffer[at] - 48))
        at += 1
    return number, at


@kernel
def _leading_zeros(buffer: np.ndarray, at: int, end: int) -> int:
    """How many zeros stand before the first other digit."""
    zeros = 0
    while at < end and (buffer[at] == 48 or buffer[at] == _POINT):
        zeros += buffer[at] == 48
        at += 1
    return zeros


@kernel
def _exponent(buffer: np.ndarray, at: int, end: int) -> tuple[int, bool]:
    """The number behind `e`, and whether there is one."""
    letter = buffer[at]
    at += 1
    negative = at < end and buffer[at] == _MINUS
    if at < end and (negative or buffer[at] == _PLUS):
        at += 1
    value = 0
    if letter != ord("e") or at == end or end - at > 4:
        return 0, False
    for j in range(at, end):
        digit = byte(buffer[j] - 48)
        if digit > 9:
            return 0, False
        value = value * 10 + digit
    return (-value if negative else value), True


@kernel
def parse_doubles(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    powers: np.ndarray,
    bits: np.ndarray,
    validity: np.ndarray,
    hard: np.ndarray,
) -> tuple[int, int]:
    """Doubles, as their bits. Returns how many were set and how many were put into `hard`.

    `hard` collects the places of well-formed numbers that somebody else has to
    round: they have their validity bit, but no value yet.
    """
    valid = 0
    hard_count = 0
    for i in range(starts.size):
        if lengths[i] <= 0:
            continue
        at = starts[i]
        end = at + lengths[i]
        sign = word(0)
        if buffer[at] == _MINUS:
            sign = word(1 << 63)
            at += 1
        digits, point = _digits(buffer, at, end, word(0))
        count = point - at
        exponent = 0
        if point < end and buffer[point] == _POINT:
            digits, behind = _digits(buffer, point + 1, end, digits)
            exponent = point + 1 - behind
            count -= exponent
            point = behind
        if count > 19:  # too many for 64 bits, unless they are zeros
            count -= _leading_zeros(buffer, at, point)
        elif count == 0:
            if _is_word(buffer, at, end, _INFINITY):
                bits[i] = sign | word(0x7FF0000000000000)
            elif _is_word(buffer, at, end, _NAN) and not sign:
                bits[i] = word(0x7FF8000000000000)
            else:
                continue
            validity[i >> 3] |= byte(1 << (i & 7))
            valid += 1
            continue
        if point < end:
            explicit, well_formed = _exponent(buffer, point, end)
            if not well_formed:
                continue
            exponent += explicit
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
        nearest = _nearest_double(digits, exponent, powers)
        if count > 19 or nearest == word(0xFFFFFFFFFFFFFFFF):
            hard[hard_count] = i
            hard_count += 1
        else:
            bits[i] = sign | nearest
    return valid, hard_count
