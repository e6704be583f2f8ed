"""Anderson extrapolation, for runs without privacy only: the check that F does not rise depends on data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.queries import ExactTally
from vfl.queries.statistics import Losses
from vfl.solvers.iterates.convergence import largest

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.queries.protocol import Exchange
    from vfl.solvers.blocks.options import BlockOptions
    from vfl.solvers.blocks.presence import Presence

WINDOW = 10
"""Number of passes between two extrapolations. These passes take the same steps in the same order: each applies one map."""
ENOUGH = 3
"""Smallest number of iterates from which a limit can be estimated."""
SINGULAR = 1e-10
"""Relative threshold of singular values. Directions below the threshold are rounding errors or repetitions, and are ignored."""
FAR = 1e-6
"""A converged run continues if extrapolation moves a coordinate by more than this share of the largest coordinate."""
ROUNDING = 4.0 * float(np.finfo(np.float64).eps)
MESSAGES = 4
"""Largest number of queries per extrapolation: loss, new margins, loss at the new margins, return to the old margins."""


def accelerated(solver: BlockOptions, problem: Problem) -> bool:
    """Return True for a run that uses extrapolation: no privacy, no clips, a tolerance, and passes in a fixed order."""
    fixed = solver.sampling in ("shuffled", "cyclic", "full") and solver.iterate == "last"
    return not problem.private and solver.tol is not None and solver.clip == math.inf and fixed


def extrapolated(iterates: Vector, unit: Vector) -> Vector:
    """Estimate the limit of a linear iteration, (p,), from its iterates; exact once the iterates span the errors.

    Let d_k = w_{k+1} − w_k. Among coefficients c_k with Σ c_k = 1, least squares on the differences of the d_k finds those
    that minimise ‖Σ c_k d_k‖. The limit is Σ c_k w_{k+1} (Anderson 1965; for coordinate descent Bertrand & Massias 2021, Alg.
    1).

    iterates : (K + 1, p), K ≥ 2. unit : (p,) √M_j, so that the columns' units do not matter.
    """
    moves = np.diff(iterates, axis=0)
    apart = np.diff(moves, axis=0)
    c = np.linalg.lstsq((apart * unit).T, -moves[-1] * unit, rcond=SINGULAR)[0]
    return np.asarray(iterates[-1] + c @ moves[1:])


class Acceleration:
    """Extrapolates the iterates after every WINDOW passes and at convergence, unless extrapolation raises the objective.

    For columns of condition number κ, coordinate descent needs O(κ) passes; with extrapolation it needs about √κ.
    """

    def __init__(self, problem: Problem, loss: Loss, unit: Vector, present: Presence, *, on: bool) -> None:
        self._problem, self._loss = problem, loss
        self._unit = unit
        self._present = present
        self._on = on
        self._iterates: list[Vector] = []
        self._pass = -1
        self._jumped = False

    def before(self, number: int, θ: Vector) -> Exchange[bool]:
        """Record the iterate before a pass. Return True if θ and Xθ were extrapolated, in place."""
        if not self._on or number == self._pass:
            return False
        self._pass = number
        self._iterates.append(θ.copy())
        if number % WINDOW:
            return False
        self._jumped = yield from self._moved(θ, least=0.0)
        self._iterates = [θ.copy()]
        return self._jumped

    def continues(self, θ: Vector) -> Exchange[bool]:
        """Extrapolate a converged run. Return True if extrapolation moved θ far, so that the run must continue.

        This matters for collinear columns, where moves are small even far from the limit.
        """
        if self._jumped and len(self._iterates) < ENOUGH:
            return True  # a few more passes show whether the last extrapolation reached the optimum
        self._jumped = yield from self._moved(θ, least=FAR)
        self._iterates = []  # a converged run may stop within a pass, so its iterates are not one pass apart
        return self._jumped

    def _moved(self, θ: Vector, least: float) -> Exchange[bool]:
        """Set θ to the extrapolation if it moves far enough and does not raise the objective."""
        if len(self._iterates) < ENOUGH:
            return False
        there = extrapolated(np.array(self._iterates), self._unit) * self._present.mask
        if not np.isfinite(there).all():
            return False
        far = largest(there - θ, self._unit, self._problem.intercept)
        if far <= least * largest(θ, self._unit, self._problem.intercept):
            return False
        before, here = (yield from self._objective(θ)), θ.copy()
        θ[:] = yield from self._present.rebuilt(there)
        if (yield from self._objective(θ)) <= before + ROUNDING * abs(before):
            return True
        θ[:] = yield from self._present.rebuilt(here)
        return False

    def _objective(self, θ: Vector) -> Exchange[float]:
        """Return the objective F(θ) without noise. The query reaches no party, since the coordinator holds Xθ."""
        ((total,),) = yield ExactTally(Losses(self._loss), None)
        return float(total) / self._problem.n_records + self._problem.penalty_of(θ)
