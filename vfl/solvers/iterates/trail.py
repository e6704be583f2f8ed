"""Iterates of SkGD between releases: momentum, extrapolation, averages, the test for convergence, and shrinkage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vfl.solvers.iterates.anderson import Acceleration, accelerated
from vfl.solvers.iterates.average import Average
from vfl.solvers.iterates.convergence import Convergence
from vfl.solvers.iterates.momentum import Momentum
from vfl.solvers.iterates.shrinkage import Shrinkage
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from vfl.messages import Query, Step
    from vfl.solvers.protocol import Released
    from vfl.solvers.releases.once import Run
    from vfl.solvers.skgd import SkGD
    from vfl.types import Vector


class Trail:
    """Post-processing of the released values of a run, at no cost. The options of a resolved solver say which parts are used.

    w : (p,) the model at which the passes begin.
    """

    def __init__(self, solver: SkGD, run: Run, w: Vector) -> None:
        problem, unit = run.problem, np.sqrt(run.known.smoothness)
        self._average = Average(solver.iterate or "last", solver.skipped(problem))
        self._convergence = Convergence(solver.tol, unit, problem.intercept)
        self._momentum = Momentum(0.0 if solver.joint else solver.momentum or 0.0)
        self._acceleration = Acceleration(problem, unit, run.present, on=accelerated(solver, problem))
        self._shrinkage = Shrinkage(problem, w, on=solver.by_pass and record_defaults.shrinks(problem))
        self._present = run.present
        self._step_size = solver.step_size or 1.0
        self._moved: list[slice] = []
        self._size = 0
        self._still = False

    def before(self, number: int, θ: Vector) -> Generator[Query, Released, None]:
        """Begin pass `number` at θ, on the first visit of the pass. Extrapolate θ and Xθ in place unless that raises F."""
        if (yield from self._acceleration.before(number, θ)):
            self._restart()

    def push(self, number: int, θ: Vector, visit: Mapping[str, object]) -> dict[str, Vector]:
        """Return the heavy-ball terms of the visited parties, {party: terms for its coordinates}; {} without momentum."""
        push = self._momentum.push(number, θ)
        return {} if push is None else self._present.parts(push, visit)

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

    def ends(self, θ: Vector) -> Generator[Query, Released, bool]:
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
        """Forget all moves after a jump of the model. Every coordinate must then converge again."""
        self._convergence.restart()
        self._still = False
