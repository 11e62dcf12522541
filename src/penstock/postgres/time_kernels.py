"""Dates and timestamps from their ISO text form.

    2024-02-29          2024-02-29 13:45:00.25          2024-02-29 13:45:00.25+05:30

Postgres appends ` BC` to years before 1, and writes five or more digits for
years past 9999. Both are read, since an offset may bring such a local time into
a representable year; what counts is the result, which must lie within the years
1 to 9999 of UTC. `infinity` and `-infinity` have no counterpart at all.

The kernels work like those of `number_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.postgres.kernels import byte, kernel, load_word, word

_MICROSECONDS_A_DAY = 86_400_000_000
_FIRST_DAY = -719_162  # 0001-01-01, in days since 1970-01-01
_LAST_DAY = 2_932_896  # 9999-12-31
_NOWHERE = -(1 << 62)  # what is not a time
_ZERO_DATE = word(int.from_bytes(b"00-00-00", "little"))
_ZERO_TIME = word(int.from_bytes(b"00:00:00", "little"))
_ZEROS = word(int.from_bytes(b"00000000", "little"))
_COLON, _DASH, _PLUS, _POINT, _SPACE = ord(":"), ord("-"), ord("+"), ord("."), ord(" ")


@kernel
def _two_digits(buffer: np.ndarray, at: int) -> int:
    """The number in two digits; 100 or more when they are none."""
    tens = byte(buffer[at] - 48)
    ones = byte(buffer[at + 1] - 48)
    return 10 * tens + ones if tens < 10 and ones < 10 else 100


@kernel
def _three_numbers(buffer: np.ndarray, at: int, zeros: Any) -> tuple[Any, Any, Any]:
    """The numbers in eight bytes like `zeros`, such as `00:00:00`; 255 each when they are not.

    All bytes are worked on at once: exclusive or leaves the value of each digit
    and zero for each separator, and a digit above 9 carries into its top bit.
    """
    digits = load_word(buffer, at) ^ zeros
    above_nine = (digits + word(0x7676767676767676)) | digits
    if above_nine & word(0x8080808080808080) or digits & word(0x0000FF0000FF0000):
        return 255, 255, 255
    pairs = digits * word(10) + (digits >> word(8))
    return (
        np.int64(pairs & word(0xFF)),
        np.int64((pairs >> word(24)) & word(0xFF)),
        np.int64((pairs >> word(48)) & word(0xFF)),
    )


@kernel
def _year_length(buffer: np.ndarray, at: int, end: int) -> int:
    """How many digits the year at `at` has; 0 when no `-MM-DD` follows them."""
    digits = 4
    while at + digits < end and byte(buffer[at + digits] - 48) < 10:
        digits += 1
    if digits > 7 or at + digits + 6 > end:
        return 0
    if buffer[at + digits] != _DASH or buffer[at + digits + 3] != _DASH:
        return 0
    return digits


@kernel
def _day(buffer: np.ndarray, at: int, year_length: int, before_christ: bool) -> Any:
    """Days since 1970-01-01 of a date with a year of that many digits."""
    year = 0
    for j in range(at, at + year_length - 2):
        digit = byte(buffer[j] - 48)
        if digit > 9:
            return _NOWHERE
        year = year * 10 + digit
    rest, month, day = _three_numbers(buffer, at + year_length - 2, _ZERO_DATE)
    year = year * 100 + rest
    if before_christ:
        year = 1 - year
    if month < 1 or month > 12 or day < 1 or year < -4800:
        return _NOWHERE
    if day > 28:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        longest = 30 + ((month + (month >> 3)) & 1) if month != 2 else 28 + leap
        if day > longest:
            return _NOWHERE
    # Count from 1 March 4801 BC: positive, and the leap day is the last of its year.
    years = word(year + 4800)
    if month > 2:
        month -= 3
    else:
        month += 9
        years -= word(1)
    days = years * word(365) + years // word(4) - years // word(100) + years // word(400)
    return np.int64(days) + (153 * month + 2) // 5 + day - 2_472_633


@kernel
def _without_era(buffer: np.ndarray, at: int, end: int) -> int:
    """Where the text ends without its ` BC`."""
    if (
        end - at > 3
        and buffer[end - 1] == ord("C")
        and buffer[end - 2] == ord("B")
        and buffer[end - 3] == _SPACE
    ):
        return end - 3
    return end


@kernel
def parse_dates(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    values: np.ndarray,
    validity: np.ndarray,
) -> int:
    """Dates into days since 1970-01-01."""
    valid = 0
    for i in range(starts.size):
        if lengths[i] < 10:
            continue
        at = starts[i]
        end = _without_era(buffer, at, at + lengths[i])
        year_length = _year_length(buffer, at, end)
        if year_length == 0 or at + year_length + 6 != end:
            continue
        day = _day(buffer, at, year_length, end != at + lengths[i])
        if day < _FIRST_DAY or day > _LAST_DAY:
            continue
        values[i] = day
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
    return valid


@kernel
def _offset(buffer: np.ndarray, at: int, end: int) -> int:
    """Seconds east of UTC, from `+05`, `+05:30` or `+05:30:15`."""
    length = end - at
    if length == 3 and buffer[at] == _PLUS and buffer[at + 1] == 48 and buffer[at + 2] == 48:
        return 0
    if length < 3 or length > 9 or length % 3 or (buffer[at] != _PLUS and buffer[at] != _DASH):
        return _NOWHERE
    seconds = 0
    unit = 3600
    for j in range(at, end, 3):
        number = _two_digits(buffer, j + 1)
        if number > 59 or (j > at and buffer[j] != _COLON):
            return _NOWHERE
        seconds += number * unit
        unit //= 60
    return -seconds if buffer[at] == _DASH else seconds


@kernel
def _time_of_day(buffer: np.ndarray, at: int) -> Any:
    """Microseconds of ` HH:MM:SS`. Second 60 is the next minute's first, as Postgres has it."""
    hour, minute, second = _three_numbers(buffer, at + 1, _ZERO_TIME)
    if buffer[at] != _SPACE or hour > 24 or minute > 59 or second > 60:
        return _NOWHERE
    return ((hour * 60 + minute) * 60 + second) * 1_000_000


