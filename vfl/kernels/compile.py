"""Compilation of the loops, and the few machine operations that numba lacks.

Numba's cache of a compiled loop watches the size and time of that loop's file alone, though other modules of this folder are
compiled into it. `compiled` adds the content of the whole folder, so that no change of a module leaves a stale loop.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature

    Code = Callable[[BaseContext, ir.IRBuilder, Signature, list[ir.Value]], ir.Value]

F = TypeVar("F", bound="Callable[..., object]")

MAGIC = 1.5 * 2.0**52  # c + MAGIC has rint(c) in its low bits, for |c| < 2⁵¹
MAGIC_BITS = int(np.float64(MAGIC).view(np.int64))

_WORD = ir.IntType(64)


inline = cast("Callable[[Callable[..., tuple[Signature, Code]]], Callable[..., Any]]", intrinsic)


def sources(folder: Path) -> str:
    """Return a digest of the modules of a folder, names and content."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


SOURCES = sources(Path(__file__).parent)


def compiled(function: F) -> F:
    """Compile on first use, release the GIL, keep IEEE arithmetic; division by zero gives infinity.

    The result is kept on disk for later processes, until any module of this folder changes.
    """
    dispatcher = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    # Private to numba, which has no public way; a version without it watches the loop's file alone.
    kept: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = (kept._source_stamp, SOURCES)
    return cast("F", dispatcher)


def part(function: F) -> F:
    """Compile a function that is inlined into a loop's body; it makes no arrays, so it counts no references."""
    return cast("F", numba.njit(nogil=True, error_model="numpy", forceinline=True, _nrt=False)(function))


def _address(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value], *, inbounds: bool
) -> ir.Value:
    """Return the address of columns[j, i], without checks: wrap-around tests and slices cost more than the sums."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    n = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.add(builder.mul(args[1], n), args[2])], inbounds=inbounds)


@inline
def load(_context: BaseContext, columns: types.Array, _j: types.Type, _i: types.Type) -> tuple[Signature, Code]:
    """Return columns[j, i], unchecked."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
        return builder.load(_address(context, builder, signature, args, inbounds=True))

    return columns.dtype(columns, types.int64, types.int64), code


@inline
def add_bits(_context: BaseContext, _total: types.Type, x: types.Type) -> tuple[Signature, Code]:
    """Return total + bits(x) modulo 2⁶⁴ (numba's own integer sum promises the compiler that it never wraps)."""
    word = types.int64 if isinstance(x, types.Integer) else types.float64

    def code(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        return builder.add(args[0], builder.bitcast(args[1], _WORD))

    return types.int64(types.int64, word), code


@inline
def unbiased(_context: BaseContext, _total: types.Type, _count: types.Type) -> tuple[Signature, Code]:
    """Return total − count·bits(MAGIC) modulo 2⁶⁴: the rest of a sum of bits is the sum of the integers."""

    def code(_context: BaseContext, builder: ir.IRBuilder, _signature: Signature, args: list[ir.Value]) -> ir.Value:
        return builder.sub(args[0], builder.mul(args[1], _WORD(MAGIC_BITS)))

    return types.int64(types.int64, types.int64), code
