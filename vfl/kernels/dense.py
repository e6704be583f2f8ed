"""Passes over records: clipped, rounded and exactly summed gradients, and updates of the margins by X_S Δ.

Guarantee. Let κ be the clip, g the grid and s the number of columns. The integers q_i that one record adds to a
clipped sum satisfy

    g‖q_i‖₂ ≤ κ(1 + s·2⁻⁵⁰) + g√s/2

for any floats in X, v, y, centre and scale, including NaN, infinities and magnitudes that over- or underflow. The sum of the
q_i is exact in 64-bit integers, so order, chunks and threads do not change it. vfl.kernels.dense_loops has the proof.

Every X is (n, s), column-major, float64 or float32, as a party stores it. Products and sums are float64. Vectors are contiguous
and float64. `threads` > 1 splits the records and does not change results. Wrong shapes, types or constants raise
SpecificationError. The loops are compiled on first use, and cached on disk.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from vfl.errors import SpecificationError
from vfl.kernels import dense_loops as loops
from vfl.kernels.geometry import LOGISTIC as LOGISTIC
from vfl.kernels.geometry import MULTINOMIAL as MULTINOMIAL
from vfl.kernels.geometry import SQUARED as SQUARED
from vfl.kernels.geometry import WEIGHTS as WEIGHTS
from vfl.kernels.geometry import Geometry, pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from vfl.base.types import Integers, Matrix, Vector

T = TypeVar("T")
A = TypeVar("A", bound=np.ndarray)

TASK = 1 << 18  # elements; with fewer, a second thread costs more than it saves
_DOUBLE, _SINGLE = np.dtype(np.float64), np.dtype(np.float32)


def gradient(X: Matrix, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Integers:
    """Return Σ_i rint(clip_κ(scale ∘ r_i (x_i − c))/g), (s,) int64. The module's guarantee bounds each record's contribution.

    clip_κ scales a longer vector down to norm κ. A record contributes 0 if r_i is NaN or beyond 1e300 in magnitude. It also
    contributes 0 if ‖scale ∘ (x_i − c)‖² is NaN, overflows or is below 1e-280 (s > 1), or if the product is NaN (s = 1).

    v, y : (n,) margins and labels; r = v − y for SQUARED, −y/(1 + exp(yv)) for LOGISTIC, v itself for WEIGHTS.
    """
    return _clipped_sum(loops.gradient, X, v, y, loss, geometry, threads)


def singles(X: Matrix, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Integers:
    """Return the `gradient` of each column on its own, (s,) int64: every product is clamped to ±κ separately."""
    return _clipped_sum(loops.singles, X, v, y, loss, geometry, threads)


def _clipped_sum(
    loop: Callable[..., Integers], X: Matrix, v: Vector, y: Vector, loss: int, geometry: Geometry, threads: int
) -> Integers:
    n, columns = len(v), columns_of(X, len(v))
    v, y = check_vectors(n, v, y)
    check_loss(loss)
    by = checked(geometry, len(columns), n)
    return total(each(lambda start, stop: loop(columns, v, y, loss, by, start, stop), n, columns.size, threads))


def capped_step(
    X_prev: Matrix,
    delta: Vector,
    shift: float,
    v: Vector,
    loss: int,
    X: Matrix,
    geometry: Geometry,
    bounds: Vector,
    *,
    threads: int = 1,
) -> Integers:
    """Add X_prev Δ + shift to v, in place. Return Σ_i rint(scale ∘ ρ_i (x_i − c)/g), (s,) int64.

    The cap bounds the whole record, not only this block. Let limits_i ≤ κ/‖z_i‖ for the row z_i of a record over all columns
    (vfl.kernels.geometry.record_limits). The guarantee of the module then holds for the record's contributions to all disjoint
    blocks together.

    ρ_i = min(max(r_i, −limits_i), limits_i). For LOGISTIC ρ_i = r_i·min(1, limits_i/max(|r_i|, 1 − |r_i|)), whose mean is 0 at
    the true probabilities. A record contributes 0 if r_i is NaN or beyond 1e300, or if the product is NaN.

    v : (n,) margins for LOGISTIC, residuals r for WEIGHTS. Residuals v − y of squared loss change by X_prev Δ, as margins do.
    bounds : (n,), result of `bounds_of` for the limits. It combines limits and labels, so that a step reads one vector less.
    """
    n, previous, columns = len(v), columns_of(X_prev, len(v)), columns_of(X, len(v))
    (bounds,), (delta,) = check_vectors(n, bounds), check_vectors(len(previous), delta)
    check_vectors(n, v)
    check_writable(v)
    check_capped(loss)
    by = checked(geometry, len(columns), n)

    def rows(start: int, stop: int) -> Integers:
        return loops.capped_step(previous, delta, shift, v, loss, columns, by, bounds, start, stop)

    return total(each(rows, n, columns.size + previous.size, threads))


def bounds_of(limits: Vector, y: Vector, loss: int) -> Vector:
    """Return the bounds of residuals that `capped_step` takes, (n,): y·min(limits, 1) for LOGISTIC, else the limits.

    For MULTINOMIAL, return the limits followed by the labels, (2n,); (3n,) if y contains weights after the labels.

    limits : (n,) ≥ 0. y : (n,) labels; ±1 for LOGISTIC.
    """
    if loss == MULTINOMIAL:
        return np.concatenate([limits, y])
    check_capped(loss)
    if loss != LOGISTIC:
        return limits
    signed: Vector = np.minimum(limits, 1.0)
    return np.copysign(signed, y, out=signed)


def forward(X: Matrix, delta: Vector, v: Vector, shift: float = 0.0, *, threads: int = 1) -> Vector:
    """Add X Δ + shift to v, (n,), in place, and return v. Columns with Δ_j = 0 are not read."""
    n, columns = len(v), columns_of(X, len(v))
    check_vectors(n, v)
    (delta,) = check_vectors(len(columns), delta)
    check_writable(v)
    if shift == 0.0 and not delta.any():
        return v
    each(lambda start, stop: loops.forward(columns, delta, shift, v, start, stop), n, columns.size, threads)
    return v


def plain_gradient(X: Matrix, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Vector:
    """Return scale ∘ Σ_i r_i (x_i − c), (s,) float64. The result is not private, since it has no clip and no grid.

    Equal input gives equal bits on one machine, for any `threads`.
    """
    n, columns = len(v), columns_of(X, len(v))
    v, y = check_vectors(n, v, y)
    check_loss(loss)
    by, partial = checked(geometry, len(columns)), np.zeros((-(-n // loops.PANEL), len(columns)))

    def rows(start: int, stop: int) -> None:
        loops.plain_gradient(columns, v, y, loss, by, partial, start, stop)

    each(rows, n, columns.size, threads)
    return np.asarray(by.scale * partial.sum(axis=0))


def first_moments(X: Matrix, reach: Vector, grid: float, *, threads: int = 1) -> Integers:
    """Return Σ_i rint(clamp(x_ij/B_j, ±1)/(2g)), (s,) int64. One record adds between −1/(2g) and 1/(2g).

    reach : (s,) B_j > 0.
    grid : g, a power of two in [2⁻⁵⁰, ½].
    """
    return _moments(loops.first_moments, X, reach, grid, threads)


def second_moments(X: Matrix, cap: Vector, grid: float, *, threads: int = 1) -> Integers:
    """Return Σ_i rint(min(x_ij²/cap_j, 1)/g), (s,) int64. One record adds between 0 and 1/g to each coordinate.

    The bound is exact, since 1/g is an integer. NaN counts as 0, infinity as 1.

    cap : (s,) b_j > 0, in units of x².
    grid : g, a power of two in [2⁻⁵⁰, 1].
    """
    return _moments(loops.second_moments, X, cap, grid, threads)


def _moments(loop: Callable[..., Integers], X: Matrix, unit: Vector, grid: float, threads: int) -> Integers:
    n, columns = len(X), columns_of(X, len(X))
    (unit,) = check_vectors(len(columns), unit)
    per_grid = inverse_grid(1.0, grid, n)
    return total(each(lambda start, stop: loop(columns, unit, per_grid, start, stop), n, columns.size, threads))


def plain_moments(X: Matrix) -> tuple[Vector, Vector]:
    """Return Σ_i x_ij and Σ_i x_ij², (s,) float64 each. They are not private: no cap bounds a record's contribution."""
    return X.sum(axis=0, dtype=np.float64), np.einsum("ij,ij->j", X, X, dtype=np.float64)