@kernel
def _fraction(buffer: np.ndarray, at: int, end: int) -> tuple[Any, int]:
    """Microseconds from up to six digits behind a point, and how many digits there are."""
    if at + 6 <= end:
        digits = (load_word(buffer, at - 2) ^ _ZEROS) >> word(16)
        if ((digits + word(0x7676767676767676)) | digits) & word(0x8080808080808080) == 0:
            pairs = digits * word(10) + (digits >> word(8))
            return (
                np.int64(pairs & word(0xFF)) * 10_000
                + np.int64((pairs >> word(16)) & word(0xFF)) * 100
                + np.int64((pairs >> word(32)) & word(0xFF))
            ), 6
    fraction = 0
    length = 0
    unit = 100_000
    while at + length < end and byte(buffer[at + length] - 48) < 10:
        fraction += unit * byte(buffer[at + length] - 48)
        unit //= 10
        length += 1
    return fraction, length


@kernel
def parse_timestamps(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    zoned: bool,
    values: np.ndarray,
    validity: np.ndarray,
) -> int:
    """Timestamps into microseconds since 1970-01-01, in UTC when they are `zoned`."""
    valid = 0
    for i in range(starts.size):
        if lengths[i] < 19:
            continue
        at = starts[i]
        end = _without_era(buffer, at, at + lengths[i])
        year_length = _year_length(buffer, at, end)
        if year_length == 0 or at + year_length + 15 > end:
            continue
        day = _day(buffer, at, year_length, end != at + lengths[i])
        at += year_length + 6
        time = _time_of_day(buffer, at)
        if time == _NOWHERE or day < _FIRST_DAY - 1 or day > _LAST_DAY + 1:
            continue
        at += 9
        if at < end and buffer[at] == _POINT:
            fraction, length = _fraction(buffer, at + 1, end)
            if length == 0:
                continue
            time += fraction
            at += 1 + length
        if zoned:
            offset = _offset(buffer, at, end)
            if offset == _NOWHERE:
                continue
            time -= offset * 1_000_000
        elif at != end:
            continue
        value = day * _MICROSECONDS_A_DAY + time
        if (
            value < _FIRST_DAY * _MICROSECONDS_A_DAY
            or value >= (_LAST_DAY + 1) * _MICROSECONDS_A_DAY
        ):
            continue
        values[i] = value
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
    return valid
