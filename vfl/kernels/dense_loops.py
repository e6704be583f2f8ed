"""Compiled loops of vfl.kernels.dense. A loop reads a few records at a time, through all columns.

Proof of the guarantee of vfl.kernels.dense. Let u = 2⁻⁵³, and let t_j be the products scale_j·(x_ij − c_j) as computed.

(1) h² = fl(Σ t_j²) ≥ (1 − u)^s ‖t‖² − s·2⁻¹⁰⁷⁵. A record with h² < 1e-280 contributes 0, so terms that underflow are below
    1e-43·s of the sum.
(2) |r| is clamped to fl(κ/fl(√h²)) ≤ (1 + u)²κ/h. With κ in [1e-100, 1e100] this limit neither over- nor underflows. The limit
    is 0 if h² is infinite.
(3) Dividing by g, a power of two, is exact, or gives a number so small that it rounds to 0. The product with t_j is rounded
    once more. Together ‖c‖ ≤ (κ/g)(1 + (s/2 + 4)u) ≤ (κ/g)(1 + 8su) for s ≥ 1.
(4) rint changes each coordinate by at most ½.

A single column needs no norm: the product itself is clamped to ±κ, without slack.

`capped_step` takes bounds of at most fl(κ/fl(√N_i)), where N_i = Σ t_j² over all columns of the record, not only those of the
block. |r| is at most this bound, so ‖c‖ over *all* columns is bounded as in (1) to (4). By Minkowski, this bound also holds for
the contributions of a record to all of its blocks together.

Exact sums use IEEE doubles without contraction or reassociation. The integers therefore depend neither on the machine nor on
the vectors that the compiler uses.

Memory limits the speed, so a loop reads no more columns at once than the processor prefetches. A loop reads at most NEAR
columns side by side over the rows of one panel, then the next columns over the same rows. Margins and weights of the panel
meanwhile stay in the second-level cache. Grouping the columns does not change a bit of the result: the numbers of each record
are computed in the same order, and the order of an integer sum does not matter. A clip per block needs all columns of a record
at once, so that loop prefetches cells instead.

Each function for one record also works on WIDTH records at once (vfl.kernels.records). like : 0.0 for one record, lanes() for
WIDTH records. r : residual or weight of these records. by : geometry of the sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.kernels.compile import MAGIC, compiled, part
from vfl.kernels.geometry import LOGISTIC, SQUARED
from vfl.kernels.records import (
    SUMS,
    WIDTH,
    add_bits,
    add_to,
    align_stack,
    at_least,
    cells,
    entries,
    fetch,
    lanes,
    least,
    load,
    magnitude,
    most,
    power_of_two,
    put,
    root,
    signed_by,
    unbiased,
)

if TYPE_CHECKING:
    from vfl.base.types import Integers, Matrix, Vector
    from vfl.kernels.geometry import Geometry

PANEL = 1 << 14
"""Number of rows per partial sum of floats, and per reading of a group of columns. A thread takes whole panels, so the number
of threads does not change the result."""

NEAR = 6
"""Largest number of columns that a loop reads side by side. With margins and bounds, a loop then reads eight vectors. A
processor prefetches about eight, and columns of 2ᵏ bytes share one set of eight lines in the first-level cache."""

AHEAD = 256
"""Number of rows between the prefetch of a cell and its use, in loops over more than NEAR columns. Any number from 128 to 1,000
gives the same speed."""

TINY, HUGE = 1e-280, 1e300


@part
def falling_odds(m: Any) -> Any:
    """Return (N, E) with 1/(1 + e^m) = N/(N + E), to a relative error of 1e-15 for m ≤ 708. Beyond, E overflows. No branches.

    With m = k·ln 2 + f and e^f = (Q + fP)/(Q − fP) (Cephes exp.c), one division computes the exponential and the reciprocal.
    """
    m = most(-708.0, least(710.0, m))
    k_biased = m * 1.4426950408889634 + (MAGIC + 1023.0)
    k = k_biased - (MAGIC + 1023.0)
    f = (m - k * 6.93145751953125e-1) - k * 1.42860682030941723212e-6
    ff = f * f
    fP = f * ((1.26177193074810590878e-4 * ff + 3.02994407707441961300e-2) * ff + 9.99999999999999999910e-1)
    Q = (3.00198505138664455042e-6 * ff + 2.52448340349684104192e-3) * ff + 2.27265548208155028766e-1
    Q = Q * ff + 2.0
    return Q - fP, power_of_two(k_biased) * (Q + fP)


@part
def falling_sigmoid(m: Any) -> Any:
    """Return 1/(1 + e^m), to a relative error of 1e-15 for m ≤ 708. Return 0 beyond, and NaN for NaN."""
    N, E = falling_odds(m)
    return N / (N + E)


@part
def weight(v: Any, y: Any, loss: int) -> Any:
    """Return r = ∂ℓ(v, y)/∂v. To add a loss, add its code above and a line here."""
    if loss == SQUARED:
        return v - y
    if loss == LOGISTIC:
        return (0.0 - y) * falling_sigmoid(y * v)
    return v


@part
def clipped(r: Any, h2: Any, clip: float, per_grid: float) -> Any:
    """Return r, clamped to ±κ/h and divided by the grid. Return 0 if h is NaN, infinite or tiny, or if r is NaN or huge."""
    limit = clip / root(h2)
    limit = at_least(h2, TINY, limit, 0.0)
    limit = at_least(HUGE, r, limit, 0.0)
    limit = at_least(r, -HUGE, limit, 0.0)
    return most(least(r, limit), 0.0 - limit) * per_grid


@part
def clamped(c: Any, r: Any, clip: float, per_grid: float) -> Any:
    """Return the product c of one column with r, clamped to ±κ and divided by the grid; 0 if c or r is NaN, or r is huge."""
    c = most(-clip, least(clip, c)) * per_grid
    c = at_least(c, c, c, 0.0)
    c = at_least(HUGE, r, c, 0.0)
    return at_least(r, -HUGE, c, 0.0)


@part
def capped(v: Any, bound: Any, loss: int) -> Any:
    """Return the residual ρ, capped at ±abs(bound). Return 0 or NaN if the residual is NaN, and 0 if it is huge.

    LOGISTIC: bound has the sign of the label y, and its absolute value k is at most 1. With q = |∂ℓ/∂v|, the residual is
    ρ = −y·q·min(1, k/max(q, 1 − q)), whose mean at the true probabilities is 0 for any k. With q = N/D and 1 − q = E/D it is
    N·k/max(D·k, N, E), which takes one division. For other losses, v is the residual.
    """
    if loss == LOGISTIC:
        k = magnitude(bound)
        N, E = falling_odds(signed_by(v, bound))
        return signed_by(0.0 - least(k, N * k / most(most((N + E) * k, N), E)), bound)
    bound = at_least(HUGE, v, bound, 0.0)
    bound = at_least(v, -HUGE, bound, 0.0)
    return most(least(v, bound), 0.0 - bound)


@part
def square_in_steps(x: Any, per_cap: float, per_grid: float) -> Any:
    """Return min(x²/cap, 1)/g + MAGIC; NaN counts as 0."""
    c: Any = np.float64(x) * np.float64(x) * per_cap
    c = 1.0 if c > 1.0 else c
    return (c if c >= 0.0 else 0.0) * per_grid + MAGIC


@part
def half_in_steps(x: Any, half: float, per_grid: float) -> Any:
    """Return clamp(x·half, ±½)/g + MAGIC; NaN counts as 0."""
    c: Any = np.float64(x) * half
    c = 0.5 if c > 0.5 else c
    c = -0.5 if c < -0.5 else c
    return (c if c == c else 0.0) * per_grid + MAGIC


@compiled
def weights(v: Vector, y: Vector, loss: int, r: Vector) -> None:
    """Write r_i = ∂ℓ(v_i, y_i)/∂v_i."""
    align_stack()
    whole = v.size - v.size % WIDTH
    for i in range(0, whole, WIDTH):
        put(r, i, weight(entries(v, i, lanes()), entries(y, i, lanes()), loss))
    for i in range(whole, v.size):
        put(r, i, weight(v[i], y[i], loss))


@compiled
def exact_sums(sums: Integers, count: int) -> Integers:
    """Return the integer sums, (s,), from partial sums of bits, (s, SUMS). count : number of contributions per sum."""
    out = np.zeros(sums.shape[0], np.int64)
    for j in range(sums.shape[0]):
        q = np.uint64(0)
        for k in range(SUMS):
            q += np.uint64(sums[j, k])
        out[j] = unbiased(np.int64(q), count)
    return out


@part
def _side_by_side(s: int) -> int:
    """Return the size of a group, if s columns are divided into about equal groups of at most NEAR columns."""
    return -(-s // -(-s // NEAR)) if s > NEAR else max(s, 1)


@compiled
def _room(s: int, n: int) -> Vector:
    """Return a buffer with one number per row of a panel. The buffer is empty if all columns are read side by side."""
    return np.empty(min(PANEL, n) if s > NEAR else 0)


@part
def _advance(columns: Matrix, delta: Vector, moving: Integers, shift: float, v: Vector, i: int, like: Any) -> None:
    """Add X_S Δ + shift to v at i, in place. Only the columns in `moving` are read."""
    at = entries(v, i, like)
    if shift != 0.0:
        at = at + shift
    for j in moving:
        at = at + delta[j] * cells(columns, j, i, like)
    put(v, i, at)


@part
def _advance_panel(
    columns: Matrix, delta: Vector, moving: Integers, shift: float, v: Vector, start: int, stop: int
) -> None:
    """Add X_S Δ + shift to rows [start, stop) of v, all in one panel, in place. Columns are read in groups."""
    whole, size = stop - (stop - start) % WIDTH, _side_by_side(moving.size)
    for g in range(0, max(moving.size, 1), size):
        some, by = moving[g : g + size], shift if g == 0 else 0.0
        for i in range(start, whole, WIDTH):
            _advance(columns, delta, some, by, v, i, lanes())
        for i in range(whole, stop):
            _advance(columns, delta, some, by, v, i, 0.0)


@part
def _add_singles(
    columns: Matrix, first: int, last: int, by: Geometry, r: Any, i: int, like: Any, sums: Integers
) -> None:
    """Add rint(clamp(t_j r, ±κ)/g) at i to sums, (s, SUMS), for each column j of [first, last) separately."""
    for j in range(first, last):
        c = (by.scale[j] * (cells(columns, j, i, like) - by.centre[j])) * r
        add_to(sums, j, clamped(c, r, by.cap, 1.0 / by.grid) + MAGIC)


@part
def _add_weighted(
    columns: Matrix, first: int, last: int, by: Geometry, r: Any, i: int, like: Any, sums: Integers
) -> None:
    """Add rint(t_j r) at i to sums, (s, SUMS), for columns [first, last). r : capped residual divided by the grid."""
    for j in range(first, last):
        c = (by.scale[j] * (cells(columns, j, i, like) - by.centre[j])) * r
        add_to(sums, j, at_least(c, c, c, 0.0) + MAGIC)  # NaN, which is 0 times an overflow, counts as 0


@part
def _add_plain(columns: Matrix, first: int, last: int, by: Geometry, r: Any, i: int, like: Any, sums: Matrix) -> None:
    """Add r (x − c) at i to sums, (s, SUMS), of columns [first, last)."""
    for j in range(first, last):
        add_to(sums, j, r * (cells(columns, j, i, like) - by.centre[j]))


@part
def _add_clipped(columns: Matrix, by: Geometry, r: Any, i: int, like: Any, products: Vector, sums: Integers) -> None:
    """Add rint(clip(t r)/g) at i to sums, (s, SUMS).

    products : (WIDTH·s,) buffer for t.
    """
    s = columns.shape[0]
    if s == 1:  # a single column needs no norm
        _add_singles(columns, 0, s, by, r, i, like, sums)
    else:
        h2 = like
        for j in range(s):
            t = by.scale[j] * (cells(columns, j, i, like) - by.centre[j])
            put(products, j * WIDTH, t)
            h2 = h2 + t * t
            if s > NEAR:  # a norm needs all columns of a record, so columns are not grouped
                fetch(columns, j, i + AHEAD, like)
        r = clipped(r, h2, by.cap, 1.0 / by.grid)
        for j in range(s):
            c = entries(products, j * WIDTH, like) * r
            add_to(sums, j, at_least(c, c, c, 0.0) + MAGIC)  # NaN, which is 0 times an overflow, counts as 0


@part
def add_panel(sums: Matrix, partial: Vector) -> None:
    """Add the sums of a panel to the panel's row of `partial`, and reset the sums to 0."""
    for j in range(sums.shape[0]):
        for k in range(SUMS):
            partial[j] += sums[j, k]
            sums[j, k] = 0.0


