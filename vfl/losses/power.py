"""Losses of amounts: gamma and Tweedie."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.arguments import as_floats, require_number
from vfl.errors import SpecificationError
from vfl.losses.base import COUNTS, REACH, Loss
from vfl.losses.poisson import LARGEST_MARGIN

if TYPE_CHECKING:
    from vfl.types import Vector


@dataclass(frozen=True, slots=True)
class Power(Loss):
    """exp((2 − p)v)/(2 − p) − y exp((1 − p)v)/(1 − p), for amounts with mean exp(v) and a variance proportional to mean^p.

    Up to a constant in y, this is half the deviance of a Tweedie distribution of power 1 < p ≤ 2, as in scikit-learn. At p = 2
    it is v + y exp(−v). Below v = low and above v = high the loss is linear and stays convex. Labels are clipped to [0,
    largest]. Then ℓ'' = (2 − p)exp((2 − p)v) + (p − 1)y exp((1 − p)v) is convex in v, so its maximum L is at v = low or v =
    high, with y = largest. ℓ' rises in v and falls in y, so |ℓ'| has its maximum R at (v, y) = (high, 0) or (low, largest).

    low, high : logarithms of the smallest and the largest plausible mean. Declare them tightly, since steps shrink as L grows.
    largest : the largest label, which the job takes from the label's declared bounds.
    """

    low: float = -3.0
    high: float = 3.0
    largest: float = math.inf
    classification: ClassVar[bool] = False
    start: ClassVar[str] = COUNTS

    def __post_init__(self) -> None:
        name = self.name
        for option in ("low", "high"):
            require_number(f"{name}: {option}", getattr(self, option))
        if not -LARGEST_MARGIN <= self.low < self.high <= LARGEST_MARGIN:
            raise SpecificationError(
                f"{name}: low and high are logarithms of the least and the largest mean, -{LARGEST_MARGIN:g} ≤ low < high ≤ "
                f"{LARGEST_MARGIN:g}, not {self.low!r} and {self.high!r}"
            )
        require_number(f"{name}: largest", self.largest)
        if not self.largest > 0.0:
            raise SpecificationError(f"{name}: largest is the largest label, above 0, not {self.largest!r}")
        as_floats(self, "low", "high", "largest")

    @property
    def _p(self) -> float:
        return float(self.power or 2.0)

    @property
    def highest(self) -> float:
        """Return `high`."""
        return self.high

    def declared(self, highest_label: float) -> Self:
        """Return the loss for labels of at most `highest_label`, a declared bound."""
        return replace(self, largest=min(self.largest, highest_label))

    def near(self, start: float, least: float) -> Self:
        """Return the loss with linear parts above start + REACH and below least − REACH."""
        high = max(min(self.high, start + REACH), math.nextafter(self.low, math.inf))
        low = max(self.low, least - REACH)
        return replace(self, low=min(low, math.nextafter(high, -math.inf)), high=high)

    @property
    def curvature(self) -> float:
        """Return L, the largest second derivative."""
        p = self._p
        ends = (
            (2.0 - p) * math.exp((2.0 - p) * v) + (p - 1.0) * self.largest * math.exp((1.0 - p) * v)
            for v in (self.low, self.high)
        )
        return max(ends)

    @property
    def slope(self) -> float:
        """Return R, the largest derivative in magnitude."""
        p = self._p
        most = abs(math.exp((2.0 - p) * self.low) - self.largest * math.exp((1.0 - p) * self.low))
        return math.nextafter(max(math.exp((2.0 - p) * self.high), most) * (1.0 + 1e-12), math.inf)

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
        return np.clip(v, self.low, self.high)

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

    power: float = 1.5  # type: ignore[misc]  # of one object here, of the class elsewhere
    name: ClassVar[str] = "tweedie"
    words: ClassVar[str] = "Tweedie regression"

    def __post_init__(self) -> None:
        require_number("tweedie: power", self.power)
        if not 1.0 < self.power < 2.0:
            raise SpecificationError(
                f"tweedie: power lies between 1 (poisson loss) and 2 (gamma loss), not {self.power!r}"
            )
        as_floats(self, "power")
        Power.__post_init__(self)
