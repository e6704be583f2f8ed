"""Proximal step of a block, which applies a released gradient to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.base.penalties import Penalty
    from vfl.base.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class ProxStep:
    """Proximal step, which returns Δ = prox_{s ψ}(w_S − s √M u/n) − w_S for a released gradient u.

    gain : (s,) s_j/(n·scale_j), the factor of u.
    steps : (s,) s_j, 0 for an unpenalised coordinate, where the prox is the identity.
    """

    gain: Vector
    steps: Vector
    penalty: Penalty

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return Δ, (s,)."""
        return self.penalty.prox(w - self.gain * u, self.steps) - w


@dataclass(frozen=True, slots=True, eq=False)
class ClassesStep(ProxStep):
    """Proximal step for K classes per column. First the mean of u over the classes is subtracted.

    The derivatives of a record sum to 0 over the classes, so this mean is pure noise. Subtracting the mean multiplies the
    variance of the noise by (K − 1)/K.

    classes : K. u holds the K sums of the first column, then those of the second column, and so on.
    """

    classes: int

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return Δ, (s,)."""
        by_column = u.reshape(-1, self.classes)
        centred = by_column - by_column.mean(axis=1, keepdims=True)
        return self.penalty.prox(w - self.gain * centred.ravel(), self.steps) - w


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStep(ProxStep):
    """Proximal step with limits and a quadratic term Ω: Δ = clip(prox_{s ψ}(w_S − s √M u/n − s Ω_S w), low, high) − w_S.

    Clipping after the prox is exact, since prox and clipping act on each coordinate alone: for a convex function of one
    variable on an interval, the minimiser is the clipped minimiser without the interval.

    low, high : (s,) limits. near : coordinates that Ω couples with the block. pull : (s·m,) rows of Ω over `near`, row by row.
    """

    low: Vector
    high: Vector
    pull: tuple[float, ...]
    near: tuple[int, ...]

    def __call__(self, w: Vector, u: Vector, near: Vector | None = None) -> Vector:
        """Return Δ, (s,). near : (m,) values of the coordinates `near` before the step."""
        v = w - self.gain * u
        if near is not None:
            v -= self.steps * (np.reshape(self.pull, (w.size, -1)) @ near)
        return np.clip(self.penalty.prox(v, self.steps), self.low, self.high) - w
