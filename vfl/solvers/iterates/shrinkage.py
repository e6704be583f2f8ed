"""Soft threshold on the moves of a short run. Post-processing: released values choose the threshold, at no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.messages import Step
    from vfl.problem import Problem
    from vfl.types import Vector

MOST = 64
"""Largest number of thresholds to compare."""


class Shrinkage:
    """Shrinks the move d_j of every feature to d_j (1 − t s_j/|ḡ_j|)₊. ḡ_j is the mean released gradient and s_j its noise.

    A short run moves each coordinate along its mean gradient, noise included. Noise adds |d_j| to an L1 penalty, but only
    d_j² to a smooth objective. So noise in many coordinates can outweigh the gain in a few coordinates. The threshold t
    minimises an estimate of the change of F (Stein's lemma: E[g_j Δ_j] = E[ḡ_j Δ_j] − s_j² E[∂Δ_j/∂ḡ_j])

        Σ_j ḡ_j Δ_j + s_j² |d_j/ḡ_j| 1{Δ_j ≠ 0}  +  ψ(w₀ + Δ) − ψ(w₀)  +  ‖s ∘ Δ‖,

    whose last term is one standard deviation of the first term. If no threshold makes the estimate negative, the model stays
    at its start. Thresholds t > 0 drop every coordinate that moved against its mean gradient.

    start : (p,) w₀, the model at the start, with the intercept of the constant model. on : False leaves every model
    unchanged.
    """

    def __init__(self, problem: Problem, start: Vector, *, on: bool) -> None:
        self._n, self._penalty, self._feature = problem.n_records, problem.penalty, problem.penalised > 0.0
        self._start, self._on = start.copy(), on
        self._sum, self._variance, self._count = np.zeros(start.size), np.zeros(start.size), np.zeros(start.size)

    def saw(self, step: Step, u: Vector) -> None:
        """Record the release u, (s,), with which a step was taken."""
        if self._on and step.event is not None:
            S, unit = step.block.coordinates, self._n * step.scale
            self._sum[S] += u / unit
            self._variance[S] += (step.event.sigma / unit) ** 2
            self._count[S] += 1.0

    def applied(self, w: Vector) -> Vector:
        """Return the model, (p,), with the moves of its features shrunk."""
        moved = self._feature & (self._count > 0.0)
        if not self._on or not moved.any():
            return w
        d, count = (w - self._start)[moved], self._count[moved]
        g, s = self._sum[moved] / count, np.sqrt(self._variance[moved]) / count
        size = abs(g) / s
        slope = np.divide(abs(d), abs(g), out=np.zeros(d.size), where=d * g < 0.0)
        out = w.copy()
        out[moved] = self._start[moved]
        least, still = 0.0, self._penalty.value(out[self._feature])
        found = np.zeros(d.size)
        tried = out.copy()
        for t in (0.0, *np.quantile(size, np.linspace(0.0, 1.0, min(MOST, size.size)))):
            Δ = d * np.maximum(0.0, 1.0 - np.divide(t, size, out=np.full(d.size, np.inf), where=size > 0.0))
            tried[moved] = self._start[moved] + Δ
            change = float(Δ @ g + (slope * s**2) @ (Δ != 0.0)) + self._penalty.value(tried[self._feature]) - still
            change += float(np.linalg.norm(s * Δ))
            if change < least:
                least, found = change, Δ
        out[moved] += found
        return out
