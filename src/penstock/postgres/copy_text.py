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
from penstock.postgres.kernels import kernel
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
def split_rows(buffer: _Array, size: int, starts: _Array, lengths: _Array) -> int:
    """Fill where fields start and how long they are; how many rows were well formed.

    The buffer ends with a newline, at which every loop below stops.
    """
    columns, rows = starts.shape
    at = 0
    for row in range(rows):
        if at >= size:
            return row
        for column in range(columns):
            start = at
            byte = buffer[at]
            while byte not in (_TAB, _NEWLINE, _BACKSLASH):
                at += 1
                byte = buffer[at]
            end = at
            if byte == _BACKSLASH:
                if buffer[at + 1] == _N:
                    at += 2
                    end = start - 1
                else:
                    while True:
                        byte = buffer[at]
                        if byte in (_TAB, _NEWLINE):
                            break
                        if byte == _BACKSLASH:
                            at += 1
                            byte = buffer[at]
                            if byte == 110:  # n
                                byte = np.uint8(10)
                            elif byte == 116:  # t
                                byte = np.uint8(9)
                            elif byte == 114:  # r
                                byte = np.uint8(13)
                            elif byte == 98:  # b
                                byte = np.uint8(8)
                            elif byte == 102:  # f
                                byte = np.uint8(12)
                            elif byte == 118:  # v
                                byte = np.uint8(11)
                        buffer[end] = byte
                        end += 1
                        at += 1
            starts[column, row] = start
            lengths[column, row] = end - start
            last = column == columns - 1
            if buffer[at] != (_NEWLINE if last else _TAB):
                return row
            at += 1
    return int(rows)