@compiled
def forward(columns: Matrix, delta: Vector, shift: float, v: Vector, start: int, stop: int) -> None:
    """Add X_S Δ + shift to v, rows [start, stop), in place."""
    align_stack()
    moving = np.flatnonzero(delta)
    for a in range(start, stop, PANEL):
        _advance_panel(columns, delta, moving, shift, v, a, min(a + PANEL, stop))


@compiled
def singles(columns: Matrix, v: Vector, y: Vector, loss: int, by: Geometry, start: int, stop: int) -> Integers:
    """Return Σ_i rint(clamp(scale_j r_i (x_ij − c_j), ±κ)/g) over rows [start, stop). Each column is clipped separately."""
    align_stack()
    s = columns.shape[0]
    sums, size = np.zeros((s, SUMS), np.int64), _side_by_side(s)
    r = _room(s, stop - start)
    for a in range(start, stop, PANEL):
        b = min(a + PANEL, stop)
        whole = b - (b - a) % WIDTH
        if s <= NEAR:
            for i in range(a, whole, WIDTH):
                at = weight(entries(v, i, lanes()), entries(y, i, lanes()), loss)
                _add_singles(columns, 0, s, by, at, i, lanes(), sums)
        else:
            for i in range(a, whole, WIDTH):
                put(r, i - a, weight(entries(v, i, lanes()), entries(y, i, lanes()), loss))
        for g in range(0, s if s > NEAR else 0, size):
            for i in range(a, whole, WIDTH):
                at = entries(r, i - a, lanes())
                _add_singles(columns, g, min(g + size, s), by, at, i, lanes(), sums)
        for i in range(whole, b):
            _add_singles(columns, 0, s, by, weight(v[i], y[i], loss), i, 0.0, sums)
    return exact_sums(sums, stop - start)