def record_norms(X: Matrix, centre: Vector, scale: Vector) -> Vector:
    """Return Σ_j t_ij², (n,) float64, with products t_ij = scale_j (x_ij − c_j) computed exactly as in a clipped sum.

    Record caps are safe only with exactly this formula. An algebraically equal formula could round below the true contribution.
    """
    norms = np.zeros(len(X))
    with np.errstate(over="ignore", invalid="ignore"):  # a record whose norm overflows is clipped to 0
        for rows in pieces(len(X)):
            for j in range(X.shape[1]):
                t = scale[j] * (X[rows, j].astype(np.float64) - centre[j])
                norms[rows] += t * t
    return norms


def weights(v: Vector, y: Vector, loss: int, out: Vector) -> Vector:
    """Write r = ∂ℓ(v, y)/∂v into `out`, (n,), and return `out`, which may be v."""
    check_vectors(len(v), v, y, out)
    check_writable(out)
    check_loss(loss)
    loops.weights(v, y, loss, out)
    return out


def weigh(X: Matrix, weighting: Callable[[Vector, Vector], Vector], v: Vector, y: Vector) -> Vector:
    """Return weighting(v, y), (n,), for an elementwise weighting without a fused kernel."""
    del X
    return weighting(v, y)


def warm(dtype: npt.DTypeLike, *, private: bool) -> None:
    """Load or compile the loops for columns of this type, so that the first round of a run does not have to wait."""
    X, one, v = np.ones((1, 1), dtype=dtype, order="F"), np.ones(1), np.zeros(1)
    forward(X, one, v)
    if private:
        first_moments(X, one, 0.5)
        second_moments(X, one, 0.5)
        gradient(X, v, one, WEIGHTS, Geometry(v, one, 1.0))
    else:
        plain_gradient(X, v, one, WEIGHTS, Geometry(v, one))


