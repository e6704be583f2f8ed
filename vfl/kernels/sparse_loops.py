"""Compiled loops of vfl.kernels.sparse. They read stored entries only, one column after another.

They give the same integers as vfl.kernels.dense_loops. There, an entry that is not stored here is 0: it adds 0 to a squared
norm, 0 to a margin (exactly) and rint(0) = 0 to a sum. All other IEEE operations have the same operands and the same order,
since margins and squared norms are summed column by column. So the proof of vfl.kernels.dense_loops covers these loops.

columns : data (nnz,), rows (nnz,), and first, last (s,). Column j has the entries first[j] to last[j] − 1 of data and rows,
    no row twice.
scratch : (2, n) zeros; they are zeros again when a loop returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.kernels.compile import MAGIC, compiled
from vfl.kernels.dense_loops import capped, clamped, clipped, weight
from vfl.kernels.records import add_bits, unbiased

if TYPE_CHECKING:
    from vfl.types import Integers, Matrix, Vector

_DONE = -1.0  # replaces the squared norm of a record whose weight is already clipped


@compiled
def between(rows: Integers, starts: Integers, start: int, stop: int) -> tuple[Integers, Integers]:
    """Return (first, last), (s,) each, of the entries in rows [start, stop) of columns starts[j] to starts[j + 1]."""
    s = starts.size - 1
    first, last = np.empty(s, np.int64), np.empty(s, np.int64)
    for j in range(s):
        own = rows[starts[j] : starts[j + 1]]
        first[j] = starts[j] + np.searchsorted(own, start)
        last[j] = starts[j] + np.searchsorted(own, stop)
    return first, last


@compiled
def forward(data: Matrix, rows: Integers, first: Integers, last: Integers, delta: Vector, v: Vector) -> None:
    """Add X_S Δ to v, in place; columns with Δ_j = 0 are not read."""
    for j in range(delta.size):
        d = delta[j]
        if d != 0.0:
            for k in range(first[j], last[j]):
                v[rows[k]] += d * data[k]


@compiled
def singles(
    data: Matrix,
    rows: Integers,
    first: Integers,
    last: Integers,
    v: Vector,
    y: Vector,
    loss: int,
    scale: Vector,
    clip: float,
    per_grid: float,
) -> Integers:
    """Return Σ_i rint(clamp(t_ij r_i, ±κ)/g) for every column j, clipped by itself."""
    s = first.size
    out = np.zeros(s, np.int64)
    for j in range(s):
        a, q = scale[j], 0
        for k in range(first[j], last[j]):
            i = rows[k]
            r = weight(v[i], y[i], loss)
            q = add_bits(q, clamped((a * data[k]) * r, r, clip, per_grid) + MAGIC)
        out[j] = unbiased(q, last[j] - first[j])
    return out


@compiled
def gradient(
    data: Matrix,
    rows: Integers,
    first: Integers,
    last: Integers,
    v: Vector,
    y: Vector,
    loss: int,
    scale: Vector,
    clip: float,
    per_grid: float,
    scratch: Matrix,
) -> Integers:
    """Return Σ_i rint(clip(scale ∘ r_i x_i)/g), the records clipped by the norm over all s columns."""
    s = first.size
    if s == 1:
        return singles(data, rows, first, last, v, y, loss, scale, clip, per_grid)
    out = np.zeros(s, np.int64)
    h2, r = scratch[0], scratch[1]
    for j in range(s):
        for k in range(first[j], last[j]):
            t = scale[j] * data[k]
            h2[rows[k]] += t * t
    for j in range(s):
        a, q = scale[j], 0
        for k in range(first[j], last[j]):
            i = rows[k]
            if h2[i] != _DONE:
                r[i] = clipped(weight(v[i], y[i], loss), h2[i], clip, per_grid)
                h2[i] = _DONE
            c = (a * data[k]) * r[i]
            q = add_bits(q, (c if c == c else 0.0) + MAGIC)
        out[j] = unbiased(q, last[j] - first[j])
    for j in range(s):
        for k in range(first[j], last[j]):
            h2[rows[k]] = 0.0
            r[rows[k]] = 0.0
    return out


@compiled
def capped_gradient(
    data: Matrix,
    rows: Integers,
    first: Integers,
    last: Integers,
    v: Vector,
    loss: int,
    scale: Vector,
    bounds: Vector,
    per_grid: float,
) -> Integers:
    """Return Σ_i rint(scale ∘ ρ_i x_i/g), ρ_i within ±abs(bounds_i)."""
    s = first.size
    out = np.zeros(s, np.int64)
    for j in range(s):
        a, q = scale[j], 0
        for k in range(first[j], last[j]):
            i = rows[k]
            c = (a * data[k]) * (capped(v[i], bounds[i], loss) * per_grid)
            q = add_bits(q, (c if c == c else 0.0) + MAGIC)
        out[j] = unbiased(q, last[j] - first[j])
    return out


@compiled
def plain_gradient(
    data: Matrix, rows: Integers, first: Integers, last: Integers, v: Vector, y: Vector, loss: int
) -> Vector:
    """Return Σ_i r_i x_i."""
    s = first.size
    out = np.zeros(s)
    for j in range(s):
        u = 0.0
        for k in range(first[j], last[j]):
            i = rows[k]
            u += weight(v[i], y[i], loss) * data[k]
        out[j] = u
    return out


@compiled
def first_moments(data: Matrix, starts: Integers, reach: Vector, per_grid: float) -> Integers:
    """Return Σ_i rint(clamp(x_ij/B_j, ±1)/(2g)); NaN counts as 0."""
    out = np.zeros(reach.size, np.int64)
    for j in range(reach.size):
        q, half = 0, 0.5 / reach[j]
        for k in range(starts[j], starts[j + 1]):
            c = data[k] * half
            c = 0.5 if c > 0.5 else c
            c = -0.5 if c < -0.5 else c
            c = c if c == c else 0.0
            q = add_bits(q, c * per_grid + MAGIC)
        out[j] = unbiased(q, starts[j + 1] - starts[j])
    return out


@compiled
def second_moments(data: Matrix, starts: Integers, cap: Vector, per_grid: float) -> Integers:
    """Return Σ_i rint(min(x_ij²/cap_j, 1)/g); NaN counts as 0."""
    out = np.zeros(cap.size, np.int64)
    for j in range(cap.size):
        q, per_cap = 0, 1.0 / cap[j]
        for k in range(starts[j], starts[j + 1]):
            x = np.float64(data[k])
            c = x * x * per_cap
            c = 1.0 if c > 1.0 else c
            c = c if c >= 0.0 else 0.0
            q = add_bits(q, c * per_grid + MAGIC)
        out[j] = unbiased(q, starts[j + 1] - starts[j])
    return out


@compiled
def plain_moments(data: Matrix, starts: Integers) -> Matrix:
    """Return (2, s): Σ_i x_ij and Σ_i x_ij²."""
    s = starts.size - 1
    out = np.zeros((2, s))
    for j in range(s):
        for k in range(starts[j], starts[j + 1]):
            x = np.float64(data[k])
            out[0, j] += x
            out[1, j] += x * x
    return out


@compiled
def record_norms(data: Matrix, rows: Integers, first: Integers, last: Integers, scale: Vector, out: Vector) -> None:
    """Add Σ_j (scale_j x_ij)² to out, (n,), in place."""
    for j in range(scale.size):
        for k in range(first[j], last[j]):
            t = scale[j] * np.float64(data[k])
            out[rows[k]] += t * t
