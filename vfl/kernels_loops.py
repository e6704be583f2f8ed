"""The compiled loops behind vfl.kernels, over chunks of rows that stay in the second-level cache.

Why the guarantee of vfl.kernels holds. With u = 2⁻⁵³ and t_j the computed products scale_j·(x_ij − c_j):
(1) h² = fl(Σ t_j²) ≥ (1 − u)^s ‖t‖² − s·2⁻¹⁰⁷⁵; a record with h² < 1e-280 contributes 0, so what underflows is below
1e-43·s of the sum. (2) |r| is clamped to fl(κ/fl(√h²)) ≤ (1 + u)²κ/h; with κ in [1e-100, 1e100] it neither over-
nor underflows, and is 0 when h² is infinite. (3) Dividing by g, a power of two, is exact, or leaves a number too small
to round to anything but 0; the product with t_j is rounded once more. Together
‖c‖ ≤ (κ/g)(1 + (s/2 + 4)u) ≤ (κ/g)(1 + 8su) for s ≥ 1. (4) rint moves each coordinate by at most ½. One column alone
needs no norm: the product itself is clamped to ±κ, without slack.

Exact sums are IEEE double without contraction or reassociation, so that the integers do not depend on how the compiler
splits a loop, nor on the machine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.kernels_bits import MAGIC, add_bits, compiled, load, power_of_two, summing, unbiased

if TYPE_CHECKING:
    from vfl.types import Integers, Matrix, Vector

WEIGHTS, SQUARED, LOGISTIC = 0, 1, 2

PANEL = 1 << 14  # rows of one partial float sum: threads take whole panels, so that they cannot change the result

TINY, HUGE = 1e-280, 1e300


@compiled
def falling_sigmoid(m: float) -> float:
    """Return 1/(1 + e^m) within 1e-15 relative for m ≤ 708, then 0; NaN stays NaN. No branch, so that it vectorises.

    m = k·ln 2 + f, e^f = (Q + fP)/(Q − fP) (Cephes exp.c), so that one division serves exp and reciprocal.
    """
    m = 710.0 if m > 710.0 else m
    m = -708.0 if m < -708.0 else m
    k_biased = m * 1.4426950408889634 + (MAGIC + 1023.0)
    k = k_biased - (MAGIC + 1023.0)
    f = (m - k * 6.93145751953125e-1) - k * 1.42860682030941723212e-6
    ff = f * f
    fP = f * ((1.26177193074810590878e-4 * ff + 3.02994407707441961300e-2) * ff + 9.99999999999999999910e-1)
    Q = (3.00198505138664455042e-6 * ff + 2.52448340349684104192e-3) * ff + 2.27265548208155028766e-1
    Q = Q * ff + 2.0
    falling: float = (Q - fP) / ((Q - fP) + power_of_two(k_biased) * (Q + fP))
    return falling


@compiled
def weights(v: Vector, y: Vector, loss: int, r: Vector) -> None:
    """Write r_i = ∂ℓ(v_i, y_i)/∂v_i. A new loss is a constant above and a loop here."""
    if loss == SQUARED:
        for i in range(v.size):
            r[i] = v[i] - y[i]
    elif loss == LOGISTIC:
        for i in range(v.size):
            r[i] = -y[i] * falling_sigmoid(y[i] * v[i])
    else:
        for i in range(v.size):
            r[i] = v[i]


@compiled
def _chunk(s: int) -> int:
    """Return how many rows of s columns are worked on while they stay in the second-level cache. Divides PANEL.

    Long runs of a column are what the machine foresees by itself; chunks of the first-level cache's size cost a quarter
    more, with or without prefetching by hand.
    """
    rows = 4096
    while rows > 128 and rows * s > 65536:
        rows //= 2
    return rows


@compiled
def _add_forward(columns: Matrix, delta: Vector, shift: float, v: Vector, start: int, stop: int) -> None:
    """Add X_S Δ + shift to v, rows [start, stop), in place; columns that did not move are not read."""
    s = columns.shape[0]
    m = stop - start
    part = v[start:stop]
    if shift != 0.0:
        for i in range(m):
            part[i] += shift
    for j in range(0, s - 3, 4):
        d0, d1, d2, d3 = delta[j], delta[j + 1], delta[j + 2], delta[j + 3]
        if d0 == 0.0 and d1 == 0.0 and d2 == 0.0 and d3 == 0.0:
            continue
        for i in range(m):
            moved = part[i] + d0 * load(columns, j, start + i)
            moved = moved + d1 * load(columns, j + 1, start + i)
            moved = moved + d2 * load(columns, j + 2, start + i)
            part[i] = moved + d3 * load(columns, j + 3, start + i)
    for j in range(s - s % 4, s):
        d = delta[j]
        if d != 0.0:
            for i in range(m):
                part[i] += d * load(columns, j, start + i)


@compiled
def _square_norms(columns: Matrix, centre: Vector, scale: Vector, start: int, m: int, h2: Vector) -> None:
    """Write h²_i = ‖scale ∘ (x_i − c)‖² for m rows."""
    s = columns.shape[0]
    for i in range(m):
        h2[i] = 0.0
    for j in range(0, s - 3, 4):
        a0, a1, a2, a3 = scale[j], scale[j + 1], scale[j + 2], scale[j + 3]
        c0, c1, c2, c3 = centre[j], centre[j + 1], centre[j + 2], centre[j + 3]
        for i in range(m):
            t0 = a0 * (load(columns, j, start + i) - c0)
            t1 = a1 * (load(columns, j + 1, start + i) - c1)
            t2 = a2 * (load(columns, j + 2, start + i) - c2)
            t3 = a3 * (load(columns, j + 3, start + i) - c3)
            h2[i] = h2[i] + ((t0 * t0 + t1 * t1) + (t2 * t2 + t3 * t3))
    for j in range(s - s % 4, s):
        a, c = scale[j], centre[j]
        for i in range(m):
            t = a * (load(columns, j, start + i) - c)
            h2[i] = h2[i] + t * t


@compiled
def _clip(r: Vector, h2: Vector, m: int, clip: float, per_grid: float) -> int:
    """Clamp r_i to ±κ/h_i and divide by the grid, in place; return how many norms are NaN or near overflow."""
    refused = 0
    for i in range(m):
        limit = clip / math.sqrt(h2[i])
        limit = limit if h2[i] >= TINY else 0.0
        limit = limit if abs(r[i]) <= HUGE else 0.0
        c = r[i] if r[i] < limit else limit  # NaN takes the limit, which is then 0
        c = c if c > -limit else -limit
        r[i] = c * per_grid
        refused += 0 if h2[i] <= HUGE else 1
    return refused


@compiled
def _add_rounded_four(
    columns: Matrix, centre: Vector, j: int, scale: Vector, r: Vector, start: int, m: int, out: Integers
) -> None:
    """Add Σ_i rint(t_ij r_i) to out for columns j to j + 3."""
    a0, a1, a2, a3 = scale[j], scale[j + 1], scale[j + 2], scale[j + 3]
    c0, c1, c2, c3 = centre[j], centre[j + 1], centre[j + 2], centre[j + 3]
    q0, q1, q2, q3 = 0, 0, 0, 0
    for i in range(m):
        q0 = add_bits(q0, (a0 * (load(columns, j, start + i) - c0)) * r[i] + MAGIC)
        q1 = add_bits(q1, (a1 * (load(columns, j + 1, start + i) - c1)) * r[i] + MAGIC)
        q2 = add_bits(q2, (a2 * (load(columns, j + 2, start + i) - c2)) * r[i] + MAGIC)
        q3 = add_bits(q3, (a3 * (load(columns, j + 3, start + i) - c3)) * r[i] + MAGIC)
    out[j] += unbiased(q0, m)
    out[j + 1] += unbiased(q1, m)
    out[j + 2] += unbiased(q2, m)
    out[j + 3] += unbiased(q3, m)


@compiled
def _add_rounded(
    columns: Matrix, centre: Vector, j: int, scale: Vector, r: Vector, start: int, m: int, out: Integers
) -> None:
    """Add Σ_i rint(t_ij r_i) to out for column j; NaN, which is 0 times an overflow, counts as 0."""
    a, mean, q = scale[j], centre[j], 0
    for i in range(m):
        c = (a * (load(columns, j, start + i) - mean)) * r[i]
        q = add_bits(q, (c if c == c else 0.0) + MAGIC)
    out[j] += unbiased(q, m)


@compiled
def _add_single(
    columns: Matrix,
    centre: Vector,
    scale: Vector,
    clip: float,
    per_grid: float,
    r: Vector,
    start: int,
    m: int,
    out: Integers,
) -> None:
    """Add Σ_i rint(clamp(t_i r_i, ±κ)/g) to out: one column needs no norm."""
    a, mean, q = scale[0], centre[0], 0
    for i in range(m):
        c = (a * (load(columns, 0, start + i) - mean)) * r[i]
        c = clip if c > clip else c
        c = -clip if c < -clip else c
        c = c if c == c else 0.0
        c = c if abs(r[i]) <= HUGE else 0.0
        q = add_bits(q, c * per_grid + MAGIC)
    out[0] += unbiased(q, m)


@compiled
def _add_chunk(
    columns: Matrix,
    centre: Vector,
    scale: Vector,
    clip: float,
    per_grid: float,
    r: Vector,
    h2: Vector,
    out: Integers,
    start: int,
    stop: int,
) -> None:
    """Add the clipped, rounded contributions of rows [start, stop) to out; r is used up."""
    s, m = columns.shape[0], stop - start
    if s == 1:
        _add_single(columns, centre, scale, clip, per_grid, r, start, m, out)
        return
    _square_norms(columns, centre, scale, start, m, h2)
    fours = s - s % 4 if _clip(r, h2, m, clip, per_grid) == 0 else 0
    for j in range(0, fours, 4):
        _add_rounded_four(columns, centre, j, scale, r, start, m, out)
    for j in range(fours, s):
        _add_rounded(columns, centre, j, scale, r, start, m, out)


@compiled
def singles(
    columns: Matrix,
    centre: Vector,
    v: Vector,
    y: Vector,
    loss: int,
    scale: Vector,
    clip: float,
    per_grid: float,
    start: int,
    stop: int,
) -> Integers:
    """Return Σ_i rint(clamp(scale_j r_i (x_ij − c_j), ±κ)/g) over rows [start, stop), every column clipped by itself."""
    rows = _chunk(1)
    out, r = np.zeros(columns.shape[0], np.int64), np.empty(rows)
    for a in range(start, stop, rows):
        b = min(a + rows, stop)
        weights(v[a:b], y[a:b], loss, r)
        for j in range(columns.shape[0]):
            one = slice(j, j + 1)
            _add_single(columns[one], centre[one], scale[one], clip, per_grid, r, a, b - a, out[one])
    return out


@summing
def _add_dots(columns: Matrix, centre: Vector, r: Vector, start: int, stop: int, out: Vector) -> None:
    """Add Σ_i r_i (x_ij − c_j) over rows [start, stop) to out."""
    s, m = columns.shape[0], stop - start
    for j in range(0, s - 3, 4):
        c0, c1, c2, c3 = centre[j], centre[j + 1], centre[j + 2], centre[j + 3]
        u0, u1, u2, u3 = 0.0, 0.0, 0.0, 0.0
        for i in range(m):
            u0 += r[i] * (load(columns, j, start + i) - c0)
            u1 += r[i] * (load(columns, j + 1, start + i) - c1)
            u2 += r[i] * (load(columns, j + 2, start + i) - c2)
            u3 += r[i] * (load(columns, j + 3, start + i) - c3)
        out[j] += u0
        out[j + 1] += u1
        out[j + 2] += u2
        out[j + 3] += u3
    for j in range(s - s % 4, s):
        c, u = centre[j], 0.0
        for i in range(m):
            u += r[i] * (load(columns, j, start + i) - c)
        out[j] += u


@compiled
def forward(columns: Matrix, delta: Vector, shift: float, v: Vector, start: int, stop: int) -> None:
    """Add X_S Δ + shift to v, rows [start, stop), in place."""
    rows = _chunk(columns.shape[0])
    for a in range(start, stop, rows):
        _add_forward(columns, delta, shift, v, a, min(a + rows, stop))


@compiled
def gradient(
    columns: Matrix,
    centre: Vector,
    v: Vector,
    y: Vector,
    loss: int,
    scale: Vector,
    clip: float,
    per_grid: float,
    start: int,
    stop: int,
) -> Integers:
    """Return Σ_i rint(clip(scale ∘ r_i (x_i − c))/g) over rows [start, stop)."""
    rows = _chunk(columns.shape[0])
    out, r, h2 = np.zeros(columns.shape[0], np.int64), np.empty(rows), np.empty(rows)
    for a in range(start, stop, rows):
        b = min(a + rows, stop)
        weights(v[a:b], y[a:b], loss, r)
        _add_chunk(columns, centre, scale, clip, per_grid, r, h2, out, a, b)
    return out


@compiled
def step(
    previous: Matrix,
    delta: Vector,
    shift: float,
    v: Vector,
    y: Vector,
    loss: int,
    columns: Matrix,
    centre: Vector,
    scale: Vector,
    clip: float,
    per_grid: float,
    start: int,
    stop: int,
) -> Integers:
    """Add X_prev Δ + shift to v in place and return the clipped sum at the new v, rows [start, stop), in one pass."""
    rows = _chunk(max(columns.shape[0], previous.shape[0]))
    out, r, h2 = np.zeros(columns.shape[0], np.int64), np.empty(rows), np.empty(rows)
    for a in range(start, stop, rows):
        b = min(a + rows, stop)
        _add_forward(previous, delta, shift, v, a, b)
        weights(v[a:b], y[a:b], loss, r)
        _add_chunk(columns, centre, scale, clip, per_grid, r, h2, out, a, b)
    return out


@compiled
def plain_gradient(
    columns: Matrix, centre: Vector, v: Vector, y: Vector, loss: int, partial: Vector, start: int, stop: int
) -> None:
    """Add Σ_i r_i (x_i − c) of rows [start, stop) to partial, (panels, s), a row a panel; start opens a panel."""
    rows = _chunk(columns.shape[0])
    r = np.empty(rows)
    for a in range(start, stop, rows):
        b = min(a + rows, stop)
        weights(v[a:b], y[a:b], loss, r)
        _add_dots(columns, centre, r, a, b, partial[a // PANEL])


@compiled
def plain_step(
    previous: Matrix,
    delta: Vector,
    shift: float,
    v: Vector,
    y: Vector,
    loss: int,
    columns: Matrix,
    centre: Vector,
    partial: Vector,
    start: int,
    stop: int,
) -> None:
    """Add X_prev Δ + shift to v in place, then as plain_gradient, in one pass."""
    rows = _chunk(columns.shape[0])
    r = np.empty(rows)
    for a in range(start, stop, rows):
        b = min(a + rows, stop)
        _add_forward(previous, delta, shift, v, a, b)
        weights(v[a:b], y[a:b], loss, r)
        _add_dots(columns, centre, r, a, b, partial[a // PANEL])


@compiled
def second_moments(columns: Matrix, cap: Vector, per_grid: float, start: int, stop: int) -> Integers:
    """Return Σ_i rint(min(x_ij²/cap_j, 1)/g) over rows [start, stop); NaN counts as 0."""
    out = np.zeros(columns.shape[0], np.int64)
    for j in range(columns.shape[0]):
        q, per_cap = 0, 1.0 / cap[j]
        for i in range(start, stop):
            x = np.float64(load(columns, j, i))
            c = x * x * per_cap
            c = 1.0 if c > 1.0 else c
            c = c if c >= 0.0 else 0.0
            q = add_bits(q, c * per_grid + MAGIC)
        out[j] = unbiased(q, stop - start)
    return out


@compiled
def first_moments(columns: Matrix, reach: Vector, per_grid: float, start: int, stop: int) -> Integers:
    """Return Σ_i rint(clamp(x_ij/B_j, ±1)/(2g)) over rows [start, stop); NaN counts as 0."""
    out = np.zeros(columns.shape[0], np.int64)
    for j in range(columns.shape[0]):
        q, half = 0, 0.5 / reach[j]
        for i in range(start, stop):
            c = np.float64(load(columns, j, i)) * half
            c = 0.5 if c > 0.5 else c
            c = -0.5 if c < -0.5 else c
            c = c if c == c else 0.0
            q = add_bits(q, c * per_grid + MAGIC)
        out[j] = unbiased(q, stop - start)
    return out
