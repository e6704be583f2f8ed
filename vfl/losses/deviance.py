"""Deviances of counts and amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Vector


def unit_deviance(y: Vector, mean: Vector, power: float) -> Vector:
    """Return the deviance of each label y ≥ 0 for a mean, (n,): 2·(log-likelihood with mean y − log-likelihood with `mean`).

    Power 1 is Poisson: 2(y log(y/m) − y + m). Power 2 is Gamma: 2(log(m/y) + y/m − 1). Powers between 1 and 2 are Tweedie:
    2(y^(2−p)/((1 − p)(2 − p)) − y m^(1−p)/(1 − p) + m^(2−p)/(2 − p)). The deviance is 0 at y = m, as in scikit-learn's
    mean_tweedie_deviance. Labels below 0 count as 0. The result is infinite or NaN if the distribution does not allow the label
    or the mean.
    """
    from scipy.special import xlogy

    p, y = power, np.maximum(y, 0.0)
    with np.errstate(all="ignore"):
        if p == 1.0:
            return np.asarray(2.0 * (xlogy(y, y) - xlogy(y, mean) - y + mean))
        if p == 2.0:
            return np.asarray(2.0 * (np.log(mean / y) + y / mean - 1.0))
        own, slope, rising = y ** (2.0 - p) / ((1.0 - p) * (2.0 - p)), mean ** (1.0 - p), mean ** (2.0 - p)
        return np.asarray(2.0 * (own - y * slope / (1.0 - p) + rising / (2.0 - p)))
