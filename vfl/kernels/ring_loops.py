"""Compiled loops of vfl.kernels.ring: products and sums of integers modulo 2^64, called elements.

Elements are uint64; their sums and products wrap. The loops read all columns of one short panel of records before the next
panel: processors prefetch about ten columns that advance together, but not the beginnings of long panels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.kernels.compile import compiled
from vfl.kernels.records import at, fetch_row, load

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

PANEL = 512
"""Number of records per panel: their 64-bit integers stay in the first-level cache while all columns are multiplied by them."""
CROSS_PANEL = 512
"""Number of records per panel for which the 64-bit integers of all columns stay in the second-level cache."""
AHEAD = 24
"""Number of records processed between the prefetch of a table entry and its use."""
_UNIT = 16384.0


@compiled
def dot(columns: Array, elements: Array, sums: Array) -> None:
    """Add Σ_i columns[j, i]·elements[i] to sums[j]. Two columns are read at a time. Columns are int16, int32 or uint64."""
    s, n = columns.shape
    for start in range(0, n, PANEL):
        some = elements[start : start + PANEL]
        for j in range(0, s, 2):
            k = min(j + 1, s - 1)
            left, right = columns[j, start : start + PANEL], columns[k, start : start + PANEL]
            first, second = np.uint64(0), np.uint64(0)
            for i in range(len(some)):
                first += np.uint64(np.int64(left[i])) * some[i]
                second += np.uint64(np.int64(right[i])) * some[i]
            sums[j] += first
            if k > j:
                sums[k] += second


@compiled
def residuals(table: Array, angles: Array, elements: Array, out: Array) -> None:
    """Write Σ_f table[angles[i], f]·elements[i, f] to out[i]."""
    n, width = elements.shape
    for i in range(n):
        fetch_row(table, np.int64(at(angles, min(i + AHEAD, n - 1))))
        row, total = np.int64(at(angles, i)), np.uint64(0)
        for f in range(width):
            total += np.uint64(np.int64(load(table, row, f))) * load(elements, i, f)
        out[i] = total


@compiled
def moments(table: Array, angles: Array, elements: Array, sums: Array) -> None:
    """Add the shares of all records' moments to sums: of cos f(δ − ρ) at even places, of sin f(δ − ρ) at odd ones."""
    n, width = elements.shape
    for i in range(n):
        fetch_row(table, np.int64(at(angles, min(i + AHEAD, n - 1))))
        row = np.int64(at(angles, i))
        for f in range(0, width, 2):
            cosine, sine = np.uint64(np.int64(load(table, row, f))), np.uint64(np.int64(load(table, row, f + 1)))
            C, S = load(elements, i, f), load(elements, i, f + 1)
            sums[f] += cosine * C + sine * S
            sums[f + 1] += sine * C - cosine * S


@compiled
def dealt(table: Array, angles: Array, elements: Array) -> None:
    """Replace elements[i, f] by table[angles[i], f] − elements[i, f]."""
    n, width = elements.shape
    for i in range(n):
        fetch_row(table, np.int64(at(angles, min(i + AHEAD, n - 1))))
        row = np.int64(at(angles, i))
        for f in range(width):
            elements[i, f] = np.uint64(np.int64(load(table, row, f))) - load(elements, i, f)


@compiled
def add_products(columns: Array, weights: Array, parts: Array) -> None:
    """Add Σ_j columns[j, i]·weights[j] to parts[i] modulo 2^64, in place. Columns of weight 0 are not read."""
    used, elements = np.flatnonzero(weights), weights.view(np.uint64)
    totals = parts.view(np.uint64)
    whole = len(used) - len(used) % 4
    for start in range(0, len(parts), PANEL):
        out, some = totals[start : start + PANEL], columns[:, start : start + PANEL]
        for c in range(0, whole, 4):
            j, k, u, v = used[c], used[c + 1], used[c + 2], used[c + 3]
            x_j, x_k, x_u, x_v = some[j], some[k], some[u], some[v]
            for i in range(len(out)):
                near = np.uint64(np.int64(x_j[i])) * elements[j] + np.uint64(np.int64(x_k[i])) * elements[k]
                far = np.uint64(np.int64(x_u[i])) * elements[u] + np.uint64(np.int64(x_v[i])) * elements[v]
                out[i] += near + far
        for c in range(whole, len(used)):
            x_j, element = some[used[c]], elements[used[c]]
            for i in range(len(out)):
                out[i] += np.uint64(np.int64(x_j[i])) * element


@compiled
def rounded(parts: Array, shift: int, limit: int, out: Array) -> None:
    """Write rint(min(max(parts[i] + shift, −limit), limit)/2^32) modulo 2^16 to out[i]."""
    for i in range(len(parts)):
        part = min(max(at(parts, i) + shift, -limit), limit)
        out[i] = np.uint16(((part + (1 << 31)) >> 32) & 0xFFFF)


@compiled
def capped(X: Array, centre: Array, scale: Array, limit: int, out: Array) -> int:
    """Write rint(t_i·scale_j·(X[j, i] − centre[j])) to out, with t_i ≤ 1 chosen so that Σ_j out[j, i]² ≤ limit.

    Return the number of rows with t_i < 1, including rows that are not finite.
    """
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
    """Add Σ_i left[j, i]·right[k, i] to sums[j, k]. left : int16, int32 or uint64. right : uint64."""
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
