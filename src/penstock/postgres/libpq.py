"""libpq's COPY, a buffer at a time instead of a message at a time.

Postgres sends every row of a COPY as a message of its own, and libpq hands them
out one by one. From Python each of them costs an object, a view and a slice:
two microseconds, which is more than the server needs to make the row. So the
loop over the messages is a kernel that calls `PQgetCopyData` of the very libpq
that psycopg has loaded and puts the messages one behind the other: a twentieth
of a microsecond, and other threads run meanwhile.

Where that libpq cannot be found, the same is done through psycopg, slowly.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
import psycopg
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from psycopg import pq

from penstock.postgres.kernels import kernel

if TYPE_CHECKING:
    import numpy.typing as npt
    from psycopg.pq.abc import PGconn

ENDED = -1
FAILED = -2
NOTHING_YET = 0
FULL = 1

_GET_COPY_DATA = "penstock_PQgetCopyData"
_FREE = "penstock_PQfreemem"

_get_copy_data: Any = types.ExternalFunction(
    _GET_COPY_DATA, types.int32(types.uintp, types.uintp, types.int32)
)
_free: Any = types.ExternalFunction(_FREE, types.void(types.uintp))


class CopyBuffer:
    """COPY messages one behind the other; `ends[i]` is where message i ends in `data`.

    The first `size` bytes and `count` ends are valid. A message larger than the
    buffer makes it grow, for as long as it holds that message.
    """

    def __init__(self, capacity: int, max_messages: int) -> None:
        self.capacity = capacity
        self.data: npt.NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.ends: npt.NDArray[np.int64] = np.empty(max_messages, np.int64)
        self.size = 0
        self.count = 0

    def clear(self) -> None:
        """Make it empty again, and as large as it was at first."""
        self.size = self.count = 0
        if self.data.size > self.capacity:
            self.data = np.empty(self.capacity, np.uint8)


class CopyReader:
    """Takes the messages of one connection's COPY, into one buffer after the other."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        self._address: int | None = getattr(connection, "pgconn_ptr", None)
        # Address and length of a message that libpq has handed out and that
        # found no room: the first one of the next buffer.
        self._pending: npt.NDArray[np.uintp] = np.zeros(2, np.uintp)
        self._carried: memoryview | None = None

    def read(self, buffer: CopyBuffer, *, wait: bool = True) -> int:
        """Add messages to the buffer; one of ENDED, FAILED, NOTHING_YET and FULL.

        NOTHING_YET is for `wait=False`: libpq has no further message in memory.
        What was received before the end or a failure is in the buffer.
        """
        if self._address is None or not _register():
            return self._read_slowly(buffer, wait)
        while True:
            buffer.size, buffer.count, status = receive(
                np.uintp(self._address),
                self._pending,
                buffer.data,
                buffer.ends,
                np.int32(not wait),
                buffer.size,
                buffer.count,
            )
            if status != FULL or buffer.count > 0:
                return status
            buffer.data = np.empty(int(self._pending[1]), np.uint8)

    def _read_slowly(self, buffer: CopyBuffer, wait: bool) -> int:
        while buffer.count < buffer.ends.size:
            if self._carried is None:
                try:
                    length, message = self._connection.get_copy_data(int(not wait))
                except psycopg.Error:
                    return FAILED  # libpq keeps the reason for whoever asks for the result
                if length <= 0:
                    return length
                self._carried = memoryview(message)
            end = buffer.size + len(self._carried)
            if end > buffer.data.size:
                if buffer.count > 0:
                    return FULL
                buffer.data = np.empty(end, np.uint8)
            buffer.data[buffer.size : end] = self._carried
            self._carried = None
            buffer.ends[buffer.count] = buffer.size = end
            buffer.count += 1
        return FULL


def _copy_from(_context: Any, target: Any, _at: Any, _address: Any, _count: Any) -> Any:
    signature = types.void(target, types.int64, types.uintp, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, at, address, count = arguments
        data = context.make_array(signature.args[0])(context, builder, target).data
        source = builder.inttoptr(address, cgutils.voidptr_t)
        copy: Any = cgutils.raw_memcpy
        copy(builder, builder.gep(data, [at]), source, count, 1)
        return context.get_dummy_value()

    return signature, generate


_copy_from_address: Any = intrinsic(_copy_from)


@kernel
def receive(
    connection: np.uintp,
    pending: npt.NDArray[np.uintp],
    data: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    asynchronous: np.int32,
    size: int,
    count: int,
) -> tuple[int, int, int]:
    """Move messages until there is no room, no message or no more COPY."""
    while count < ends.size:
        if pending[0] == 0:
            status = _get_copy_data(connection, pending.ctypes.data, asynchronous)
            if status <= 0:
                pending[0] = 0
                return size, count, status
            pending[1] = status
        length = np.int64(pending[1])
        if size + length > data.size:
            return size, count, FULL
        _copy_from_address(data, size, pending[0], length)
        _free(pending[0])
        pending[0] = 0
        size += length  # type: ignore[assignment]
        ends[count] = size
        count += 1
    return size, count, FULL


@cache
def _register() -> bool:
    """Tell the compiler where psycopg's libpq has its functions; False if we cannot know."""
    path = _loaded_libpq()
    if path is None:
        return False
    try:
        library = ctypes.CDLL(path)
        functions = {_GET_COPY_DATA: library.PQgetCopyData, _FREE: library.PQfreemem}
    except (OSError, AttributeError):
        return False
    for name, function in functions.items():
        address = ctypes.cast(function, ctypes.c_void_p).value
        llvmlite.binding.add_symbol(name, address)
    return True


def _loaded_libpq() -> str | None:
    """The file of the libpq that psycopg uses: it is loaded, so loading it again finds it."""
    beside_psycopg = _bundled_libpq()
    if beside_psycopg is not None:
        return str(beside_psycopg)
    if sys.platform != "linux":
        return None
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    mapped = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libpq" in line}
    # Two of them, as with psycopg2 in the same process, cannot be told apart.
    return mapped.pop() if len(mapped) == 1 else None


def _bundled_libpq() -> Path | None:
    if pq.__impl__ != "binary":
        return None
    import psycopg_binary

    package = Path(psycopg_binary.__file__).resolve().parent
    places = (package.with_name("psycopg_binary.libs"), package / ".dylibs")
    return next((found for place in places for found in place.glob("libpq[.-]*")), None)


def warm_up() -> None:
    """Compile the kernel, or load it from its cache."""
    if _register():
        nothing = np.zeros(0, np.int64)
        receive(
            np.uintp(0), np.zeros(2, np.uintp), np.zeros(1, np.uint8), nothing, np.int32(1), 0, 0
        )
