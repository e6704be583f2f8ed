"""Iterates of a run: their average, and the test for convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.solvers.iterates.average import Average
    from vfl.solvers.iterates.convergence import Convergence
    from vfl.types import Vector


class Trail:
    """Record of each update, for the average of iterates and for the test for convergence.

    step_size : γ.
    still : True if the run had converged at the last update.
    """

    def __init__(self, average: Average, convergence: Convergence, step_size: float) -> None:
        self._average = average
        self._convergence = convergence
        self._step_size = step_size
        self._moved: list[slice] = []
        self._size = 0
        self.still = False

    def moved(self, θ: Vector, Δ: Vector, S: slice, together: int) -> None:
        """Record that Δ was added to θ[S]. Updates from the same margins count as one iterate.

        together : number of coordinates that move from the same margins, including those of S.
        """
        self.still = self._convergence.after(θ, Δ, S, stretch=max(1.0, together / self._step_size))
        self._moved.append(S)
        self._size += Δ.size
        if self._size == together:
            self._average.add(θ, *self._moved)
            self._moved, self._size = [], 0

    def restart(self) -> None:
        """Forget all moves, after a jump of the model: every coordinate must converge again."""
        self._convergence.restart()
        self.still = False

    def outer(self, θ: Vector) -> Vector:
        """Return w at the end of an outer round."""
        return self._average.outer(θ)

    def final(self, w: Vector) -> Vector:
        """Return w at the end of the run, given w at the end of its last outer round."""
        return self._average.final(w)
