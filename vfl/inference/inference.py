"""Estimates of one run with their covariance, for tests and intervals; without privacy by the sandwich estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.losses import Loss
    from vfl.types import Vector

SUBSAMPLED = (
    "standard errors are from the spread of 8 fits on disjoint subsamples, with Student's t of 7 degrees of freedom. The "
    "spread does not tell the noise of privacy from sampling, nor show a bias that all fits share"
)


@dataclass(frozen=True, slots=True, eq=False)
class Inference:
    """Estimates of a run with their covariance, which includes both sampling and the noise of privacy.

    All values are released or post-processed, so tests and intervals cost no further privacy. The estimates are approximately
    normal around the coefficients of the capped regression on infinitely many records.

    names : coordinates as in `Result.original`: features in their order, then '(intercept)'.
    estimates : (k,) coefficients in original units.
    covariance : (k, k) covariance of the estimates.
    noise_covariance : (k, k) part of `covariance` due to the noise of privacy; None if that part is not known separately.
    df : degrees of freedom of `covariance`, for Student's t; None for the normal distribution.
    conservative : True if intervals are expected to be too wide for their level, because the released curvature is noisy.
    notes : caveats to show with the intervals.
    """

    names: tuple[str, ...]
    estimates: Vector
    covariance: Vector
    noise_covariance: Vector | None
    conservative: bool = False
    notes: tuple[str, ...] = ()
    df: int | None = None

    def __post_init__(self) -> None:
        k, both = len(self.names), [v for v in (self.covariance, self.noise_covariance) if v is not None]
        if self.estimates.shape != (k,) or any(v.shape != (k, k) for v in both):
            raise ValueError("an inference needs k estimates and k × k covariances for k names")
        if not all(np.isfinite(v).all() for v in (self.estimates, *both)):
            raise ValueError("an inference needs finite values")
        if self.df is not None and self.df < 1:
            raise ValueError("an inference needs at least one degree of freedom")

    @classmethod
    def between(cls, names: Sequence[str], fits: Vector) -> Self:
        """Return the mean of m independent fits, (m, k), with the covariance of the mean, which has m − 1 degrees of freedom.

        The covariance of the mean is the covariance of the fits, divided by m. Each fit has its own records, equal in number,
        and its own noise. The spread of the fits therefore shows sampling and noise together, for any model (random groups:
        Wolter 2007, ch. 2). The mean has the same bias as one fit, which may be m times the bias of a fit to all records.
        """
        m, k = fits.shape
        away = fits - fits.mean(axis=0)
        covariance = away.T @ away / ((m - 1) * m)
        return cls(tuple(names), fits.mean(axis=0), covariance.reshape(k, k), None, notes=(SUBSAMPLED,), df=m - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the inference as plain values, which `from_dict` reads."""
        return {
            "names": list(self.names),
            "estimates": self.estimates.tolist(),
            "covariance": self.covariance.tolist(),
            "noise_covariance": None if self.noise_covariance is None else self.noise_covariance.tolist(),
            "conservative": self.conservative,
            "notes": list(self.notes),
            **({} if self.df is None else {"df": self.df}),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """Return the inference that `to_dict` wrote. Raises KeyError, TypeError or ValueError for any other input."""
        estimates, both = (np.array(plain[name], dtype=np.float64) for name in ("estimates", "covariance"))
        noise = plain["noise_covariance"]
        noise = None if noise is None else np.array(noise, dtype=np.float64)
        df = plain.get("df")
        names, notes = tuple(map(str, plain["names"])), tuple(map(str, plain["notes"]))
        return cls(names, estimates, both, noise, bool(plain["conservative"]), notes, None if df is None else int(df))


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
    return np.asarray(half @ (scores.T @ scores) @ half.T)
