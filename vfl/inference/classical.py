"""Standard errors without privacy: the sandwich estimator (Huber 1967; White 1980)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.losses import Loss
    from vfl.types import Vector

STEP = 1e-4
"""Half the step of the difference quotient of ∂ℓ/∂v, in units of a margin. The quotient's relative error is about STEP²."""
ALIKE = 1e-10
"""Smallest eigenvalue of the scaled curvature, per column, that counts as determined by the records."""


def sandwich(
    X: Vector,
    margins: Vector,
    labels: Vector,
    loss: Loss,
    *,
    weights: Vector | None = None,
    ridge: Vector | None = None,
) -> Vector:
    """Return the sandwich H⁺ J H⁺, (k, k), with H = Σ s ℓ'' x xᵀ + ridge and J = Σ (s ℓ')² x xᵀ; for least squares, HC0.

    Directions that the records do not determine get variance 0. Differences of one-hot levels keep their variance.

    X : (n, k) columns, the intercept included. margins, labels, weights s : (n,). ridge : (k,) nλ per coordinate.
    """
    s = np.ones(len(X)) if weights is None else weights
    first = s * loss.derivative(margins, labels)
    second = s * (loss.derivative(margins + STEP, labels) - loss.derivative(margins - STEP, labels)) / (2.0 * STEP)
    H = (X * second[:, None]).T @ X
    if ridge is not None:
        H[np.diag_indices_from(H)] += ridge
    unit = 1.0 / np.sqrt(np.where(np.diag(H) > 0.0, np.diag(H), 1.0))
    values, vectors = np.linalg.eigh(H * np.outer(unit, unit))
    kept = values > ALIKE * len(values)
    half = vectors[:, kept] * unit[:, None]
    scores = (X @ half) * (first[:, None] / values[kept])
    covariance: Vector = half @ (scores.T @ scores) @ half.T
    return covariance
