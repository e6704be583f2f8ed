"""The compiled loops of vfl.kernels.ring: products and sums of words modulo 2^64.

Words are uint64, whose sums and products wrap. A product of a word with a small integer is split into products of the two
halves of the word: the machine multiplies 32-bit numbers in vectors, but not 64-bit ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from vfl.kernels.compile import compiled, inline, load
from vfl.kernels.simd import put

if TYPE_CHECKING:
    import numpy.typing as npt
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature

    from vfl.kernels.compile import Code

    Array = npt.NDArray[Any]

PANEL = 4096
"""Records whose words stay in the first-level cache while all columns are multiplied by them."""
CROSS_PANEL = 512
"""Records whose words of all columns stay in the second-level cache."""
AHEAD = 16
"""Records between fetching an entry of a table and using it."""
_LOW, _HALF, _WORD = np.uint64(0xFFFFFFFF), np.uint64(1 << 31), np.uint64(32)
_UNIT = 16384.0


@inline
def at(_context: BaseContext, vector: types.Array, _i: types.Type) -> tuple[Signature, Code]:
    """Return vector[i], unchecked."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load(builder.gep(array.data, [args[1]], inbounds=True))

    return vector.dtype(vector, types.int64), code


@inline
def fetch_row(_context: BaseContext, table: types.Array, _row: types.Type) -> tuple[Signature, Code]:
    """Have a row of a table brought to the first-level cache."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        start = builder.mul(args[1], builder.extract_value(array.shape, 1))
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(array.data, [start]), pointer)
        builder.call(prefetch, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(table, types.int64), code


@compiled
def dot(columns: Array, words: Array, sums: Array) -> None:
    """Add Σ_i columns[j, i]·words[i] to sums[j]; columns are int16 or int32, two of them at a time."""
    s, n = columns.shape
    high = np.empty(PANEL, dtype=np.int64)
    for start in range(0, n, PANEL):
        stop = min(n, start + PANEL)
        for i in range(start, stop):
            high[i - start] = np.int64((at(words, i) + _HALF) >> _WORD)
        for j in range(0, s, 2):
            other = min(j + 1, s - 1)
            low_j, high_j, low_k, high_k = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            for i in range(start, stop):
                q, p = np.int64(load(columns, j, i)), np.int64(load(columns, other, i))
                first, second = np.int64(np.int32(at(words, i))), np.int64(np.int32(at(high, i - start)))
                low_j += q * first
                high_j += q * second
                low_k += p * first
                high_k += p * second
            sums[j] += np.uint64(low_j) + (np.uint64(high_j) << _WORD)
            if other > j:
                sums[other] += np.uint64(low_k) + (np.uint64(high_k) << _WORD)


@compiled
def dot_words(columns: Array, words: Array, sums: Array) -> None:
    """Add Σ_i columns[j, i]·words[i] to sums[j]; columns are words, two of them at a time."""
    s, n = columns.shape
    for start in range(0, n, PANEL):
        stop = min(n, start + PANEL)
        for j in range(0, s, 2):
            other = min(j + 1, s - 1)
            total_j, total_k = np.uint64(0), np.uint64(0)
            for i in range(start, stop):
                word = at(words, i)
                total_j += load(columns, j, i) * word
                total_k += load(columns, other, i) * word
            sums[j] += total_j
            if other > j:
                sums[other] += total_k


@compiled
def residuals(table: Array, angles: Array, words: Array, out: Array) -> None:
    """Write Σ_f table[angles[i], f]·words[i, f] to out[i]."""
    n, width = words.shape
    for i in range(n):
        fetch_row(table, np.int64(at(angles, min(i + AHEAD, n - 1))))
        row = np.int64(at(angles, i))
        total = np.uint64(0)
        for f in range(width):
            total += np.uint64(np.int64(load(table, row, f))) * load(words, i, f)
        out[i] = total


@compiled
def dealt(table: Array, angles: Array, words: Array) -> None:
    """Replace words[i, f] by table[angles[i], f] − words[i, f]."""
    n, width = words.shape
    for i in range(n):
        fetch_row(table, np.int64(at(angles, min(i + AHEAD, n - 1))))
        row = np.int64(at(angles, i))
        for f in range(width):
            words[i, f] = np.uint64(np.int64(load(table, row, f))) - load(words, i, f)


@compiled
def add_products(columns: Array, weights: Array, parts: Array) -> None:
    """Add Σ_j columns[j, i]·weights[j] to parts[i] modulo 2^64, in place. Pairs of columns of weight 0 are not read."""
    s, n = columns.shape
    for start in range(0, n, PANEL):
        stop = min(n, start + PANEL)
        for j in range(0, s, 2):
            other = min(j + 1, s - 1)
            weight = weights[other] if other > j else np.int64(0)
            if weights[j] == 0 and weight == 0:
                continue
            low_j, low_k = np.int64(np.int32(weights[j])), np.int64(np.int32(weight))
            high_j = np.int64(np.int32((weights[j] - low_j) >> 32))
            high_k = np.int64(np.int32((weight - low_k) >> 32))
            for i in range(start, stop):
                q, p = np.int64(load(columns, j, i)), np.int64(load(columns, other, i))
                put(parts, i, at(parts, i) + (q * low_j + p * low_k) + ((q * high_j + p * high_k) << 32))


@compiled
def rounded(parts: Array, shift: int, limit: int, out: Array) -> None:
    """Write rint(min(max(parts[i] + shift, −limit), limit)/2^32) modulo 2^16 to out[i]."""
    for i in range(len(parts)):
        part = min(max(at(parts, i) + shift, -limit), limit)
        out[i] = np.uint16(((part + (1 << 31)) >> 32) & 0xFFFF)


@compiled
def capped(X: Array, centre: Array, scale: Array, limit: int, out: Array) -> int:
    """Write rint(t_i·scale_j·(X[j, i] − centre[j])), t_i ≤ 1 such that Σ_j out[j, i]² ≤ limit; count the rows with t_i < 1."""
    p, n = X.shape
    row = np.empty(p)
    cut = 0
    bound = np.sqrt(np.float64(limit))
    for i in range(n):
        square = 0.0
        for j in range(p):
            row[j] = scale[j] * (X[j, i] - centre[j])
            square += row[j] * row[j]
        if not square < np.inf:
            for j in range(p):
                out[j, i] = 0
            cut += 1
            continue
        shrink = 1.0
        if square > bound * bound:
            shrink = bound / np.sqrt(square)
        while True:
            total = np.int64(0)
            for j in range(p):
                value = np.int64(np.rint(shrink * row[j]))
                total += value * value
                out[j, i] = value
            if total <= limit:
                break
            shrink *= 1.0 - 2.0**-20
        if shrink < 1.0:
            cut += 1
    return cut


@compiled
def small(X: Array, scale: Array, out: Array) -> None:
    """Write rint(X[j, i]·scale[j]) within ±2^14 to out[j, i]; NaN becomes 0."""
    p, n = X.shape
    for j in range(p):
        for i in range(n):
            value = X[j, i] * scale[j]
            if value != value:
                value = 0.0
            out[j, i] = np.int16(np.rint(min(max(value, -_UNIT), _UNIT)))


@compiled
def cross(left: Array, right: Array, sums: Array) -> None:
    """Add Σ_i left[j, i]·right[k, i] to sums[j, k]; left holds integers or words, right words."""
    p, n = left.shape
    q = right.shape[0]
    for start in range(0, n, CROSS_PANEL):
        stop = min(n, start + CROSS_PANEL)
        for j in range(p):
            for k in range(q):
                total = np.uint64(0)
                for i in range(start, stop):
                    total += np.uint64(np.int64(load(left, j, i))) * load(right, k, i)
                sums[j, k] += total
