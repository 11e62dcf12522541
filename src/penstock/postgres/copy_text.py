r"""COPY's text format: rows into columns of text.

A row is its fields with a tab between them and a newline behind them. Tabs,
newlines and backslashes inside a field are escaped with a backslash, so a raw
tab or newline always ends a field, and `\N` alone is NULL (a backslash followed
by an N would be `\\N`). Escapes are undone in place: text only gets shorter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import ErrorKind, PenstockError
from penstock.postgres.kernels import byte, kernel, leading_zeros, load_word, word
from penstock.postgres.values import TextColumn

_Array = np.ndarray[Any, np.dtype[Any]]

_TAB, _NEWLINE, _BACKSLASH, _N = 9, 10, 92, 78


def split(buffer: _Array, size: int, rows: int, columns: int) -> list[TextColumn]:
    """The first `rows` rows in `buffer[:size]`, by column. Changes the buffer."""
    starts = np.empty((columns, rows), np.int64)
    lengths = np.empty((columns, rows), np.int32)
    if size and buffer[size - 1] != _NEWLINE:
        raise _malformed(rows)
    found = split_rows(buffer, size, starts, lengths)
    if found != rows:
        raise _malformed(found)
    return [TextColumn(buffer, starts[i], lengths[i]) for i in range(columns)]


def _malformed(row: int) -> PenstockError:
    return PenstockError(
        ErrorKind.DATA_DECODE,
        f"row {row} of a COPY buffer does not have the fields that were asked for",
        hint="this should not happen: please report it with the server's version",
    )


@kernel
def _unescape(buffer: _Array, at: int, size: int) -> tuple[int, int]:
    """Undo escapes in place from `at` to the field's end; where it ends now, and ended before."""
    end = at
    while at < size and buffer[at] not in (_TAB, _NEWLINE):
        character = buffer[at]
        if character == _BACKSLASH:
            at += 1
            character = buffer[at]
            if character == ord("n"):
                character = byte(10)
            elif character == ord("t"):
                character = byte(9)
            elif character == ord("r"):
                character = byte(13)
            elif character == ord("b"):
                character = byte(8)
            elif character == ord("f"):
                character = byte(12)
            elif character == ord("v"):
                character = byte(11)
        buffer[end] = character
        end += 1
        at += 1
    return end, at


@kernel
def split_rows(buffer: _Array, size: int, starts: _Array, lengths: _Array) -> int:
    """Fill where fields start and how long they are; how many rows were well formed.

    The buffer ends with a newline, at which every loop below stops.
    """
    columns, rows = starts.shape
    ones, highs = word(0x0101010101010101), word(0x8080808080808080)
    tabs, newlines, backslashes = ones * word(_TAB), ones * word(_NEWLINE), ones * word(_BACKSLASH)
    last_word = size - 8
    at = 0
    for row in range(rows):
        if at >= size:
            return row
        for column in range(columns):
            start = at
            found = word(0)
            while at <= last_word:
                # A byte that is zero after the XOR has its high bit set here;
                # the lowest such bit is exact, those above it may not be.
                text = load_word(buffer, at)
                tab, newline, backslash = text ^ tabs, text ^ newlines, text ^ backslashes
                found = (
                    ((tab - ones) & ~tab)
                    | ((newline - ones) & ~newline)
                    | ((backslash - ones) & ~backslash)
                ) & highs
                if found != word(0):
                    at += (63 - leading_zeros(found & (word(0) - found))) >> 3
                    break
                at += 8
            if found == word(0):
                while buffer[at] not in (_TAB, _NEWLINE, _BACKSLASH):
                    at += 1
            end = at
            if buffer[at] == _BACKSLASH:
                if buffer[at + 1] == _N:
                    at += 2
                    end = start - 1
                else:
                    end, at = _unescape(buffer, at, size)
            starts[column, row] = start
            lengths[column, row] = end - start
            last = column == columns - 1
            if at >= size or buffer[at] != (_NEWLINE if last else _TAB):
                return row
            at += 1
    return int(rows)
