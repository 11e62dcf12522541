"""Dates and timestamps from their ISO text form.

    2024-02-29          2024-02-29 13:45:00.25          2024-02-29 13:45:00.25+05:30

Postgres appends ` BC` to years before 1, and writes five or more digits for
years past 9999. Both are read, since an offset may bring such a local time into
a representable year; what counts is the result, which must lie within the years
1 to 9999 of UTC. `infinity` and `-infinity` have no counterpart at all.

The kernels work like those of `number_kernels`.
"""

from __future__ import annotations

import numpy as np

from penstock.postgres.kernels import byte, kernel

_MICROSECONDS_A_DAY = 86_400_000_000
_FIRST_DAY = -719_162  # 0001-01-01, in days since 1970-01-01
_LAST_DAY = 2_932_896  # 9999-12-31
_NOWHERE = -(1 << 62)  # what is not a time
_COLON, _DASH, _PLUS, _POINT, _SPACE = ord(":"), ord("-"), ord("+"), ord("."), ord(" ")


@kernel
def _two_digits(buffer: np.ndarray, at: int) -> int:
    """The number in two digits; 100 or more when they are none."""
    tens = byte(buffer[at] - 48)
    ones = byte(buffer[at + 1] - 48)
    return 10 * tens + ones if tens < 10 and ones < 10 else 100


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
def _day(buffer: np.ndarray, at: int, year_length: int, before_christ: bool) -> int:
    """Days since 1970-01-01 of a date with a year of that many digits."""
    year = 0
    for j in range(at, at + year_length):
        digit = byte(buffer[j] - 48)
        if digit > 9:
            return _NOWHERE
        year = year * 10 + digit
    month = _two_digits(buffer, at + year_length + 1)
    day = _two_digits(buffer, at + year_length + 4)
    if before_christ:
        year = 1 - year
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month < 1 or month > 12 or day < 1:
        return _NOWHERE
    if day > 28:
        longest = 30 + ((month + (month >> 3)) & 1) if month != 2 else 28 + leap
        if day > longest:
            return _NOWHERE
    # Count from 1 March of year 0, so that the leap day is the last of its year.
    if month > 2:
        month -= 3
    else:
        month += 9
        year -= 1
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * month + 2) // 5 + day - 1
    return (
        era * 146_097
        + year_of_era * 365
        + year_of_era // 4
        - year_of_era // 100
        + day_of_year
        - 719_468
    )


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
def _time_of_day(buffer: np.ndarray, at: int) -> int:
    """Microseconds of ` HH:MM:SS`. Second 60 is the next minute's first, as Postgres has it."""
    hour = _two_digits(buffer, at + 1)
    minute = _two_digits(buffer, at + 4)
    second = _two_digits(buffer, at + 7)
    if (
        buffer[at] != _SPACE
        or buffer[at + 3] != _COLON
        or buffer[at + 6] != _COLON
        or hour > 24
        or minute > 59
        or second > 60
    ):
        return _NOWHERE
    return ((hour * 60 + minute) * 60 + second) * 1_000_000


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
            at += 1
            unit = 100_000
            while at < end and byte(buffer[at] - 48) < 10:
                time += unit * byte(buffer[at] - 48)
                unit //= 10
                at += 1
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
