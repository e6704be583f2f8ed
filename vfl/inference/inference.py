"""Covariance of the coefficients of one run, for tests and intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Inference:
    """Estimates of a run with their covariance, from sampling and from the noise of privacy together.

    All values are released or post-processed, so tests and intervals cost no further privacy. Coefficients are approximately
    normal around those of the capped regression on infinitely many records.

    names : coordinates as in `Result.original`: features in their order, then '(intercept)'.
    estimates : (k,) coefficients in original units.
    covariance : (k, k) covariance of the estimates.
    noise_covariance : (k, k) part of `covariance` due to the noise of privacy.
    conservative : True if intervals are expected to be wider than their level needs, because the released curvature is noisy.
    notes : caveats to show with the intervals.
    """

    names: tuple[str, ...]
    estimates: Vector
    covariance: Vector
    noise_covariance: Vector
    conservative: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        k = len(self.names)
        if self.estimates.shape != (k,) or not self.covariance.shape == self.noise_covariance.shape == (k, k):
            raise ValueError("an inference needs k estimates and k × k covariances for k names")
        if not all(np.isfinite(v).all() for v in (self.estimates, self.covariance, self.noise_covariance)):
            raise ValueError("an inference needs finite values")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which `from_dict` reads."""
        return {
            "names": list(self.names),
            "estimates": self.estimates.tolist(),
            "covariance": self.covariance.tolist(),
            "noise_covariance": self.noise_covariance.tolist(),
            "conservative": self.conservative,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Self:
        """Return the inference that `to_dict` wrote. Raises KeyError, TypeError or ValueError for other values."""
        estimates, both, noise = (
            np.array(plain[name], dtype=np.float64) for name in ("estimates", "covariance", "noise_covariance")
        )
        names, notes = tuple(map(str, plain["names"])), tuple(map(str, plain["notes"]))
        return cls(names, estimates, both, noise, bool(plain["conservative"]), notes)
