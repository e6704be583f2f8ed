"""Covariance of the averaged model due to the noise of the run's releases, by a linear recursion.

A block update moves the error e = φ − φ*, in units of the scaled columns, by

    e_S ← d (e_S − a (H_S e + ξ)),   ξ ~ N(0, σ² I),

with the curvature H of the sum over records, the gain a = γ/(βn), and d = 1/(1 + sλ) for an L2 penalty. The returned model is
the mean of the iterates after the first updates. `noise_covariance` takes the derivative of this mean along each ξ, backwards
through all updates of blocks. The result is exact for squared loss if the cap cuts no further record. Otherwise it is a
linearisation at the returned model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.solvers.blocks.observed import Update
    from vfl.types import Vector


def noise_covariance(updates: Sequence[Update], skipped: int, H: Vector) -> Vector:
    """Return the covariances (m, p, p) of the mean of all iterates after the first `skipped` updates.

    updates : in the order of the run. H : (m, p, p) curvatures of the sum, one per draw.
    """
    m, p, _ = H.shape
    weight = 1.0 / (len(updates) - skipped)
    A, V = np.zeros((m, p, p)), np.zeros((m, p, p))  # A: derivative of the mean along the error after this update
    diagonal = np.arange(p)
    pending: list[Vector] = []
    for number in range(len(updates) - 1, -1, -1):
        S, gain, kept, sigma = updates[number]
        if number >= skipped:
            A[:, diagonal, diagonal] += weight
        moved = A[:, :, S] * (kept * gain)
        pending.append(sigma * moved)
        A[:, :, S] *= kept
        A -= moved @ H[:, S, :]
        if len(pending) >= p or not number:
            G = np.concatenate(pending, axis=2)
            V += G @ G.transpose(0, 2, 1)
            pending = []
    return V
