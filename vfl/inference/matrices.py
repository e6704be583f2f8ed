"""Released matrices of products of columns, and draws from the posterior of these matrices before noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Vector

FLOOR = 0.03
"""Smallest allowed eigenvalue of a drawn matrix, as a share of the mean diagonal entry."""


@dataclass(frozen=True, slots=True, eq=False)
class Noisy:
    """A released symmetric matrix, with noise of standard deviation σ on the diagonal and σ/√2 elsewhere.

    matrix : (p, p) sum over records. sigma : σ.
    """

    matrix: Vector
    sigma: float

    @property
    def clearness(self) -> float:
        """Mean diagonal entry divided by σ√(2p), which is the norm of the noise matrix; inf without noise."""
        p = len(self.matrix)
        return float(np.trace(self.matrix) / p / (self.sigma * np.sqrt(2.0 * p))) if self.sigma else np.inf

    def drawn(self, count: int, rng: np.random.Generator) -> Vector:
        """Return (count, p, p) positive definite draws from the posterior of the matrix before noise, taking entries as normal.

        Draws shrink off-diagonal entries towards 0, and diagonal entries towards their mean, by the share of the entries'
        spread that is due to noise. Noise in a matrix inflates the inverse, so standard errors from the released matrix would
        be wrong in an unknown direction. The mean of the covariances over the draws avoids this error.
        """
        p = len(self.matrix)
        rows, columns = np.tril_indices(p, -1)
        found = np.zeros((count, p, p))
        off = _posterior(self.matrix[rows, columns], 0.0, self.sigma**2 / 2.0, count, rng)
        found[:, rows, columns] = found[:, columns, rows] = off
        diagonal = np.diag(self.matrix)
        mean = float(diagonal.mean())
        found[:, np.arange(p), np.arange(p)] = _posterior(diagonal, mean, self.sigma**2, count, rng)
        values, vectors = np.linalg.eigh(found)
        floor = FLOOR * max(mean, self.sigma / np.sqrt(p))
        values = np.maximum(values, floor)
        return np.asarray((vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1))


def _posterior(found: Vector, centre: float, variance: float, count: int, rng: np.random.Generator) -> Vector:
    """Return (count, k) posterior draws of k normal values around a centre, which were observed with noise of `variance`."""
    spread = float(((found - centre) ** 2).mean()) - variance if found.size > 1 else np.inf
    kept = 1.0 if not variance or spread == np.inf else max(0.0, spread) / (max(0.0, spread) + variance)
    shrunk = centre + kept * (found - centre)
    error = np.sqrt(kept * variance + (1.0 - kept) ** 2 * (variance / found.size if centre else 0.0))
    return np.asarray(shrunk + error * rng.standard_normal((count, found.size)))
