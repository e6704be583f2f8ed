"""Averages of iterates: post-processing of released values, free of charge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Vector


class Average:
    """Keeps the mean of the iterates that an option asks for.

    iterate : 'last', 'average' (of each outer round, Maranjyan et al. 2024, Alg. 1) or 'tail' (of the last half of the run).
    skip : iterates that are left out of the tail.
    """

    def __init__(self, iterate: str, skip: int) -> None:
        self._iterate = iterate
        self._skip = skip
        self._seen = 0
        self._count = 0
        self._mean: Vector | None = None

    def add(self, θ: Vector) -> None:
        """Take note of an iterate, (p,)."""
        self._seen += 1
        if self._iterate == "last" or (self._iterate == "tail" and self._seen <= self._skip):
            return
        self._count += 1
        self._mean = θ.copy() if self._mean is None else self._mean + (θ - self._mean) / self._count

    def outer(self, θ: Vector) -> Vector:
        """Return what an outer round ends with."""
        if self._iterate != "average" or self._mean is None:
            return θ
        mean, self._mean, self._count = self._mean, None, 0
        return mean

    def final(self, w: Vector) -> Vector:
        """Return what the run ends with, given what its last outer round ended with."""
        return self._mean if self._iterate == "tail" and self._mean is not None else np.asarray(w)
