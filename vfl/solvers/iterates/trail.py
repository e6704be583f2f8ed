"""Iterates of SkGD between releases: extrapolation, averages, the test for convergence, and shrinkage.

All of it is post-processing of released values, which costs no budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.solvers.iterates.anderson import Acceleration, accelerated
from vfl.solvers.iterates.convergence import Average, Convergence
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.queries import Step
    from vfl.queries.protocol import Exchange
    from vfl.solvers.blocks.options import BlockOptions
    from vfl.solvers.releases.once import Run


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

    start : (p,) w₀, the model at the start, with the intercept of the constant model. on : False leaves every model unchanged.
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


class Trail:
    """Post-processing of the released values of a run, at no cost. The options of a resolved solver say which parts are used.

    w : (p,) the model at which the passes begin.
    """

    def __init__(self, solver: BlockOptions, run: Run, w: Vector) -> None:
        problem, unit = run.problem, np.sqrt(run.known.smoothness)
        self._average = Average(solver.iterate or "last", run.walk.skipped, solver.turns)
        self._convergence = Convergence(solver.tol, unit, problem.intercept)
        self._acceleration = Acceleration(problem, run.loss, unit, run.present, on=accelerated(solver, problem))
        self._shrinkage = Shrinkage(problem, w, on=solver.by_pass and record_defaults.shrinks(problem))
        self._step_size = solver.step_size or 1.0
        self._moved: list[slice] = []
        self._size = 0
        self._still = False

    def before(self, number: int, θ: Vector) -> Exchange[None]:
        """Begin pass `number` at θ, on the first message of the pass. Extrapolate θ and Xθ in place unless that raises F."""
        if (yield from self._acceleration.before(number, θ)):
            self._restart()

    def moved(self, θ: Vector, Δ: Vector, step: Step, u: Vector, together: int) -> None:
        """Record that a step with release u added Δ to its block of θ. Updates from the same margins count as one iterate.

        together : number of coordinates that move from the same margins, including those of the step.
        """
        S = step.block.coordinates
        self._shrinkage.saw(step, u)
        self._still = self._convergence.after(θ, Δ, S, stretch=max(1.0, together / self._step_size))
        self._moved.append(S)
        self._size += Δ.size
        if self._size == together:
            self._average.add(θ, *self._moved)
            self._moved, self._size = [], 0

    def ends(self, θ: Vector) -> Exchange[bool]:
        """Return True if the run has converged, and extrapolation does not move the model far."""
        if not self._still:
            return False
        if not (yield from self._acceleration.continues(θ)):
            return True
        self._restart()
        return False

    def outer(self, θ: Vector) -> Vector:
        """Return w at the end of an outer round."""
        return self._average.outer(θ)

    def final(self, w: Vector, *, shrunk: bool = False) -> Vector:
        """Return w at the end of the run. w : result of the last outer round. shrunk : True shrinks moves that may be noise."""
        w = self._average.final(w)
        return self._shrinkage.applied(w) if shrunk else w

    def _restart(self) -> None:
        """Forget earlier moves, since the model was extrapolated. Every coordinate must then converge again."""
        self._convergence.restart()
        self._still = False
