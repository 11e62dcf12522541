"""Where the values of pgoutput's tuples are.

A change carries one tuple or two, each column by column: text with its length, NULL, or
nothing, where a value that is stored out of line has not changed. The walk goes over
all changes of one table at once and copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.postgres.kernels import kernel
from penstock.postgres.pgoutput import (
    DELETE,
    OLD_ABSENT,
    OLD_FULL,
    Bytes,
    ChangeIndex,
    Codes,
    Ints,
    big_endian,
)

Lengths = npt.NDArray[np.int32]

# Lengths that are not lengths.
NULL, UNCHANGED = -1, -2

# Tags of tuples and values.
_NEW_TUPLE = ord("N")
_TEXT, _NULL, _UNSENT = (ord(tag) for tag in "tnu")


@dataclass(frozen=True, slots=True)
class ValueSlices:
    """Where each column's text is: `[column, row]` starts and lengths into the buffer."""

    starts: Ints
    lengths: Lengths


@kernel
def locate_values(
    buffer: Bytes,
    tuples: Ints,
    limits: Ints,
    operation: Codes,
    old: Codes,
    columns: int,
    starts: Ints,
    lengths: Lengths,
    old_starts: Ints,
    old_lengths: Lengths,
) -> tuple[int, int]:
    """Note where every value of these changes is; returns (unchanged values, bad row or -1).

    `old_starts` and `old_lengths` may have no columns when no change has an old
    tuple. A value that was not resent because its TOAST did not change is taken
    from the old tuple where that has it.
    """
    unchanged = 0
    with_old = old_starts.shape[0] > 0
    for row in range(tuples.shape[0]):
        at, end = tuples[row], limits[row]
        if with_old:
            for c in range(columns):
                old_lengths[c, row] = NULL
                old_starts[c, row] = 0
        if old[row] != OLD_ABSENT:
            if at + 3 > end or big_endian(buffer, at + 1, 2) != columns:
                return unchanged, row
            at += 3
            for c in range(columns):
                if at >= end:
                    return unchanged, row
                kind = buffer[at]
                at += 1
                if kind == _TEXT:
                    size = big_endian(buffer, at, 4) if at + 4 <= end else end
                    if at + 4 + size > end:
                        return unchanged, row
                    old_starts[c, row] = at + 4
                    old_lengths[c, row] = size
                    at += 4 + size
                elif kind not in (_NULL, _UNSENT):
                    return unchanged, row
        if operation[row] >= DELETE:
            for c in range(columns):
                starts[c, row] = 0
                lengths[c, row] = NULL
            continue
        if at + 3 > end or buffer[at] != _NEW_TUPLE or big_endian(buffer, at + 1, 2) != columns:
            return unchanged, row
        at += 3
        for c in range(columns):
            if at >= end:
                return unchanged, row
            kind = buffer[at]
            at += 1
            if kind == _TEXT:
                size = big_endian(buffer, at, 4) if at + 4 <= end else end
                if at + 4 + size > end:
                    return unchanged, row
                starts[c, row] = at + 4
                lengths[c, row] = size
                at += 4 + size
            elif kind == _NULL:
                starts[c, row] = 0
                lengths[c, row] = NULL
            elif kind != _UNSENT:
                return unchanged, row
            elif old[row] == OLD_FULL and old_lengths[c, row] >= 0:
                starts[c, row] = old_starts[c, row]
                lengths[c, row] = old_lengths[c, row]
            else:
                starts[c, row] = 0
                lengths[c, row] = UNCHANGED
                unchanged += 1
    return unchanged, -1


@kernel
def list_unchanged(lengths: Lengths, offsets: Lengths, names: Ints) -> None:
    """Fill list offsets and column numbers of the values that were not resent."""
    at = 0
    for row in range(lengths.shape[1]):
        offsets[row] = at
        for c in range(lengths.shape[0]):
            if lengths[c, row] == UNCHANGED:
                names[at] = c
                at += 1
    offsets[lengths.shape[1]] = at


def warm_up() -> None:
    """Compile the kernels, or load them from their cache."""
    buffer = np.zeros(64, dtype=np.uint8)
    starts, lengths = np.zeros((1, 0), np.int64), np.zeros((1, 0), np.int32)
    none = ChangeIndex.empty(0)
    locate_values(
        buffer,
        none.tuples,
        none.limits,
        none.operation,
        none.old,
        1,
        starts,
        lengths,
        starts,
        lengths,
    )
    list_unchanged(lengths, np.zeros(1, np.int32), np.zeros(0, np.int64))
