"""Passes for K margins per record, under one cap for all classes.

`ClassKernels` calls the kernels for one margin once per class. `DenseClassKernels` reads every cell once for all classes. Both
return identical integers, and margins that are identical to the bit. Their plain sums agree up to rounding.

Guarantee. A record contributes ρ_i ⊗ z_{i,S}: K residuals times the block's scaled columns z = scale ∘ (x − c). If
‖ρ_i‖ ≤ limits_i, the norm of the contribution is at most limits_i·‖z_{i,S}‖. The bounds that vfl.kernels.dense states for s
coordinates therefore hold here for the s·K coordinates of a block: one cap covers all classes. This needs one centre and
one scale for all classes of a column; other geometries are refused.

Vectors of margins and residuals are (K·n,), one class after another. Vectors of coordinates are (s·K,): the K classes of the
first column, then of the next. Labels of MULTINOMIAL are y, (n,), or y followed by weights s in [0, 1], (2n,). Residuals are
capped first and then weighed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import PrivacyError, SpecificationError
from vfl.kernels import class_loops as loops
from vfl.kernels.dense import (
    MULTINOMIAL,
    WEIGHTS,
    bounds_of,
    check_vectors,
    check_writable,
    checked,
    columns_of,
    each,
    read_only,
    total,
)
from vfl.kernels.dense_loops import PANEL
from vfl.kernels.geometry import Geometry, capped, record_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.base.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True, eq=False)
class ClassKernels:
    """The functions of vfl.kernels.dense, but for K classes, and for dense or sparse columns.

    kernels : vfl.kernels.dense or vfl.kernels.sparse. classes : K.
    nothing : a block without columns.
    """

    kernels: Any
    classes: int
    nothing: Any

    def capped_step(
        self,
        X_prev: Any,
        delta: Vector,
        shift: Any,
        v: Vector,
        loss: int,
        X: Any,
        geometry: Geometry,
        bounds: Vector,
        *,
        threads: int = 1,
    ) -> Integers:
        """Add X_prev Δ + shift to v, in place. Return Σ_i rint(ρ_i ⊗ z_i/g), (s·K,), with ‖ρ_i‖ ≤ limits_i.

        v : (K·n,) margins for MULTINOMIAL, residuals for WEIGHTS.
        bounds : result of vfl.kernels.dense.bounds_of for the limits, (n,). A limit is the largest norm of a record's K
            residuals. For MULTINOMIAL the cap adds no bias at the true probabilities (vfl.kernels.geometry.capped).
        """
        self.forward(X_prev, delta, v, shift, threads=threads)
        if loss == MULTINOMIAL:
            r = self._residuals(v, bounds, threads)
        else:
            require_weights(loss)
            r = capped(v, bounds)
        at, free = self.of_columns(geometry), np.full(r.size // self.classes, np.inf)
        sums = [
            self.kernels.capped_step(self.nothing, np.zeros(0), 0.0, own, WEIGHTS, X, at, free, threads=threads)
            for own in self._by_class(r)
        ]
        return np.stack(sums, axis=1).ravel()

    def gradient(self, X: Any, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Integers:
        """Return Σ_i rint(clip_κ(r_i ⊗ z_i)/g), (s·K,).

        The norm of a record's K residuals is capped at κ/‖z_i‖ of the block.
        """
        limits = record_limits(self.record_norms(X, geometry.centre, geometry.scale), geometry.cap)
        bounds = bounds_of(limits, y, loss)
        return self.capped_step(self.nothing, np.zeros(0), 0.0, v.copy(), loss, X, geometry, bounds, threads=threads)

    def plain_gradient(
        self, X: Any, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1
    ) -> Vector:
        """Return Σ_i r_i ⊗ z_i, (s·K,) float64. The result is not private, since it has no clip and no grid."""
        v = self._uncapped(v, y, loss, threads)
        at = self.of_columns(geometry)
        sums = [self.kernels.plain_gradient(X, r, r, WEIGHTS, at, threads=threads) for r in self._by_class(v)]
        return np.stack(sums, axis=1).ravel()

    def forward(self, X: Any, delta: Vector, v: Vector, shift: Any = 0.0, *, threads: int = 1) -> Vector:
        """Add X Δ_k + shift_k to the margins of every class k, in place, and return v, (K·n,).

        shift : one number for all classes, or (K,).
        """
        shifts = np.broadcast_to(np.asarray(shift, dtype=np.float64), (self.classes,))
        by_class = np.ascontiguousarray(delta.reshape(-1, self.classes).T)
        for margins, own, added in zip(self._by_class(v), by_class, shifts, strict=True):
            self.kernels.forward(X, own, margins, float(added), threads=threads)
        return v

    def record_norms(self, X: Any, centre: Vector, scale: Vector) -> Vector:
        """Return Σ_j t_ij² over the columns, (n,). These norms apply to all classes."""
        at = self.of_columns(Geometry(centre, scale))
        return np.asarray(self.kernels.record_norms(X, at.centre, at.scale))

    def weigh(self, X: Any, weighting: Callable[[Vector, Vector], Vector], v: Vector, y: Vector) -> Vector:
        """Return weighting(v, y), (K·n,)."""
        return weighting(v, y)

    def _residuals(self, v: Vector, bounds: Vector, threads: int) -> Vector:
        """Return the derivatives of multinomial loss at margins v, (K·n,).

        Their norms are capped at the limits, then weighed.
        """
        limits, y = map(read_only, self._limits_and_labels(v, bounds))
        n, r = limits.size, np.empty(v.size)
        (v,) = check_vectors(n * self.classes, v)
        each(lambda start, stop: loops.class_residuals(v, y, limits, self.classes, r, start, stop), n, v.size, threads)
        return r

    def _uncapped(self, v: Vector, y: Vector, loss: int, threads: int) -> Vector:
        if loss == MULTINOMIAL:
            return self._residuals(v, bounds_of(np.full(v.size // self.classes, np.inf), y, loss), threads)
        require_weights(loss)
        return v

    def _limits_and_labels(self, v: Vector, bounds: Vector) -> tuple[Vector, Vector]:
        """Split the bounds for MULTINOMIAL (`bounds_of`) into limits, (n,), and labels, (n,), or (2n,) with weights."""
        n = v.size // self.classes
        limits, y = np.ascontiguousarray(bounds[:n]), np.ascontiguousarray(bounds[n:])
        check_vectors(n, limits)
        check_vectors(2 * n if y.size > n else n, y)
        return limits, y

    def _by_class(self, v: Vector) -> Vector:
        return v.reshape(self.classes, -1)

    def of_columns(self, geometry: Geometry) -> Geometry:
        """Return the geometry per column. Raises PrivacyError unless all classes of a column share one centre and one scale."""
        centre, scale = (value.reshape(-1, self.classes) for value in (geometry.centre, geometry.scale))
        if not ((centre == centre[:, :1]).all() and (scale == scale[:, :1]).all()):
            raise PrivacyError("the classes of a column share the norm of a record: give them one centre and one scale")
        own = (np.ascontiguousarray(values[:, 0]) for values in (centre, scale))
        return Geometry(next(own), next(own), geometry.cap, geometry.grid)


@dataclass(frozen=True, slots=True, eq=False)
class DenseClassKernels(ClassKernels):
    """`ClassKernels` for dense columns, with one pass for all classes."""

    def capped_step(
        self,
        X_prev: Matrix,
        delta: Vector,
        shift: Any,
        v: Vector,
        loss: int,
        X: Matrix,
        geometry: Geometry,
        bounds: Vector,
        *,
        threads: int = 1,
    ) -> Integers:
        """Add X_prev Δ + shift to v, in place. Return Σ_i rint(ρ_i ⊗ z_i/g), (s·K,), with ‖ρ_i‖ ≤ limits_i."""
        K, n = self.classes, v.size // self.classes
        columns = columns_of(X, n)
        by = checked(self.of_columns(geometry), len(columns), n)
        if loss != MULTINOMIAL:
            require_weights(loss)
            self.forward(X_prev, delta, v, shift, threads=threads)
            r = capped(v, bounds)

            def sums(start: int, stop: int) -> Integers:
                return loops.class_sums(r, columns, by, K, start, stop)

            return total(each(sums, n, K * columns.size, threads))
        previous = columns_of(X_prev, n)
        own, moving, shifts = self._moves(delta, shift)
        limits, y = map(read_only, self._limits_and_labels(v, bounds))
        check_vectors(n * K, v)
        check_writable(v)

        def rows(start: int, stop: int) -> Integers:
            return loops.class_step(previous, own, moving, shifts, v, y, limits, columns, by, start, stop)

        return total(each(rows, n, K * (columns.size + previous.size), threads))

    def plain_gradient(
        self, X: Matrix, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1
    ) -> Vector:
        """Return Σ_i r_i ⊗ z_i, (s·K,) float64. The result is not private, since it has no clip and no grid."""
        K, n = self.classes, v.size // self.classes
        columns = columns_of(X, n)
        by = checked(self.of_columns(geometry), len(columns))
        v = self._uncapped(v, y, loss, threads)
        (r,) = check_vectors(n * K, v)
        partial = np.zeros((-(-n // PANEL), len(columns) * K))
        each(
            lambda start, stop: loops.class_plain(r, columns, by, K, partial, start, stop), n, K * columns.size, threads
        )
        return np.asarray(np.repeat(by.scale, K) * partial.sum(axis=0))

    def forward(self, X: Matrix, delta: Vector, v: Vector, shift: Any = 0.0, *, threads: int = 1) -> Vector:
        """Add X Δ_k + shift_k to the margins of every class k, in place, and return v, (K·n,)."""
        n = v.size // self.classes
        columns = columns_of(X, n)
        own, moving, shifts = self._moves(delta, shift)
        check_vectors(n * self.classes, v)
        check_writable(v)
        each(
            lambda start, stop: loops.class_forward(columns, own, moving, shifts, v, start, stop),
            n,
            v.size * len(columns),
            threads,
        )
        return v

    def _moves(self, delta: Vector, shift: Any) -> tuple[Matrix, Integers, Vector]:
        """Return Δ, (s, K), the indices of columns with Δ ≠ 0, and the shifts, (K,)."""
        own = np.ascontiguousarray(delta, dtype=np.float64).reshape(-1, self.classes)
        shifts = np.array(np.broadcast_to(np.asarray(shift, dtype=np.float64), (self.classes,)))
        return read_only(own), np.flatnonzero(own.any(axis=1)), read_only(shifts)


def require_weights(loss: int) -> None:
    """Raise SpecificationError unless the loss has a kernel for several classes."""
    if loss != WEIGHTS:
        raise SpecificationError(
            f"no kernel of several classes for loss code {loss!r}: compute the weights, pass WEIGHTS"
        )
