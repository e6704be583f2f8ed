"""Iterates of a run: their average, and the test for a convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.solvers.iterates.average import Average
    from vfl.solvers.iterates.convergence import Convergence
    from vfl.types import Vector


class Trail:
    """Records each update for the average and for the test for a convergence.

    step_size : γ.
    still : True if nothing moves any more, as of the last update.
    """

    def __init__(self, average: Average, convergence: Convergence, step_size: float) -> None:
        self._average = average
        self._convergence = convergence
        self._step_size = step_size
        self._moved: list[slice] = []
        self._size = 0
        self.still = False

    def moved(self, θ: Vector, Δ: Vector, S: slice, together: int) -> None:
        """Record that Δ was added to θ[S]. Updates that are made together are one iterate.

        together : number of coordinates that move from the same margins, including those of S.
        """
        self.still = self._convergence.after(θ, Δ, S, stretch=max(1.0, together / self._step_size))
        self._moved.append(S)
        self._size += Δ.size
        if self._size == together:
            self._average.add(θ, *self._moved)
            self._moved, self._size = [], 0

    def restart(self) -> None:
        """Forget all moves: the model has jumped, so that every coordinate must stand still anew."""
        self._convergence.restart()
        self.still = False

    def outer(self, θ: Vector) -> Vector:
        """Return the w at the end of an outer round."""
        return self._average.outer(θ)

    def final(self, w: Vector) -> Vector:
        """Return the w at the end of the run, given that of its last outer round."""
        return self._average.final(w)
