"""The compiled loops of vfl.kernels.ring: products and sums of words modulo 2^64.

Words are uint64, whose sums and products wrap. A product of a word with a small integer is split into products of the two
halves of the word: the machine multiplies 32-bit numbers in vectors, but not 64-bit ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.kernels.compile import compiled

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

    Array = npt.NDArray[Any]

PANEL = 4096
"""Records whose words stay in the first-level cache while all columns are multiplied by them."""


@compiled
def dot(columns: Array, words: Array, sums: Array) -> None:
    """Add Σ_i columns[j, i]·words[i] to sums[j]; columns are int16 or int32."""
    s, n = columns.shape
    low = np.empty(PANEL, dtype=np.int32)
    high = np.empty(PANEL, dtype=np.int32)
    for start in range(0, n, PANEL):
        size = min(PANEL, n - start)
        for i in range(size):
            word = words[start + i]
            low[i] = np.int32(word & np.uint64(0xFFFFFFFF))
            high[i] = np.int32((word + (np.uint64(1) << np.uint64(31))) >> np.uint64(32))
        for j in range(s):
            column = columns[j, start : start + size]
            first, second = np.int64(0), np.int64(0)
            for i in range(size):
                q = np.int64(column[i])
                first += q * np.int64(low[i])
                second += q * np.int64(high[i])
            sums[j] += np.uint64(first) + (np.uint64(second) << np.uint64(32))


@compiled
def dot_words(columns: Array, words: Array, sums: Array) -> None:
    """Add Σ_i columns[j, i]·words[i] to sums[j]; columns are words."""
    s, n = columns.shape
    for start in range(0, n, PANEL):
        stop = min(n, start + PANEL)
        for j in range(s):
            total = np.uint64(0)
            for i in range(start, stop):
                total += columns[j, i] * words[i]
            sums[j] += total


@compiled
def residuals(table: Array, angles: Array, words: Array, out: Array) -> None:
    """Write Σ_f table[angles[i], f]·words[i, f] to out[i]."""
    n, width = words.shape
    for i in range(n):
        row = np.int64(angles[i])
        total = np.uint64(0)
        for f in range(width):
            total += np.uint64(np.int64(table[row, f])) * words[i, f]
        out[i] = total


@compiled
def dealt(table: Array, angles: Array, words: Array) -> None:
    """Replace words[i, f] by table[angles[i], f] − words[i, f]."""
    n, width = words.shape
    for i in range(n):
        row = np.int64(angles[i])
        for f in range(width):
            words[i, f] = np.uint64(np.int64(table[row, f])) - words[i, f]


@compiled
def angles(columns: Array, weights: Array, shift: int, limit: int, out: Array) -> None:
    """Write rint(min(max(Σ_j columns[j, i]·weights[j] + shift, −limit), limit)/2^32) modulo 2^16 to out[i]."""
    s, n = columns.shape
    parts = np.empty(PANEL, dtype=np.int64)
    for start in range(0, n, PANEL):
        size = min(PANEL, n - start)
        for i in range(size):
            parts[i] = shift
        for j in range(s):
            weight = weights[j]
            column = columns[j, start : start + size]
            for i in range(size):
                parts[i] += np.int64(column[i]) * weight
        for i in range(size):
            part = min(max(parts[i], -limit), limit)
            out[start + i] = np.uint16(((part + (1 << 31)) >> 32) & 0xFFFF)


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
            out[j, i] = np.int16(np.rint(min(max(value, -16384.0), 16384.0)))


@compiled
def cross(left: Array, right: Array, sums: Array) -> None:
    """Add Σ_i left[j, i]·right[l, i] to sums[j, l]; left holds small integers or words, right words."""
    p, n = left.shape
    q = right.shape[0]
    for start in range(0, n, 512):
        stop = min(n, start + 512)
        for j in range(p):
            for k in range(q):
                total = np.uint64(0)
                for i in range(start, stop):
                    total += np.uint64(np.int64(left[j, i])) * right[k, i]
                sums[j, k] += total
