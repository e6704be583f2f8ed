"""Averages of iterates: post-processing of released values, which costs no budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Vector


class Average:
    """Average of iterates, of the kind that the option `iterate` names.

    iterate : 'last'; 'average' of each outer round (Maranjyan et al. 2024, Alg. 1); or 'tail', average of the last part of
    the run.
    skip : number of updates that the average 'tail' leaves out.
    """

    def __init__(self, iterate: str, skip: int) -> None:
        self._iterate = iterate
        self._skip = skip
        self._seen = 0
        self._count = 0
        # A step moves few of p coordinates. So a value is added to the sum only when the value changes, times the number of
        # steps for which the value lasted.
        self._value: Vector | None = None
        self._total = np.zeros(0)
        self._since = np.zeros(0)

    def add(self, θ: Vector, *moved: slice) -> None:
        """Record an iterate θ, (p,).

        moved : slices of the coordinates that changed, one per update since the last call. Without slices, the call counts as
        one update of all coordinates.
        """
        self._seen += max(1, len(moved))
        if self._iterate == "last" or (self._iterate == "tail" and self._seen <= self._skip):
            return
        self._count += 1
        if self._value is None:
            self._value, self._total, self._since = θ.copy(), np.zeros(θ.size), np.zeros(θ.size)
            return
        for S in moved or (slice(None),):
            self._total[S] += self._value[S] * (self._count - 1 - self._since[S])
            self._value[S], self._since[S] = θ[S], self._count - 1

    def _mean(self) -> Vector | None:
        if self._value is None:
            return None
        mean: Vector = (self._total + self._value * (self._count - self._since)) / self._count
        return mean

    def outer(self, θ: Vector) -> Vector:
        """Return the result of an outer round."""
        mean = self._mean() if self._iterate == "average" else None
        if mean is None:
            return θ
        self._value, self._count = None, 0
        return mean

    def final(self, w: Vector) -> Vector:
        """Return the result of the run. w : result of the run's last outer round."""
        mean = self._mean() if self._iterate == "tail" else None
        return np.asarray(w) if mean is None else mean
