"""Passes for K margins per record. They run the kernels of one margin per class, under one cap for all classes.

Guarantee. A record contributes ρ_i ⊗ z_{i,S}: K residuals times the block's scaled columns z = scale ∘ (x − c). With
‖ρ_i‖ ≤ limits_i its norm is at most limits_i·‖z_{i,S}‖. So the bounds that vfl.kernels.dense states for s coordinates hold here
for the s·K coordinates of a block: the cap is joint over the classes. All classes of a column must have the same centre and
scale, since the bound needs it; other geometries are refused.

Vectors of margins and residuals are (K·n,), one class after another. Vectors of coordinates are (s·K,), one column after
another, each with its K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import PrivacyError, SpecificationError
from vfl.kernels import dense_loops as loops
from vfl.kernels.dense import MULTINOMIAL, WEIGHTS, bounds_of, check_vectors, each, read_only
from vfl.kernels.geometry import Geometry, capped, record_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.types import Integers, Vector


@dataclass(frozen=True, slots=True, eq=False)
class ClassKernels:
    """The functions of vfl.kernels.dense for K classes. They call the kernels for dense or sparse columns.

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
        """Add X_prev Δ + shift to v, in place; return Σ_i rint(ρ_i ⊗ z_i/g), (s·K,), with ‖ρ_i‖ ≤ limits_i.

        v : (K·n,) margins for MULTINOMIAL, residuals for WEIGHTS.
        bounds : vfl.kernels.dense.bounds_of the limits; a limit, (n,), is the largest norm of a record's K residuals. For
            MULTINOMIAL the cap adds no bias at the true probabilities (vfl.kernels.geometry.capped).
        """
        self.forward(X_prev, delta, v, shift, threads=threads)
        if loss == MULTINOMIAL:
            limits, y = bounds.reshape(2, -1)
            r = self._residuals(v, y, limits, threads)
        else:
            _require_weights(loss)
            r = capped(v, bounds)
        at, free = self._of_columns(geometry), np.full(r.size // self.classes, np.inf)
        sums = [
            self.kernels.capped_step(self.nothing, np.zeros(0), 0.0, own, WEIGHTS, X, at, free, threads=threads)
            for own in self._by_class(r)
        ]
        return np.stack(sums, axis=1).ravel()

    def gradient(self, X: Any, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1) -> Integers:
        """Return Σ_i rint(clip_κ(r_i ⊗ z_i)/g), (s·K,). The norm of the K residuals is capped at κ/‖z_i‖ of the block."""
        limits = record_limits(self.record_norms(X, geometry.centre, geometry.scale), geometry.cap)
        bounds = bounds_of(limits, y, loss)
        return self.capped_step(self.nothing, np.zeros(0), 0.0, v.copy(), loss, X, geometry, bounds, threads=threads)

    def step(
        self,
        X_prev: Any,
        delta: Vector,
        shift: Any,
        v: Vector,
        y: Vector,
        loss: int,
        X: Any,
        geometry: Geometry,
        *,
        threads: int = 1,
    ) -> Integers:
        """Add X_prev Δ + shift to v, in place, then return `gradient`."""
        self.forward(X_prev, delta, v, shift, threads=threads)
        return self.gradient(X, v, y, loss, geometry, threads=threads)

    def plain_gradient(
        self, X: Any, v: Vector, y: Vector, loss: int, geometry: Geometry, *, threads: int = 1
    ) -> Vector:
        """Return Σ_i r_i ⊗ z_i, (s·K,) float64. It is not private: it has no clip and no grid."""
        if loss == MULTINOMIAL:
            v = self._residuals(v, y, np.full(y.size, np.inf), threads)
        else:
            _require_weights(loss)
        at = self._of_columns(geometry)
        sums = [self.kernels.plain_gradient(X, r, r, WEIGHTS, at, threads=threads) for r in self._by_class(v)]
        return np.stack(sums, axis=1).ravel()

    def plain_step(
        self,
        X_prev: Any,
        delta: Vector,
        shift: Any,
        v: Vector,
        y: Vector,
        loss: int,
        X: Any,
        geometry: Geometry,
        *,
        threads: int = 1,
    ) -> Vector:
        """Add X_prev Δ + shift to v, in place, then return `plain_gradient`."""
        self.forward(X_prev, delta, v, shift, threads=threads)
        return self.plain_gradient(X, v, y, loss, geometry, threads=threads)

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
        """Return Σ_j t_ij², (n,), over the columns. All classes share these norms."""
        at = self._of_columns(Geometry(centre, scale))
        norms: Vector = self.kernels.record_norms(X, at.centre, at.scale)
        return norms

    def weigh(self, X: Any, weighting: Callable[[Vector, Vector], Vector], v: Vector, y: Vector) -> Vector:
        """Return weighting(v, y), (K·n,)."""
        del X
        return weighting(v, y)

    def _residuals(self, v: Vector, y: Vector, limits: Vector, threads: int) -> Vector:
        """Return the derivatives of multinomial loss at margins v, (K·n,), with norms within the limits."""
        n, r = y.size, np.empty(v.size)
        check_vectors(n * self.classes, v)
        y, limits = (np.ascontiguousarray(given) for given in (y, limits))
        check_vectors(n, y, limits)
        v, y, limits = (read_only(given) for given in (v, y, limits))
        each(lambda start, stop: loops.class_residuals(v, y, limits, self.classes, r, start, stop), n, v.size, threads)
        return r

    def _by_class(self, v: Vector) -> Vector:
        """Return views of the vectors of the classes, (K, n)."""
        return v.reshape(self.classes, -1)

    def _of_columns(self, geometry: Geometry) -> Geometry:
        """Return the geometry of the columns; PrivacyError unless all classes of a column share theirs."""
        centre, scale = (value.reshape(-1, self.classes) for value in (geometry.centre, geometry.scale))
        if not ((centre == centre[:, :1]).all() and (scale == scale[:, :1]).all()):
            raise PrivacyError(
                "the classes of a column need one centre and one scale: a record has one norm for all of them"
            )
        own = (np.ascontiguousarray(values[:, 0]) for values in (centre, scale))
        return Geometry(next(own), next(own), geometry.cap, geometry.grid)


def _require_weights(loss: int) -> None:
    if loss != WEIGHTS:
        raise SpecificationError(
            f"no kernel of several classes for loss code {loss!r}: compute the weights, pass WEIGHTS"
        )