def columns_of(X: Matrix, n: int) -> Matrix:
    """Return X.T, checked and read-only. With this, arrays of one column also have the layout for which loops are compiled."""
    if X.ndim != 2 or not X.flags.f_contiguous or not (X.dtype == _DOUBLE or X.dtype == _SINGLE):
        raise SpecificationError(
            f"kernels need column-major float64 or float32 columns, not a {X.ndim}-dimensional {X.dtype} array of"
            f" another layout: pass numpy.asfortranarray(X, dtype=float)"
        )
    if len(X) != n:
        raise SpecificationError("columns and linear predictors differ in length: align the records first")
    return read_only(X).T


def check_vectors(size: int, *vectors: Vector) -> list[Vector]:
    """Return the vectors as read-only views, after checks. Numba would compile each loop again for writable vectors."""
    for vector in vectors:
        if vector.shape != (size,) or vector.dtype != _DOUBLE or not vector.flags.c_contiguous:
            raise SpecificationError(
                "kernels need contiguous float64 vectors with an entry per record (v, y) or column (scale, delta, "
                f"cap), not a {vector.dtype} array of shape {vector.shape}. Pass numpy.ascontiguousarray(vector, "
                "dtype=float), of the right length"
            )
    return [read_only(vector) for vector in vectors]


def checked(geometry: Geometry, size: int, n: int | None = None) -> Geometry:
    """Return the geometry with read-only vectors, after checks. With n, cap and grid must allow exact sums over n records."""
    centre, scale = check_vectors(size, geometry.centre, geometry.scale)
    if n is not None:
        inverse_grid(geometry.cap, geometry.grid, n)
    return Geometry(centre, scale, float(geometry.cap), float(geometry.grid))


def read_only(array: A) -> A:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


def check_writable(v: Vector) -> None:
    """Raise SpecificationError if the vector cannot be changed in place."""
    if not v.flags.writeable:
        raise SpecificationError("the vector is changed in place, but it is read-only: pass a copy")


def check_loss(loss: int) -> None:
    """Raise SpecificationError for an unknown code of a loss."""
    if loss not in (WEIGHTS, SQUARED, LOGISTIC):
        raise SpecificationError(f"no kernel for loss code {loss!r}: compute the weights and pass WEIGHTS")


def check_capped(loss: int) -> None:
    """Raise SpecificationError unless the loss has a capped sum."""
    if loss not in (WEIGHTS, LOGISTIC):
        raise SpecificationError(f"no capped kernel for loss code {loss!r}: pass the residuals and WEIGHTS")


def inverse_grid(clip: float, grid: float, n: int) -> float:
    """Return 1/g, exactly. Raises SpecificationError for a clip or grid for which the bound or the exact sum would fail."""
    if not 1e-100 <= clip <= 1e100:
        raise SpecificationError(f"clip must lie in [1e-100, 1e100], not {clip!r}: rescale the columns")
    if not (grid > 0 and math.frexp(grid)[0] == 0.5 and grid <= clip <= grid * 2.0**50 and n * clip < grid * 2.0**62):
        raise SpecificationError(
            f"grid must be a power of two g with g ≤ clip ≤ 2⁵⁰g and records·clip < 2⁶²g, not {grid!r}:"
            " use the largest power of two below clip/2²⁰"
        )
    return 1.0 / grid


def each(rows: Callable[[int, int], T], n: int, cells: int, threads: int) -> list[T]:
    """Call rows(start, stop) on ranges of whole panels that together cover the n records, at most `threads` at once.

    cells : total number of cells to read. A small number of cells is read by one thread.
    """
    panels = -(-n // loops.PANEL)
    count = min(threads, panels, cells // TASK)
    if count <= 1:
        return [rows(0, n)]
    bounds = [min(n, panels * k // count * loops.PANEL) for k in range(count + 1)]
    others = [_pool().submit(rows, *pair) for pair in itertools.pairwise(bounds[1:])]
    return [rows(bounds[0], bounds[1]), *(other.result() for other in others)]


def total(shares: list[Integers]) -> Integers:
    """Return the sum of the results of `each`."""
    return functools.reduce(np.add, shares)


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="vfl-kernels")


# A forked child inherits the pool object but not the pool's threads, so the child would wait for ever.
os.register_at_fork(after_in_child=_pool.cache_clear)
