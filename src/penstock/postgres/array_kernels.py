r"""Arrays from their text form, `{a,NULL,"q\"uo"}`, into slices of their elements.

Postgres quotes an element that is empty, reads like NULL, or holds a brace, a
quote, a backslash, white space or the delimiter; inside quotes a backslash
stands before a quote or a backslash. `[2:3]={a,b}` gives bounds that do not
start at 1, which an Arrow list has no room for; the elements count. An array of
more than one dimension has no counterpart in a flat list.

An element without backslashes is a slice of the array's own text, so nothing is
copied for it. `count_elements` says whether there are backslashes at all; the
others are unescaped where they stand, which makes them shorter, so the caller
has to pass a buffer of its own for that.
"""

from __future__ import annotations

import numpy as np

from penstock.postgres.kernels import byte, kernel

_BACKSLASH, _QUOTE, _OPEN, _CLOSE = ord("\\"), ord('"'), ord("{"), ord("}")


@kernel
def _first_element(buffer: np.ndarray, at: int, end: int) -> int:
    """Where the first element of a one-dimensional array starts; -1 if it is not one."""
    if at < end and buffer[at] == ord("["):
        while at < end and buffer[at] != ord("="):
            at += 1
        if at < end and buffer[at - 1] != ord("]"):
            return -1
        at += 1
    if end - at < 2 or buffer[at] != _OPEN or buffer[at + 1] == _OPEN or buffer[end - 1] != _CLOSE:
        return -1
    return at + 1


@kernel
def _element_end(buffer: np.ndarray, at: int, end: int, delimiter: int) -> int:
    """Where the element at `at` ends: at a delimiter or the closing brace, or -1."""
    if at < end and buffer[at] == _QUOTE:
        at += 1
        while at < end and buffer[at] != _QUOTE:
            at += 2 if buffer[at] == _BACKSLASH else 1
        at += 1
        if at < end and (buffer[at] == delimiter or at == end - 1):
            return at
        return -1
    start = at
    while at < end - 1 and buffer[at] != delimiter:
        if buffer[at] == _OPEN or buffer[at] == _CLOSE or buffer[at] == _QUOTE:
            return -1
        at += 1
    return at if at > start else -1


@kernel
def count_elements(
    buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray, delimiter: int, counts: np.ndarray
) -> bool:
    """How many elements each array has; -1 for a NULL and for what is no flat array.

    Returns whether there is a backslash in any of them.
    """
    escaped = False
    for i in range(starts.size):
        counts[i] = -1
        end = starts[i] + lengths[i]
        at = _first_element(buffer, starts[i], end)
        if lengths[i] < 2 or at < 0:
            continue
        if at == end - 1:
            counts[i] = 0
            continue
        count = 0
        while 0 <= at < end:
            at = _element_end(buffer, at, end, delimiter) + 1
            count += 1
            if at == 0:
                count = -1
                break
        counts[i] = count
        for j in range(starts[i], end):
            escaped |= buffer[j] == _BACKSLASH
    return escaped


@kernel
def split_elements(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    delimiter: int,
    counts: np.ndarray,
    offsets: np.ndarray,
    validity: np.ndarray,
    element_starts: np.ndarray,
    element_lengths: np.ndarray,
) -> int:
    """The elements that `count_elements` has counted, still quoted and escaped.

    Quotes are left out of the slices; an element's escapes are `unescape`'s business.
    """
    valid = 0
    element = 0
    for i in range(starts.size):
        offsets[i] = element
        if counts[i] < 0:
            continue
        end = starts[i] + lengths[i]
        at = _first_element(buffer, starts[i], end)
        for _ in range(counts[i]):
            element_end = _element_end(buffer, at, end, delimiter)
            length = element_end - at
            if buffer[at] == _QUOTE:
                element_starts[element] = at + 1
                element_lengths[element] = length - 2
            elif (
                length == 4
                and buffer[at] == ord("N")
                and buffer[at + 1] == ord("U")
                and buffer[at + 2] == ord("L")
                and buffer[at + 3] == ord("L")
            ):
                element_starts[element] = at
                element_lengths[element] = -1
            else:
                element_starts[element] = at
                element_lengths[element] = length
            element += 1
            at = element_end + 1
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
    offsets[starts.size] = element
    return valid


@kernel
def unescape(buffer: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
    """Take the backslashes out of the elements, in place."""
    for i in range(starts.size):
        target = starts[i]
        at = starts[i]
        end = at + lengths[i]
        while at < end:
            if buffer[at] == _BACKSLASH:
                at += 1
            buffer[target] = buffer[at]
            target += 1
            at += 1
        if lengths[i] > 0:
            lengths[i] = target - starts[i]