@compiled
def gradient(columns: Matrix, v: Vector, y: Vector, loss: int, by: Geometry, start: int, stop: int) -> Integers:
    """Return Σ_i rint(clip(scale ∘ r_i (x_i − c))/g) over rows [start, stop)."""
    align_stack()
    s = columns.shape[0]
    sums, products = np.zeros((s, SUMS), np.int64), np.empty(WIDTH * s)
    whole = stop - (stop - start) % WIDTH
    for i in range(start, whole, WIDTH):
        r = weight(entries(v, i, lanes()), entries(y, i, lanes()), loss)
        _add_clipped(columns, by, r, i, lanes(), products, sums)
    for i in range(whole, stop):
        _add_clipped(columns, by, weight(v[i], y[i], loss), i, 0.0, products, sums)
    return exact_sums(sums, stop - start)


@compiled
def capped_step(
    previous: Matrix,
    delta: Vector,
    shift: float,
    v: Vector,
    loss: int,
    columns: Matrix,
    by: Geometry,
    bounds: Vector,
    start: int,
    stop: int,
) -> Integers:
    """Add X_prev Δ + shift to v, in place. Return Σ_i rint(scale ∘ ρ_i (x_i − c)/g), with ρ_i capped at ±abs(bounds_i)."""
    align_stack()
    s, moving = columns.shape[0], np.flatnonzero(delta)
    sums, room = np.zeros((s, SUMS), np.int64), _room(s, stop - start)
    together, size, per_grid = moving.size + s <= NEAR, _side_by_side(s), 1.0 / by.grid
    for a in range(start, stop, PANEL):
        b = min(a + PANEL, stop)
        whole = b - (b - a) % WIDTH
        if not together:
            _advance_panel(previous, delta, moving, shift, v, a, b)
        if together:
            for i in range(a, whole, WIDTH):
                _advance(previous, delta, moving, shift, v, i, lanes())
                r = capped(entries(v, i, lanes()), entries(bounds, i, lanes()), loss) * per_grid
                _add_weighted(columns, 0, s, by, r, i, lanes(), sums)
        elif s <= NEAR:
            for i in range(a, whole, WIDTH):
                r = capped(entries(v, i, lanes()), entries(bounds, i, lanes()), loss) * per_grid
                _add_weighted(columns, 0, s, by, r, i, lanes(), sums)
        else:
            for i in range(a, whole, WIDTH):
                r = capped(entries(v, i, lanes()), entries(bounds, i, lanes()), loss) * per_grid
                put(room, i - a, r)
                _add_weighted(columns, 0, size, by, r, i, lanes(), sums)
            for g in range(size, s, size):
                for i in range(a, whole, WIDTH):
                    r = entries(room, i - a, lanes())
                    _add_weighted(columns, g, min(g + size, s), by, r, i, lanes(), sums)
        for i in range(whole, b):
            if together:
                _advance(previous, delta, moving, shift, v, i, 0.0)
            _add_weighted(columns, 0, s, by, capped(v[i], bounds[i], loss) * per_grid, i, 0.0, sums)
    return exact_sums(sums, stop - start)


