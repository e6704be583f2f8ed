"""Centres and smoothness constants of the columns, as far as a run knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Curvature:
    """Centres and smoothness constants of the columns before the first step. Released values are public.

    centre : (p,) c_j, 0 where columns are not centred.
    smoothness : (p,) M_j > 0 of the centred columns.
    unit : unit of the residuals; 1 unless the spread of the labels was released (vfl.solvers.releases.labels).
    noise : standard deviation of the noise of the released mean squares, in units of B_j²; 0 for exact or declared values.
    """

    centre: Vector
    smoothness: Vector
    unit: float = 1.0
    noise: float = 0.0

    @classmethod
    def flat(cls, problem: Problem) -> Curvature:
        """Return a curvature with M = 1 and no centres. It serves counts of messages and releases, which do not depend on M."""
        p = problem.layout.n_coordinates
        return cls(np.zeros(p), np.ones(p))

    def uncentred(self, w: Vector, intercept: Vector) -> Vector:
        """Return w for the uncentred columns. The intercept absorbs the shift by the centres. intercept : (p,) mask."""
        return w - intercept * self._shift(w, intercept)

    def centred(self, w: Vector, intercept: Vector) -> Vector:
        """Return w for the centred columns. This is the inverse of `uncentred`."""
        return w + intercept * self._shift(w, intercept)

    def _shift(self, w: Vector, intercept: Vector) -> float | Vector:
        """Return c·w. With K classes, return (p·K,): each coordinate gets c·w of its class."""
        classes = int(intercept.sum())
        if classes > 1:
            return np.asarray(np.tile((self.centre * w).reshape(-1, classes).sum(axis=0), w.size // classes))
        return float(self.centre @ w)
