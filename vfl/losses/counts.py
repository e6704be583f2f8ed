"""Losses with a log link, for counts and amounts: Poisson, gamma and Tweedie; and the deviances of such labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.arguments import number, option, require_number
from vfl.errors import SpecificationError
from vfl.losses.base import COUNTS, REACH, Loss

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


LARGEST_MARGIN = 50.0
"""Largest margin of a loss with a log link. Beyond exp(50), steps would be too short to change any coordinate."""
HEADROOM = 3.0
"""Largest mean in units of the largest declared label, unless the job declares it. The mean may exceed all labels by chance."""
SPAN = math.log(3e6)
"""Distance from the highest to the lowest margin of gamma and Tweedie loss, unless the job declares it."""


def _log(label: float) -> float:
    """Return the log of the largest mean for labels of at most `label`: HEADROOM times this label."""
    return math.log(HEADROOM * label) if 0.0 < label < math.inf else LARGEST_MARGIN


def _within(margin: float) -> float:
    return min(max(margin, -LARGEST_MARGIN), LARGEST_MARGIN)


@dataclass(frozen=True, slots=True)
class Poisson(Loss):
    """exp(v) − y v for counts y with mean exp(v). Beyond v = margin, the loss is linear.

    Without the linear part, ℓ'' = exp(v) would have no bound, so no finite M_j would exist and no step size would be safe. With
    it, the loss is convex and once differentiable, ℓ'' ≤ exp(margin), and the largest predicted mean is exp(margin). Labels
    below 0 count as 0. The derivative is as large as the label, so a private job declares a clip or bounds of the label.

    margin : value of v = Xw + intercept beyond which the loss is linear. None takes the log of HEADROOM times
        the largest declared label.
    """

    margin: float | None = option(
        number(
            lambda margin: abs(margin) <= LARGEST_MARGIN,
            f"must lie between ±{LARGEST_MARGIN:g}, since exp(margin) is the largest mean",
        ),
        None,
    )
    name: ClassVar[str] = "poisson"
    classification: ClassVar[bool] = False
    words: ClassVar[str] = "Poisson regression"
    start: ClassVar[str] = COUNTS
    power: ClassVar[float | None] = 1.0
    slope: ClassVar[float] = math.inf

    @property
    def highest(self) -> float:
        """Return `margin`, or the largest possible margin if neither job nor label bounds decide it."""
        return LARGEST_MARGIN if self.margin is None else self.margin

    def declared(self, highest_label: float, exposure: tuple[float, float] = (1.0, 1.0)) -> Self:
        """Return the loss with means of at most HEADROOM·`highest_label`, unless the job declares a margin."""
        if self.margin is not None:
            return self
        return replace(self, margin=_within(_log(highest_label) - math.log(exposure[0])))

    def near(self, start: float, least: float, reach: float = REACH) -> Self:
        """Return the loss with `margin` lowered to start + reach, if it is larger."""
        return replace(self, margin=_within(min(self.highest, start + reach)))

    @property
    def curvature(self) -> float:
        """Return exp(margin)."""
        return math.exp(self.highest)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return exp(v') (1 + v − v') − y v with v' = min(v, margin), (n,)."""
        near = np.minimum(v, self.highest)
        return np.exp(near) * (1.0 + (v - near)) - np.maximum(y, 0.0) * v

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return exp(min(v, margin)) − y, (n,)."""
        return self.response(v) - np.maximum(y, 0.0)

    def response(self, v: Vector) -> Vector:
        """Return the mean, exp(min(v, margin)), (n,)."""
        return np.exp(np.minimum(v, self.highest))


@dataclass(frozen=True, slots=True)
class Power(Loss):
    """exp((2 − p)v)/(2 − p) − y exp((1 − p)v)/(1 − p), for amounts with mean exp(v) and a variance proportional to mean^p.

    Up to a constant in y, this is half the deviance of a Tweedie distribution of power 1 < p ≤ 2, as in scikit-learn. At p = 2
    it is v + y exp(−v). Below v = low and above v = high the loss is linear and stays convex. Labels are clipped to between
    0 and `largest`. Then ℓ'' = (2 − p)exp((2 − p)v) + (p − 1)y exp((1 − p)v) is convex in v. So its maximum L is at v = low or
    v = high, with y = largest. ℓ' rises in v and falls in y, so |ℓ'| has its maximum R at (v, y) = (high, 0) or
    (low, largest).

    low, high : logarithms of the smallest and the largest plausible mean. None takes log(HEADROOM·largest) for
        `high`, and SPAN less for `low`.
    largest : the largest label, which the job takes from the label's declared bounds.
    """

    low: float | None = option(require_number, None)
    high: float | None = option(require_number, None)
    largest: float = option(number(lambda largest: largest > 0.0, "is the largest label, above 0"), math.inf)
    classification: ClassVar[bool] = False
    start: ClassVar[str] = COUNTS

    def __post_init__(self) -> None:
        Loss.__post_init__(self)
        if not -LARGEST_MARGIN <= self.lowest < self.highest <= LARGEST_MARGIN:
            raise SpecificationError(
                f"{self.name}: low and high are logarithms of the least and the largest mean, -{LARGEST_MARGIN:g} ≤ low < "
                f"high ≤ {LARGEST_MARGIN:g}, not {self.low!r} and {self.high!r}"
            )

    @property
    def _p(self) -> float:
        return float(self.power or 2.0)

    @property
    def highest(self) -> float:
        """Return `high`, or the largest possible margin if neither job nor label bounds decide it."""
        return LARGEST_MARGIN if self.high is None else self.high

    @property
    def lowest(self) -> float:
        """Return `low`, or the smallest possible margin if neither job nor label bounds decide it."""
        return -LARGEST_MARGIN if self.low is None else self.low

    def declared(self, highest_label: float, exposure: tuple[float, float] = (1.0, 1.0)) -> Self:
        """Return the loss for labels of at most `highest_label`, a declared bound. It decides what the job leaves open."""
        most = _log(min(self.largest, highest_label))
        high = _within(most - math.log(exposure[0])) if self.high is None else self.high
        low = min(_within(most - SPAN - math.log(exposure[1])), high - 1.0) if self.low is None else self.low
        return replace(self, low=low, high=max(high, low + 1e-9), largest=min(self.largest, highest_label))

    def near(self, start: float, least: float, reach: float = REACH) -> Self:
        """Return the loss with linear parts above start + reach and below least − reach."""
        high = max(min(self.highest, start + reach), math.nextafter(self.lowest, math.inf))
        low = max(self.lowest, least - reach)
        return replace(self, low=min(low, math.nextafter(high, -math.inf)), high=high)

    @property
    def curvature(self) -> float:
        """Return L, the largest second derivative."""
        p = self._p
        ends = (
            (2.0 - p) * math.exp((2.0 - p) * v) + (p - 1.0) * self.largest * math.exp((1.0 - p) * v)
            for v in (self.lowest, self.highest)
        )
        return max(ends)

    @property
    def slope(self) -> float:
        """Return R, the largest derivative in magnitude."""
        p = self._p
        most = abs(math.exp((2.0 - p) * self.lowest) - self.largest * math.exp((1.0 - p) * self.lowest))
        return math.nextafter(max(math.exp((2.0 - p) * self.highest), most) * (1.0 + 1e-12), math.inf)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ℓ(v') + (v − v')·ℓ'(v') with v' = v clipped to [low, high], (n,)."""
        p, near, y = self._p, self._near(v), self._clamped(y)
        rising = near if p == 2.0 else np.exp((2.0 - p) * near) / (2.0 - p)
        return rising + y * np.exp((1.0 - p) * near) / (p - 1.0) + (v - near) * self.derivative(v, y)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return exp((2 − p)v') − y exp((1 − p)v'), (n,)."""
        p, near = self._p, self._near(v)
        return np.exp((2.0 - p) * near) - self._clamped(y) * np.exp((1.0 - p) * near)

    def response(self, v: Vector) -> Vector:
        """Return the mean, exp(v'), (n,), with v' = v clipped to [low, high]."""
        return np.exp(self._near(v))

    def _near(self, v: Vector) -> Vector:
        return np.clip(v, self.lowest, self.highest)

    def _clamped(self, y: Vector) -> Vector:
        return np.clip(y, 0.0, self.largest)


@dataclass(frozen=True, slots=True)
class Gamma(Power):
    """v + y exp(−v) for amounts y > 0 with mean exp(v) and a standard deviation proportional to the mean; `Power` with p = 2.

    Use it for the size of a claim. scikit-learn's counterpart is GammaRegressor.
    """

    name: ClassVar[str] = "gamma"
    power: ClassVar[float | None] = 2.0
    words: ClassVar[str] = "gamma regression"


@dataclass(frozen=True, slots=True)
class Tweedie(Power):
    """Loss of amounts y ≥ 0 that are often exactly 0, with mean exp(v); see `Power`.

    Use it for the cost of claims per contract. scikit-learn's counterpart is TweedieRegressor.

    power : p, between 1 and 2. For p = 1 use 'poisson', for p = 2 'gamma'.
    """

    power: float = option(  # type: ignore[misc]  # of one object here, of the class elsewhere
        number(lambda power: 1.0 < power < 2.0, "lies between 1 (poisson loss) and 2 (gamma loss)"), 1.5
    )
    name: ClassVar[str] = "tweedie"
    words: ClassVar[str] = "Tweedie regression"
