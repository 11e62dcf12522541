"""What every kernel of this room is made with.

A kernel is a function over whole buffers that Numba compiles: it holds no GIL
and is kept compiled on disk, so that a process pays for compiling once per
machine. Numba notices a change only in the file a kernel stands in, so kernels
call no compiled function of another module; the instructions below, which
plain Python cannot express, are the exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

byte: Any = np.uint8
word: Any = np.uint64
"""Unsigned integers that wrap around. Numba knows their types; mypy leaves them alone."""

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def kernel(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Compile `function` on its first call, or load it from the cache.

    Where neither the package's directory nor the user's can be written to, each
    process compiles for itself.
    """
    try:
        compiled = njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:
        compiled = njit(nogil=True, error_model="numpy")(function)
    return cast(Callable[_Parameters, _Result], compiled)


def _copy_bytes(_context: Any, target: Any, _at: Any, source: Any, _from: Any, _count: Any) -> Any:
    signature = types.void(target, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_type, _, source_type, _, _ = signature.args
        target, at, source, from_, count = arguments
        target_data = context.make_array(target_type)(context, builder, target).data
        source_data = context.make_array(source_type)(context, builder, source).data
        raw_memcpy: Any = cgutils.raw_memcpy
        raw_memcpy(
            builder,
            builder.gep(target_data, [at]),
            builder.gep(source_data, [from_]),
            count,
            1,
        )
        return context.get_dummy_value()

    return signature, generate


def _load_word(_context: Any, source: Any, _at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.gep(data, [arguments[1]])
        return builder.load(
            builder.bitcast(pointer, ir.PointerType(ir.IntType(64))), align=1, typ=ir.IntType(64)
        )

    return types.uint64(source, types.int64), generate


def _multiply_high(_context: Any, _left: Any, _right: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        left, right = (builder.zext(argument, wide) for argument in arguments)
        product = builder.lshr(builder.mul(left, right), ir.Constant(wide, 64))
        return builder.trunc(product, ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


def _leading_zeros(_context: Any, _bits: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], cgutils.true_bit)

    return types.int64(types.uint64), generate


copy_bytes: Any = intrinsic(_copy_bytes)
"""`copy_bytes(target, at, source, from, count)`: memcpy between two byte arrays."""

load_word: Any = intrinsic(_load_word)
"""`load_word(source, at)`: eight bytes as one uint64, the first byte lowest."""

multiply_high: Any = intrinsic(_multiply_high)
"""`multiply_high(a, b)`: the upper 64 bits of the 128-bit product of two uint64."""

leading_zeros: Any = intrinsic(_leading_zeros)
"""`leading_zeros(bits)`: how many zero bits stand above the first one of a uint64 that has one."""