@compiled
def plain_gradient(
    columns: Matrix, v: Vector, y: Vector, loss: int, by: Geometry, partial: Vector, start: int, stop: int
) -> None:
    """Add Σ_i r_i (x_i − c) of rows [start, stop) to partial, (panels, s), one row per panel. start : begin of a panel."""
    align_stack()
    s = columns.shape[0]
    sums, room, size = np.zeros((s, SUMS)), _room(s, stop - start), _side_by_side(s)
    for a in range(start, stop, PANEL):
        b = min(a + PANEL, stop)
        whole = b - (b - a) % WIDTH
        if s <= NEAR:
            for i in range(a, whole, WIDTH):
                at = weight(entries(v, i, lanes()), entries(y, i, lanes()), loss)
                _add_plain(columns, 0, s, by, at, i, lanes(), sums)
        else:
            for i in range(a, whole, WIDTH):
                put(room, i - a, weight(entries(v, i, lanes()), entries(y, i, lanes()), loss))
            for g in range(0, s, size):
                for i in range(a, whole, WIDTH):
                    _add_plain(columns, g, min(g + size, s), by, entries(room, i - a, lanes()), i, lanes(), sums)
        for i in range(whole, b):
            _add_plain(columns, 0, s, by, weight(v[i], y[i], loss), i, 0.0, sums)
        add_panel(sums, partial[a // PANEL])


@compiled
def second_moments(columns: Matrix, cap: Vector, per_grid: float, start: int, stop: int) -> Integers:
    """Return Σ_i rint(min(x_ij²/cap_j, 1)/g) over rows [start, stop); NaN counts as 0."""
    out = np.zeros(columns.shape[0], np.int64)
    for j in range(columns.shape[0]):
        q, per_cap = 0, 1.0 / cap[j]
        for i in range(start, stop):
            q = add_bits(q, square_in_steps(load(columns, j, i), per_cap, per_grid))
        out[j] = unbiased(q, stop - start)
    return out


@compiled
def first_moments(columns: Matrix, reach: Vector, per_grid: float, start: int, stop: int) -> Integers:
    """Return Σ_i rint(clamp(x_ij/B_j, ±1)/(2g)) over rows [start, stop); NaN counts as 0."""
    out = np.zeros(columns.shape[0], np.int64)
    for j in range(columns.shape[0]):
        q, half = 0, 0.5 / reach[j]
        for i in range(start, stop):
            q = add_bits(q, half_in_steps(load(columns, j, i), half, per_grid))
        out[j] = unbiased(q, stop - start)
    return out
