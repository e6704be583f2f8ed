"""The passes of `vfl.kernels.dense`, over columns stored by their nonzero entries. Functions and integers are the same.

Guarantee. Clipped sums and moments are the same integers as those of vfl.kernels.dense for the same columns with zeros written
out and centre 0. A record's contribution therefore has the bound that vfl.kernels.dense states. Margins are equal to the bit.
Plain sums agree up to rounding.

The time of a pass is proportional to the number of stored entries in its columns, for any number of records. `threads` > 1
splits the records where this saves time, and does not change results. Columns are never centred, because centring would fill in
their zeros. Vectors are contiguous float64. Arguments in any other form raise SpecificationError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import SpecificationError
from vfl.kernels import sparse_loops as loops
from vfl.kernels.dense import (
    WEIGHTS,
    check_capped,
    check_loss,
    check_vectors,
    check_writable,
    checked,
    each,
    inverse_grid,
    read_only,
    total,
)
from vfl.kernels.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.base.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True, eq=False)
class SparseBlock:
    """Consecutive columns of n records, by their stored entries (CSC). `of` checks what the loops assume.

    data : (nnz,) float64 or float32.
    rows : (nnz,) int32 or int64, strictly increasing within a column. A record that is stored twice would be clipped twice.
    starts : (s + 1,) int64; column j has the entries starts[j] to starts[j + 1].
    scratch : (2, n) buffer of zeros. All blocks of a party share it, so use only one block at a time.
    """

    data: Matrix
    rows: Integers
    starts: Integers
    scratch: Matrix

    @classmethod
    def of(cls, data: Matrix, rows: Integers, starts: Integers, n_records: int) -> SparseBlock:
        """Return a block with read-only arrays. Raises SpecificationError unless rows increase strictly within each column."""
        fits = starts[0] == 0 and starts[-1] == len(rows) == len(data) and (np.diff(starts) >= 0).all()
        if fits and len(rows):
            rising = np.ones(len(rows) + 1, dtype=bool)
            rising[1:-1] = rows[1:] > rows[:-1]
            rising[starts] = True
            fits = rising.all() and rows.min() >= 0 and rows.max() < n_records
        if not fits:
            raise SpecificationError(
                "sparse columns need increasing rows in every column: sort them, add up duplicates"
            )
        starts = starts.astype(np.int64)
        return cls(read_only(data), read_only(rows), read_only(starts), np.zeros((2, n_records)))

    @property
    def n_records(self) -> int:
        """Return n, the number of records."""
        return int(self.scratch.shape[1])

    @property
    def size(self) -> int:
        """Return s, the number of columns."""
        return len(self.starts) - 1

    @property
    def stored(self) -> int:
        """Return the number of stored entries."""
        return int(self.starts[-1] - self.starts[0])

    def between(self, start: int, stop: int) -> loops.Entries:
        """Return the entries of the records [start, stop)."""
        whole = start == 0 and stop == self.n_records
        first, last = (
            (self.starts[:-1], self.starts[1:]) if whole else loops.between(self.rows, self.starts, start, stop)
        )
        return loops.Entries(self.data, self.rows, read_only(first), read_only(last))

    def columns(self, start: int, stop: int) -> SparseBlock:
        """Return columns [start, stop) as a block, without copying."""
        return SparseBlock(self.data, self.rows, self.starts[start : stop + 1], self.scratch)


def gradient(X: SparseBlock, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Integers:
    """Return Σ_i rint(clip_κ(scale ∘ r_i x_i)/g), (s,) int64; see vfl.kernels.dense.gradient."""
    return _clipped_sum(loops.gradient, X, v, y, loss, geometry, threads, X.scratch)


def singles(X: SparseBlock, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Integers:
    """Return the `gradient` of each column on its own, (s,) int64: every product is clamped to ±κ separately."""
    return _clipped_sum(loops.singles, X, v, y, loss, geometry, threads)


def _clipped_sum(
    loop: Callable[..., Integers],
    X: SparseBlock,
    v: Vector,
    y: Vector,
    loss: int,
    geometry: Geometry,
    threads: int,
    *scratch: Matrix,
) -> Integers:
    v, y, by = _checked(X, v, y, loss, geometry, len(v))

    def rows(start: int, stop: int) -> Integers:
        return loop(X.between(start, stop), v, y, loss, by, *scratch)

    return total(each(rows, len(v), X.stored, threads))


def capped_step(
    X_prev: SparseBlock,
    delta: Vector,
    shift: float,
    v: Vector,
    loss: int,
    X: SparseBlock,
    geometry: Geometry,
    bounds: Vector,
    *,
    threads: int = 1,
) -> Integers:
    """Add X_prev Δ + shift to v, in place. Return Σ_i rint(scale ∘ ρ_i x_i/g); see vfl.kernels.dense.capped_step."""
    forward(X_prev, delta, v, shift, threads=threads)
    check_capped(loss)
    return _clipped_sum(loops.capped_gradient, X, v, bounds, loss, geometry, threads)


def forward(X: SparseBlock, delta: Vector, v: Vector, shift: float = 0.0, *, threads: int = 1) -> Vector:
    """Add X Δ + shift to v, (n,), in place, and return v. Columns with Δ_j = 0 are not read."""
    check_vectors(X.n_records, v)
    (delta,) = check_vectors(X.size, delta)
    check_writable(v)
    if shift != 0.0:
        v += shift
    each(lambda start, stop: loops.forward(X.between(start, stop), delta, v), len(v), X.stored, threads)
    return v


def plain_gradient(X: SparseBlock, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Vector:
    """Return scale ∘ Σ_i r_i x_i, (s,) float64, in one thread. The result is not private, since it has no clip and no grid."""
    del threads
    v, y, by = _checked(X, v, y, loss, geometry)
    return np.asarray(by.scale * loops.plain_gradient(X.between(0, len(v)), v, y, loss))


def first_moments(X: SparseBlock, reach: Vector, grid: float, *, threads: int = 1) -> Integers:
    """Return Σ_i rint(clamp(x_ij/B_j, ±1)/(2g)), (s,) int64; see vfl.kernels.dense.first_moments."""
    del threads  # one thread suffices, since a run calls this once
    (reach,) = check_vectors(X.size, reach)
    return loops.first_moments(X.data, X.starts, reach, inverse_grid(1.0, grid, X.n_records))


def second_moments(X: SparseBlock, cap: Vector, grid: float, *, threads: int = 1) -> Integers:
    """Return Σ_i rint(min(x_ij²/cap_j, 1)/g), (s,) int64; see vfl.kernels.dense.second_moments."""
    del threads
    (cap,) = check_vectors(X.size, cap)
    return loops.second_moments(X.data, X.starts, cap, inverse_grid(1.0, grid, X.n_records))


def plain_moments(X: SparseBlock) -> tuple[Vector, Vector]:
    """Return Σ_i x_ij and Σ_i x_ij², (s,) float64 each. They are not private."""
    sums, squares = loops.plain_moments(X.data, X.starts)
    return sums, squares


def record_norms(X: SparseBlock, centre: Vector, scale: Vector) -> Vector:
    """Return Σ_j (scale_j x_ij)², (n,) float64; see vfl.kernels.dense.record_norms."""
    centre, scale = check_vectors(X.size, centre, scale)
    _require_uncentred(centre)
    out = np.zeros(X.n_records)
    loops.record_norms(X.between(0, X.n_records), scale, out)
    return out


def weigh(X: SparseBlock, weighting: Callable[[Vector, Vector], Vector], v: Vector, y: Vector) -> Vector:
    """Return weighting(v, y), (n,), for an elementwise weighting. Entries of records without a stored cell are undefined."""
    rows = X.rows[X.starts[0] : X.starts[-1]]
    r = np.empty(len(v))
    r[rows] = weighting(v[rows], y[rows])
    return r


def warm(X: SparseBlock, *, private: bool) -> None:
    """Load or compile the loops for columns of this type, so that the first round of a run does not have to wait."""
    one, zero = np.ones(1), np.zeros(1)
    rows, starts = np.zeros(1, dtype=X.rows.dtype), np.array([0, 1])
    X = SparseBlock.of(np.ones(1, dtype=X.data.dtype), rows, starts, 1)
    forward(X, zero, zero)
    if private:
        first_moments(X, one, 0.5)
        second_moments(X, one, 0.5)
        gradient(X, zero, one, WEIGHTS, Geometry(zero, one, 1.0))
    else:
        plain_gradient(X, zero, one, WEIGHTS, Geometry(zero, one))


def _checked(
    X: SparseBlock, v: Vector, y: Vector, loss: int, geometry: Geometry, n: int | None = None
) -> tuple[Vector, Vector, Geometry]:
    """Return v, y and the geometry with read-only vectors, after checks. n : as in vfl.kernels.dense.checked."""
    v, y = check_vectors(X.n_records, v, y)
    _require_uncentred(geometry.centre)
    check_loss(loss)
    return v, y, checked(geometry, X.size, n)


def _require_uncentred(centre: Vector) -> None:
    if centre.any():
        raise SpecificationError("sparse columns cannot be centred: name their party in the partition's sparse=[...]")
