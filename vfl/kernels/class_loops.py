"""Compiled loops of vfl.kernels.classes. One pass over the columns serves all K classes of multinomial loss.

The bounds of vfl.kernels.dense_loops for the s sums of a block also hold for K·s sums, with ρ_k t_j in place of r t_j. The
products t_j = scale_j·(x_ij − c_j) are computed alike, and each contribution is rounded alike.

Labels are (n,), or labels followed by weights, (2n,). A weight s_i is clamped to [0, 1] and multiplies the K capped residuals
of its record. The bounds on ρ_i therefore also hold for s_i ρ_i.

Vectors of margins and residuals are (K·n,), one class after another. Sums are (s·K, SUMS): the K classes of the first column,
then of the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.kernels.compile import MAGIC, compiled, part
from vfl.kernels.dense_loops import AHEAD, PANEL, add_panel, capped, exact_sums, falling_odds
from vfl.kernels.geometry import WEIGHTS
from vfl.kernels.records import SUMS, WIDTH, add_to, at_least, cells, entries, fetch, lanes, least, most, put, root

if TYPE_CHECKING:
    from vfl.base.types import Integers, Matrix, Vector
    from vfl.kernels.geometry import Geometry

ABOVE = 1.0 + 2.0**-40
"""Safety factor for the rounding of norms, sufficient for up to 100 classes."""


@part
def _class_residuals(
    v: Vector, y: Vector, limits: Vector, K: int, i: int, r: Vector, n: int, at: int, like: Any
) -> None:
    """Write the K residuals of record i to r at positions `at`, at + n, …: s f(p − e_y) with f = min(1, limit/max_k ‖p − e_k‖).

    s : weight of the record. p : probabilities of the classes. e_k : k-th unit vector.
    """
    stride = limits.size
    top = entries(v, i, like)
    for k in range(1, K):
        top = most(top, entries(v, k * stride + i, like))
    total = like
    for k in range(K):
        N, E = falling_odds(entries(v, k * stride + i, like) - top)
        share = E / N
        total = total + share
        put(r, k * n + at, share)
    squares, low = like, like + 1.0
    for k in range(K):
        p = entries(r, k * n + at, like) / total
        squares = squares + p * p
        low = least(low, p)
        put(r, k * n + at, p)
    f = entries(limits, i, like) / (root(squares + 1.0 - (low + low)) * ABOVE)
    f = at_least(f, 0.0, least(f, 1.0), 0.0)  # 0 if the limit is NaN or negative
    if y.size > stride:  # weights in [0, 1]: rounding is monotone, so no norm grows
        f = f * least(most(entries(y, stride + i, like), 0.0), 1.0)
    label = entries(y, i, like)
    for k in range(K):
        own = at_least(label, 0.0 + k, at_least(0.0 + k, label, 1.0, 0.0), 0.0)
        put(r, k * n + at, (entries(r, k * n + at, like) - own) * f)


@compiled
def class_residuals(v: Vector, y: Vector, limits: Vector, K: int, r: Vector, start: int, stop: int) -> None:
    """Write the derivatives of multinomial loss into r, (K·n,), capped so that their norms are within the limits.

    Rows [start, stop) are written.
    """
    whole = stop - (stop - start) % WIDTH
    for i in range(start, whole, WIDTH):
        _class_residuals(v, y, limits, K, i, r, limits.size, i, lanes())
    for i in range(whole, stop):
        _class_residuals(v, y, limits, K, i, r, limits.size, i, 0.0)


@part
def _advance_classes(
    columns: Matrix, delta: Matrix, moving: Integers, shift: Vector, v: Vector, i: int, like: Any
) -> None:
    """Add X_S Δ_k + shift_k to the margins at i of every class k, in place. Each cell is read only once for all classes."""
    n, K = columns.shape[1], shift.size
    for k in range(K):
        if shift[k] != 0.0:
            put(v, k * n + i, entries(v, k * n + i, like) + shift[k])
    for j in moving:
        x = cells(columns, j, i, like)
        for k in range(K):
            if delta[j, k] != 0.0:
                put(v, k * n + i, entries(v, k * n + i, like) + delta[j, k] * x)
        fetch(columns, j, i + AHEAD, like)


@part
def _add_classes(
    columns: Matrix, by: Geometry, K: int, r: Vector, n: int, at: int, i: int, like: Any, sums: Integers
) -> None:
    """Add rint(r_k t_j/g) at i to sums, (s·K, SUMS). r : capped residuals, that of class k at `at` + k·n."""
    for k in range(K):
        put(r, k * n + at, capped(entries(r, k * n + at, like), like + np.inf, WEIGHTS) * (1.0 / by.grid))
    for j in range(columns.shape[0]):
        t = by.scale[j] * (cells(columns, j, i, like) - by.centre[j])
        for k in range(K):
            c = t * entries(r, k * n + at, like)
            add_to(sums, j * K + k, at_least(c, c, c, 0.0) + MAGIC)  # NaN, from 0 times an overflow, counts as 0
        fetch(columns, j, i + AHEAD, like)


@compiled
def class_forward(
    columns: Matrix, delta: Matrix, moving: Integers, shift: Vector, v: Vector, start: int, stop: int
) -> None:
    """Add X_S Δ_k + shift_k to the margins v, (K·n,), of every class k, in place, for rows [start, stop). delta : (s, K)."""
    whole = stop - (stop - start) % WIDTH
    for i in range(start, whole, WIDTH):
        _advance_classes(columns, delta, moving, shift, v, i, lanes())
    for i in range(whole, stop):
        _advance_classes(columns, delta, moving, shift, v, i, 0.0)


@compiled
def class_step(
    previous: Matrix,
    delta: Matrix,
    moving: Integers,
    shift: Vector,
    v: Vector,
    y: Vector,
    limits: Vector,
    columns: Matrix,
    by: Geometry,
    start: int,
    stop: int,
) -> Integers:
    """Add X_prev Δ_k + shift_k to the margins v, (K·n,), in place; return Σ_i rint(ρ_i ⊗ z_i/g), (s·K,), rows [start, stop).

    ρ_i are the derivatives of multinomial loss at the new margins, with ‖ρ_i‖ ≤ limits_i. One pass reads every cell once.
    """
    K = shift.size
    sums, whole = np.zeros((columns.shape[0] * K, SUMS), np.int64), stop - (stop - start) % WIDTH
    r = np.empty(K * WIDTH)
    for i in range(start, whole, WIDTH):
        _advance_classes(previous, delta, moving, shift, v, i, lanes())
        _class_residuals(v, y, limits, K, i, r, WIDTH, 0, lanes())
        _add_classes(columns, by, K, r, WIDTH, 0, i, lanes(), sums)
    for i in range(whole, stop):
        _advance_classes(previous, delta, moving, shift, v, i, 0.0)
        _class_residuals(v, y, limits, K, i, r, WIDTH, 0, 0.0)
        _add_classes(columns, by, K, r, WIDTH, 0, i, 0.0, sums)
    return exact_sums(sums, stop - start)


@compiled
def class_sums(r: Vector, columns: Matrix, by: Geometry, K: int, start: int, stop: int) -> Integers:
    """Return Σ_i rint(r_i ⊗ z_i/g), (s·K,), over rows [start, stop). r : capped residuals, (K·n,), which are overwritten."""
    n = columns.shape[1]
    sums, whole = np.zeros((columns.shape[0] * K, SUMS), np.int64), stop - (stop - start) % WIDTH
    for i in range(start, whole, WIDTH):
        _add_classes(columns, by, K, r, n, i, i, lanes(), sums)
    for i in range(whole, stop):
        _add_classes(columns, by, K, r, n, i, i, 0.0, sums)
    return exact_sums(sums, stop - start)


@part
def _add_plain_classes(columns: Matrix, by: Geometry, r: Vector, K: int, i: int, like: Any, sums: Matrix) -> None:
    """Add r_k (x − c) at i to sums, (s·K, SUMS)."""
    for j in range(columns.shape[0]):
        x = cells(columns, j, i, like) - by.centre[j]
        for k in range(K):
            add_to(sums, j * K + k, entries(r, k * columns.shape[1] + i, like) * x)
        fetch(columns, j, i + AHEAD, like)


@compiled
def class_plain(r: Vector, columns: Matrix, by: Geometry, K: int, partial: Matrix, start: int, stop: int) -> None:
    """Add Σ_i r_i ⊗ (x_i − c) of rows [start, stop) to partial, (panels, s·K), one row per panel. start : begin of a panel."""
    sums = np.zeros((columns.shape[0] * K, SUMS))
    for a in range(start, stop, PANEL):
        b = min(a + PANEL, stop)
        whole = b - (b - a) % WIDTH
        for i in range(a, whole, WIDTH):
            _add_plain_classes(columns, by, r, K, i, lanes(), sums)
        for i in range(whole, b):
            _add_plain_classes(columns, by, r, K, i, 0.0, sums)
        add_panel(sums, partial[a // PANEL])
