"""The iterates of a run as they are made: their average, and whether they stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.solvers.average import Average
    from vfl.solvers.standstill import Standstill
    from vfl.types import Vector


class Trail:
    """Notes each update in the average and in the test for a standstill.

    step_size : γ.
    still : whether nothing moves any more, as of the last update.
    """

    def __init__(self, average: Average, standstill: Standstill, step_size: float) -> None:
        self._average = average
        self._standstill = standstill
        self._step_size = step_size
        self._moved: list[slice] = []
        self._size = 0
        self.still = False

    def moved(self, θ: Vector, Δ: Vector, S: slice, together: int) -> None:
        """Note that Δ was added to θ[S]. Updates that are made together are one iterate.

        together : number of coordinates that move from the same margins, those of S among them.
        """
        self.still = self._standstill.after(θ, Δ, S, stretch=max(1.0, together / self._step_size))
        self._moved.append(S)
        self._size += Δ.size
        if self._size == together:
            self._average.add(θ, *self._moved)
            self._moved, self._size = [], 0

    def outer(self, θ: Vector) -> Vector:
        """Return the w that an outer round ends with."""
        return self._average.outer(θ)

    def final(self, w: Vector) -> Vector:
        """Return the w that the run ends with, given that of its last outer round."""
        return self._average.final(w)
