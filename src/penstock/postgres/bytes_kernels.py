"""Strings and bytes: slices of one buffer, gathered behind each other.

The kernels return how many values they set, as those of `number_kernels` do, and
write the offsets that Arrow keeps beside the data: value `i` is
`data[offsets[i] : offsets[i + 1]]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.postgres.kernels import byte, copy_bytes, kernel


@kernel
def measure(lengths: np.ndarray) -> int:
    """How many bytes the values have together."""
    total = 0
    for i in range(lengths.size):
        total += max(lengths[i], 0)
    return total


@kernel
def gather(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    data: np.ndarray,
    offsets: np.ndarray,
    validity: np.ndarray,
) -> int:
    """The values as they are."""
    valid = 0
    position = 0
    for i in range(starts.size):
        offsets[i] = position
        if lengths[i] < 0:
            continue
        copy_bytes(data, position, buffer, starts[i], lengths[i])
        position += lengths[i]
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
    offsets[starts.size] = position
    return valid


@kernel
def _nibble(letter: int) -> Any:
    """What a hexadecimal digit stands for; 255 for anything else."""
    digit = byte(letter - ord("0"))
    if digit < 10:
        return digit
    digit = byte((letter | 32) - ord("a"))
    return digit + 10 if digit < 6 else 255


@kernel
def parse_hex(
    buffer: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    data: np.ndarray,
    offsets: np.ndarray,
    validity: np.ndarray,
) -> int:
    r"""`\x` and pairs of hexadecimal digits into bytes."""
    valid = 0
    position = 0
    for i in range(starts.size):
        offsets[i] = position
        at = starts[i]
        if lengths[i] < 2 or lengths[i] & 1 or buffer[at] != 92 or buffer[at + 1] != ord("x"):
            continue
        count = (lengths[i] >> 1) - 1
        wrong = False
        for j in range(count):
            high = _nibble(buffer[at + 2 + 2 * j])
            low = _nibble(buffer[at + 3 + 2 * j])
            wrong |= high > 15 or low > 15
            data[position + j] = byte(high << 4 | low)
        if wrong:
            continue
        position += count
        validity[i >> 3] |= byte(1 << (i & 7))
        valid += 1
    offsets[starts.size] = position
    return valid
