"""Compiled loops of vfl.kernels.sparse. They read only stored entries, one column after another.

They return the same integers as vfl.kernels.dense_loops for columns in which all other entries are 0. Such an entry adds
exactly 0 to a squared norm, to a linear predictor and to a sum. All other IEEE operations have equal operands and equal order,
since linear predictors and squared norms are summed column by column. The proof in vfl.kernels.dense_loops therefore covers
these loops.

by : centres, scales, cap and grid of the sums (vfl.kernels.geometry.Geometry). scratch : (2, n) zeros, which are zeros again
    when a loop returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vfl.kernels.compile import MAGIC, compiled
from vfl.kernels.dense_loops import capped, clamped, clipped, half_in_steps, square_in_steps, weight
from vfl.kernels.records import add_bits, unbiased

if TYPE_CHECKING:
    from vfl.base.types import Integers, Matrix, Vector
    from vfl.kernels.geometry import Geometry


class Entries(NamedTuple):
    """Stored entries of s columns. Column j has the entries first[j] to last[j] − 1 of data and rows, with no row twice.

    data, rows : (nnz,). first, last : (s,).
    """

    data: Matrix
    rows: Integers
    first: Integers
    last: Integers


_DONE = -1.0  # replaces the squared norm of a record whose weight is already clipped


@compiled
def between(rows: Integers, starts: Integers, start: int, stop: int) -> tuple[Integers, Integers]:
    """Return (first, last), (s,) each: the entries in rows [start, stop) of each column j, among starts[j] to starts[j + 1]."""
    s = starts.size - 1
    first, last = np.empty(s, np.int64), np.empty(s, np.int64)
    for j in range(s):
        own = rows[starts[j] : starts[j + 1]]
        first[j] = starts[j] + np.searchsorted(own, start)
        last[j] = starts[j] + np.searchsorted(own, stop)
    return first, last


@compiled
def forward(columns: Entries, delta: Vector, v: Vector) -> None:
    """Add X_S Δ to v, in place. Columns with Δ_j = 0 are not read."""
    data, rows, first, last = columns
    for j in range(delta.size):
        d = delta[j]
        if d != 0.0:
            for k in range(first[j], last[j]):
                v[rows[k]] += d * data[k]


@compiled
def singles(columns: Entries, v: Vector, y: Vector, loss: int, by: Geometry) -> Integers:
    """Return Σ_i rint(clamp(t_ij r_i, ±κ)/g). Each column j is clipped separately."""
    data, rows, first, last = columns
    s, clip, per_grid = first.size, by.cap, 1.0 / by.grid
    out = np.zeros(s, np.int64)
    for j in range(s):
        a, q = by.scale[j], 0
        for k in range(first[j], last[j]):
            i = rows[k]
            r = weight(v[i], y[i], loss)
            q = add_bits(q, clamped((a * data[k]) * r, r, clip, per_grid) + MAGIC)
        out[j] = unbiased(q, last[j] - first[j])
    return out


@compiled
def gradient(columns: Entries, v: Vector, y: Vector, loss: int, by: Geometry, scratch: Matrix) -> Integers:
    """Return Σ_i rint(clip(scale ∘ r_i x_i)/g), where the clip bounds the norm over all s columns."""
    data, rows, first, last = columns
    s, scale, clip, per_grid = first.size, by.scale, by.cap, 1.0 / by.grid
    if s == 1:
        return singles(columns, v, y, loss, by)
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
def capped_gradient(columns: Entries, v: Vector, bounds: Vector, loss: int, by: Geometry) -> Integers:
    """Return Σ_i rint(scale ∘ ρ_i x_i/g), with ρ_i capped at ±abs(bounds_i)."""
    data, rows, first, last = columns
    s, per_grid = first.size, 1.0 / by.grid
    out = np.zeros(s, np.int64)
    for j in range(s):
        a, q = by.scale[j], 0
        for k in range(first[j], last[j]):
            i = rows[k]
            c = (a * data[k]) * (capped(v[i], bounds[i], loss) * per_grid)
            q = add_bits(q, (c if c == c else 0.0) + MAGIC)
        out[j] = unbiased(q, last[j] - first[j])
    return out


@compiled
def plain_gradient(columns: Entries, v: Vector, y: Vector, loss: int) -> Vector:
    """Return Σ_i r_i x_i."""
    data, rows, first, last = columns
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
            q = add_bits(q, half_in_steps(data[k], half, per_grid))
        out[j] = unbiased(q, starts[j + 1] - starts[j])
    return out


@compiled
def second_moments(data: Matrix, starts: Integers, cap: Vector, per_grid: float) -> Integers:
    """Return Σ_i rint(min(x_ij²/cap_j, 1)/g); NaN counts as 0."""
    out = np.zeros(cap.size, np.int64)
    for j in range(cap.size):
        q, per_cap = 0, 1.0 / cap[j]
        for k in range(starts[j], starts[j + 1]):
            q = add_bits(q, square_in_steps(data[k], per_cap, per_grid))
        out[j] = unbiased(q, starts[j + 1] - starts[j])
    return out


@compiled
def plain_moments(data: Matrix, starts: Integers) -> Matrix:
    """Return Σ_i x_ij and Σ_i x_ij², (2, s)."""
    s = starts.size - 1
    out = np.zeros((2, s))
    for j in range(s):
        for k in range(starts[j], starts[j + 1]):
            x = np.float64(data[k])
            out[0, j] += x
            out[1, j] += x * x
    return out


@compiled
def record_norms(columns: Entries, scale: Vector, out: Vector) -> None:
    """Add Σ_j (scale_j x_ij)² to out, (n,), in place."""
    data, rows, first, last = columns
    for j in range(scale.size):
        for k in range(first[j], last[j]):
            t = scale[j] * np.float64(data[k])
            out[rows[k]] += t * t
