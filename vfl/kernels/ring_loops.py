"""The compiled loops of vfl.kernels.ring: products and sums of words modulo 2^64.

Words are uint64, whose sums and products wrap. Machines multiply numbers of 16 or 32 bits in vectors, but few multiply words:
a word is therefore split. All columns of one short block of records are read before the next block, since a machine fetches
ten columns that advance together ahead of time, but not the beginnings of long panels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from vfl.kernels.compile import compiled, inline, load, part
from vfl.kernels.ring_blocks import (
    AT,
    BLOCK,
    COLUMNS,
    DIGIT,
    DIGITS,
    LANES,
    WORDS,
    add_digits,
    add_limbs,
    add_words,
    four_rows,
    split,
)
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
AHEAD = 24
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
    """Prefetch the first and the last entry of a row of a table into the first-level cache."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: list[ir.Value]) -> ir.Value:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        width = builder.extract_value(array.shape, 1)
        first = builder.mul(args[1], width)
        last = builder.add(first, builder.sub(width, ir.IntType(64)(1)))
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for entry in (first, last):
            address = builder.bitcast(builder.gep(array.data, [entry]), pointer)
            builder.call(prefetch, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(table, types.int64), code


@compiled
def dot_short(columns: Array, words: Array, sums: Array) -> None:
    """Add Σ_i columns[j, i]·words[i] to sums[j]; columns are int16, two of them at a time."""
    s, n = columns.shape
    limbs, totals = np.empty((len(AT), BLOCK), dtype=np.int16), np.zeros((s + 1, 8), dtype=np.int64)
    whole = n - n % BLOCK
    for start in range(0, whole, BLOCK):
        split(words, start, limbs)
        for j in range(0, s, 2):
            add_limbs(columns, j, min(j + 1, s - 1), start, limbs, totals)
    finish(columns, words, whole, totals, sums)


@part
def finish(columns: Array, words: Array, first: int, totals: Array, sums: Array) -> None:
    """Add to sums the totals of the records before `first`, and the products of the others."""
    s, n = columns.shape
    for j in range(s):
        total = np.uint64(0)
        for i in range(first, n):
            total += np.uint64(np.int64(load(columns, j, i))) * at(words, i)
        for lane in range(8):
            total += np.uint64(totals[j, lane])
        sums[j] += total


@compiled
def dot_wide(columns: Array, words: Array, sums: Array) -> None:
    """Add Σ_i columns[j, i]·words[i] to sums[j]; columns are int32, two of them at a time."""
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
    totals = np.zeros((s + 1, 8), dtype=np.int64)
    whole = n - n % WORDS
    for start in range(0, whole, WORDS):
        for j in range(0, s, 2):
            add_words(columns, j, min(j + 1, s - 1), words, start, totals)
    finish(columns, words, whole, totals, sums)


@compiled
def residuals(table: Array, angles: Array, words: Array, out: Array) -> None:
    """Write Σ_f table[angles[i], f]·words[i, f] to out[i]."""
    n, width = words.shape
    whole, first = n - n % 4, width - width % 4
    for start in range(0, whole, 4):
        for i in range(start, start + 4):
            fetch_row(table, np.int64(at(angles, min(i + AHEAD, n - 1))))
        four_rows(table, angles, words, start, out)
    for i in range(whole, n):
        out[i] = 0
    for i in range(whole if first == width else 0, n):
        row, total = np.int64(at(angles, i)), at(out, i)
        for f in range(first if i < whole else 0, width):
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
    """Add Σ_j columns[j, i]·weights[j] to parts[i] modulo 2^64, in place. Columns of weight 0 are not read."""
    n = columns.shape[1]
    used = np.flatnonzero(weights)
    chosen, digits = np.empty(COLUMNS, dtype=np.int64), np.empty((6, COLUMNS), dtype=np.int16)
    whole = n - n % LANES
    for begin in range(0, len(used), COLUMNS):
        count = min(COLUMNS, len(used) - begin)
        most = 0
        for c in range(count):
            chosen[c] = used[begin + c]
            most = max(most, write_digits(weights[chosen[c]], digits, c))
        if count % 2:
            chosen[count] = chosen[count - 1]
            digits[:, count] = 0
            count += 1
        for i in range(0, whole, LANES):
            for f in range(0, most, DIGITS):
                add_digits(columns, chosen, count, digits, f, i, parts)
    for i in range(whole, n):
        for j in used:
            put(parts, i, at(parts, i) + np.int64(load(columns, j, i)) * weights[j])


@part
def write_digits(weight: int, digits: Array, c: int) -> int:
    """Write to digits[:, c] the f with weight = Σ_f digit_f·2^(12f) modulo 2^64, |digit| ≤ 2^11; return how many it needs."""
    needed, left = 0, weight
    for f in range(6):
        digit = ((left + 2048) & 4095) - 2048
        digits[f, c] = digit
        left = (left - digit) >> DIGIT
        if digit != 0:
            needed = f + 1
    return needed


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
