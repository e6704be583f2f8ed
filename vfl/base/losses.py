"""Losses ℓ(v, y) of generalised linear models: value, derivative, and facts for solvers, reports and exports.

A loss is one frozen object, convex in v. Conventions match scikit-learn, so that results can be compared: squared is
½(v − y)², logistic is log(1 + exp(−y v)) with y = ±1, hinge is max(0, 1 − y v). Fields are public options that the job
declares; no field is ever computed from data.

| loss | labels | ℓ' | curvature L | slope R |
|---|---|---|---|---|
| squared | real | v − y | 1 | ∞ |
| huber | real | v − y, capped at ±width | 1 | width |
| poisson | counts | exp(min(v, margin)) − y | exp(margin) | ∞ |
| gamma | > 0 | 1 − y exp(−v') | largest·exp(−low) | see `Power` |
| tweedie | ≥ 0 | exp((2 − p)v') − y exp((1 − p)v') | see `Power` | see `Power` |
| logistic | ±1 | −y/(1 + exp(yv)) | ¼ | 1 |
| hinge | ±1 | −y where yv < 1 | ∞ | 1 |
| smoothed_hinge | ±1 | −y·(1 − yv)/width, between 0 and −y | 1/width | 1 |
| class_weighted | ±1 | c_y ℓ' of another loss | max(c) times its L | max(c) times its R |
| multinomial | 0 to K − 1 | softmax(v) − e_y, a vector | ½ | √2 |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.base.arguments import check_options, named, number, option, require, require_number, require_positive
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from vfl.base.types import Vector

SHARES, MEAN, COUNTS = "shares", "mean", "counts"
REACH = 2.0
"""Distance of margins from log(mean) beyond which `near` makes a loss linear. In the mean this is a factor of 7.4."""


class Loss(ABC):
    """A loss ℓ(v, y), convex in the margin v. A subclass is a frozen dataclass whose fields are public options.

    `vfl.base.arguments.option` gives a field its check. All vectors are (n,) float64. Solvers read the attributes below, never
    the name of a loss. An attribute with a default value is optional in a subclass.

    name : name of the loss in jobs.
    classification : True if labels are classes: ±1, or 0 to K − 1 if `multinomial`.
    curvature : L, the largest second derivative in v, from which M_j = L·mean(x_j²) follows. L is infinite if ℓ has a kink.
    slope : R, the largest |ℓ'|; infinite if the derivative is unbounded.
    words : name of the model in reports.
    kernel : name of the fused kernel in vfl.kernels, and of the kernel's rule for caps; '' if there is no kernel. `derivative`
        is then called.
    start : statistic of the labels that determines the best constant model: SHARES of the classes, MEAN, or COUNTS (a
        histogram); '' if runs start at 0.
    quadratic : True if the minimum follows from products of columns and labels.
    log_odds : True if margins are log-odds of the positive class.
    multinomial : True if a record has K margins.
    closed_dual : True if `dual_step` has a closed form, which does not need the curvature.
    power : p, for labels with mean exp(v) and a variance proportional to mean^p; None for losses without a log link.
    highest : margin beyond which ℓ is linear; infinite if there is no such margin.
    """

    __slots__ = ()

    name: ClassVar[str]
    classification: ClassVar[bool]
    words: ClassVar[str] = ""
    kernel: ClassVar[str] = ""
    start: ClassVar[str] = ""
    quadratic: ClassVar[bool] = False
    log_odds: ClassVar[bool] = False
    multinomial: ClassVar[bool] = False
    closed_dual: ClassVar[bool] = False
    power: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        """Check each option by itself."""
        check_options(self, f"{self.name}: ")

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Return L, the largest second derivative."""

    @property
    @abstractmethod
    def slope(self) -> float:
        """Return R, the largest derivative in magnitude."""

    @property
    def highest(self) -> float:
        """Return the margin beyond which ℓ is linear."""
        return math.inf

    @abstractmethod
    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ℓ(v, y), (n,)."""

    @abstractmethod
    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return ∂ℓ/∂v, (n,). At a kink, return a subgradient."""

    def response(self, v: Vector) -> Vector:
        """Return the numeric label that each margin predicts, (n,): the y with ∂ℓ/∂v = 0."""
        return v

    def constant(self, share: float, noise: float) -> float:
        """Return the margin of the best constant model.

        share : noisy share of positive labels. noise : standard deviation of its noise.
        """
        return 0.0

    def declared(self, highest_label: float, exposure: tuple[float, float] = (1.0, 1.0)) -> Self:
        """Return the loss for labels of at most `highest_label`, a declared bound.

        exposure : declared bounds of the exposures if margins are logarithms of rates, for predictions.
        """
        return self

    @property
    def seeks_spread(self) -> bool:
        """True if the loss is measured in units of the spread of the labels."""
        return False

    def of_spread(self, spread: float) -> Self:
        """Return the loss for labels of this spread."""
        return self

    def near(self, start: float, least: float, reach: float = REACH) -> Self:
        """Return this loss with a linear part above the margin start + reach, for runs that start at the mean of the labels.

        least : starting margin of records with the smallest exposure.
        """
        return self

    def dual_step(self, v: Vector, y: Vector, α: Vector, q: Vector) -> Vector:
        """Return dual steps ζ, (n,), towards the maximum of −ℓ*(−(α + ζ)) − ζ v − (q/2) ζ². α + ζ stays in the domain of ℓ*.

        This is one Newton step from the point −ℓ'(v), where the gradient of ℓ* is known to be v, with the largest curvature L
        in place of ℓ'': ζ = (−ℓ'(v) − α)/(1 + qL). The dual variable α + ζ lies between α and −ℓ'(v), and converges linearly
        (Shalev-Shwartz & Zhang 2013, Thm. 1 and the choice of s in its proof). For squared loss this is the closed form.

        q : (n,) σ'‖x_i‖²/(λn), the change of a record's margin per unit of the dual steps in its batch.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return (-self.derivative(v, y) - α) / (1.0 + q * self.curvature)


@dataclass(frozen=True, slots=True)
class Squared(Loss):
    """½(v − y)²: derivative v − y, curvature 1. The derivative is unbounded."""

    name: ClassVar[str] = "squared"
    classification: ClassVar[bool] = False
    words: ClassVar[str] = "linear regression"
    kernel: ClassVar[str] = "squared"
    start: ClassVar[str] = MEAN
    quadratic: ClassVar[bool] = True
    curvature: ClassVar[float] = 1.0
    slope: ClassVar[float] = math.inf

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ½(v − y)², (n,)."""
        return 0.5 * (v - y) ** 2

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return v − y, (n,)."""
        return v - y


@dataclass(frozen=True, slots=True)
class Huber(Loss):
    """½(v − y)² if |v − y| ≤ width, else width·|v − y| − ½width². Its derivative is v − y capped at ±width; its curvature is 1.

    The derivative is bounded, so labels need no bounds, and output perturbation can be used. For large widths the loss becomes
    squared loss (Huber 1964).

    width : largest |derivative|, in units of the label. If residuals are normal with deviation 1, a width of 1.35 keeps 95 % of
        the efficiency. None takes 1.35 times the spread of the labels, which a run with declared bounds of the label finds.
    spread : spread assumed before it is known, which the job takes from the label's declared bounds.
    """

    width: float | None = option(require_positive, None)
    spread: float = option(require_positive, 1.0)
    name: ClassVar[str] = "huber"
    classification: ClassVar[bool] = False
    words: ClassVar[str] = "robust linear regression"
    start: ClassVar[str] = MEAN
    curvature: ClassVar[float] = 1.0

    @property
    def slope(self) -> float:
        """Return the width."""
        return float(1.35 * self.spread if self.width is None else self.width)

    @property
    def seeks_spread(self) -> bool:
        """True if the width follows from the spread of the labels."""
        return self.width is None

    def of_spread(self, spread: float) -> Self:
        """Return the loss for labels of this spread, unless the job declares a width."""
        return replace(self, spread=spread)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return a(|v − y| − a/2) with a = min(|v − y|, width), (n,)."""
        far = abs(v - y)
        near = np.minimum(far, self.slope)
        return near * (far - 0.5 * near)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return v − y, clipped to [−width, width], (n,)."""
        return np.clip(v - y, -self.slope, self.slope)


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
        """Return the loss for labels of at most `highest_label`, a declared bound, which decides options that the job omits."""
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


@dataclass(frozen=True, slots=True)
class Logistic(Loss):
    """log(1 + exp(−y v)), y = ±1: derivative −y/(1 + exp(y v)), curvature ¼, |derivative| ≤ 1."""

    name: ClassVar[str] = "logistic"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "logistic regression"
    kernel: ClassVar[str] = "logistic"
    start: ClassVar[str] = SHARES
    log_odds: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.25
    slope: ClassVar[float] = 1.0

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return log(1 + exp(−y v)), (n,), without overflow."""
        return np.logaddexp(0.0, -y * v)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return −y/(1 + exp(y v)), (n,), without overflow."""
        from scipy.special import expit

        return np.asarray(-y * expit(-y * v))

    def constant(self, share: float, noise: float) -> float:
        """Return the log-odds of a share, after clipping the share to between 1 and 99 %."""
        share = min(max(share, 0.01), 0.99)
        return math.log(share / (1.0 - share))


@dataclass(frozen=True, slots=True)
class Hinge(Loss):
    """max(0, 1 − y v), y = ±1: derivative −y where y v < 1, else 0; |derivative| ≤ 1. The kink leaves it without a curvature.

    Use it with solvers that need no M_j: SCD has a closed dual step, and SGD shrinks its steps. Coordinate descent needs
    'smoothed_hinge' instead.
    """

    name: ClassVar[str] = "hinge"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "linear support vector machine"
    start: ClassVar[str] = SHARES
    closed_dual: ClassVar[bool] = True
    curvature: ClassVar[float] = math.inf
    slope: ClassVar[float] = 1.0

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return max(0, 1 − y v), (n,)."""
        return np.maximum(0.0, 1.0 - y * v)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return −y where y v < 1, else 0, (n,)."""
        return np.where(y * v < 1.0, -y, 0.0)

    def constant(self, share: float, noise: float) -> float:
        """Return the margin of the best constant model; see `majority`."""
        return majority(share, noise, 0.0)

    def dual_step(self, v: Vector, y: Vector, α: Vector, q: Vector) -> Vector:
        """Return the closed-form step to the α with αy = (old αy + (1 − yv)/q), clipped to [0, 1]."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            β = np.clip(np.nan_to_num(y * α + (1.0 - y * v) / q, nan=0.0), 0.0, 1.0)
        return y * β - α


@dataclass(frozen=True, slots=True)
class SmoothedHinge(Loss):
    """Hinge loss with the kink rounded over a width h (Shalev-Shwartz & Zhang 2013): curvature 1/h, |derivative| ≤ 1.

    The loss is 0 where y v ≥ 1, 1 − y v − h/2 where y v ≤ 1 − h, and (1 − y v)²/(2h) between. The difference from hinge loss is
    at most h/2.

    width : h, the width of the rounded part.
    """

    width: float = option(require_positive, 0.5)
    name: ClassVar[str] = "smoothed_hinge"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "linear support vector machine (smoothed)"
    start: ClassVar[str] = SHARES
    slope: ClassVar[float] = 1.0

    @property
    def curvature(self) -> float:
        """Return 1/h."""
        return 1.0 / self.width

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return a((1 − y v)⁺ − a h/2) with a = (1 − y v)/h between 0 and 1, (n,)."""
        short = np.maximum(1.0 - y * v, 0.0)
        share = np.minimum(short / self.width, 1.0)
        return share * (short - 0.5 * share * self.width)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return −y·(1 − y v)/h, with the factor clipped to [0, 1], (n,)."""
        return -y * np.clip((1.0 - y * v) / self.width, 0.0, 1.0)

    def constant(self, share: float, noise: float) -> float:
        """Return the margin of the best constant model; see `majority`."""
        return majority(share, noise, self.width)


def majority(share: float, noise: float, width: float) -> float:
    """Return the margin of the best constant model of smoothed hinge loss of width h; h = 0 stands for hinge loss.

    The model is ±(1 − h·(smaller share)/(larger share)), with the sign of the majority, which changes at a share of one half.
    Within two standard deviations of one half, the margin shrinks in proportion, since noise may have chosen the wrong sign.
    """
    positive = min(max(share, 0.0), 1.0)
    larger = max(positive, 1.0 - positive)
    clear = min(1.0, abs(positive - 0.5) / (2.0 * noise))
    return math.copysign(clear * (1.0 - width * (1.0 - larger) / larger), positive - 0.5)


WEIGHED: dict[str, Loss] = {loss.name: loss() for loss in (Logistic, Hinge, SmoothedHinge)}
"""{name: loss} for all losses that `ClassWeighted` can weigh."""


def _weight(argument: str, value: float | str) -> float:
    if isinstance(value, str):
        raise SpecificationError(
            f"{argument} must be a declared number, not {value!r}: 'balanced' weights are computed from the number of labels "
            "per class, which is not charged. Declare weights from public knowledge, such as 1/(2·share of the class)"
        )
    return require_positive(argument, value)


@dataclass(frozen=True, slots=True)
class ClassWeighted(Loss):
    """c_y·ℓ(v, y) with *declared* weights c of two classes. Curvature and slope are those of ℓ times the larger weight.

    Declared weights cost no privacy. A record's contribution is c_y r_i x_i, which is clipped (or bounded by the larger slope)
    like any other contribution. Under replace-one, the cap alone decides the sensitivity, for any classes of the two records.
    'balanced' weights n/(2 n_y) are refused: they depend on counts of labels, and one record changes a count.

    loss : name of the loss ℓ. negative, positive : weights c of the two classes.
    """

    loss: str = "logistic"
    negative: float = option(_weight, 1.0)
    positive: float = option(_weight, 1.0)
    name: ClassVar[str] = "class_weighted"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "classification with class weights"

    def __post_init__(self) -> None:
        Loss.__post_init__(self)
        if self.loss not in WEIGHED:
            raise SpecificationError(
                f"class_weighted needs a loss of two classes ({', '.join(WEIGHED)}), not {self.loss!r}"
            )

    @property
    def curvature(self) -> float:
        """Return max(c)·L."""
        return max(self.negative, self.positive) * WEIGHED[self.loss].curvature

    @property
    def slope(self) -> float:
        """Return max(c)·R."""
        return max(self.negative, self.positive) * WEIGHED[self.loss].slope

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return c_y ℓ(v, y), (n,)."""
        return self._weights(y) * WEIGHED[self.loss].value(v, y)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return c_y ∂ℓ/∂v, (n,)."""
        return self._weights(y) * WEIGHED[self.loss].derivative(v, y)

    def _weights(self, y: Vector) -> Vector:
        return np.where(y > 0, self.positive, self.negative)


@dataclass(frozen=True, slots=True)
class Multinomial(Loss):
    """log Σ_k exp(v_k) − v_y for y = 0, ..., K − 1 and K margins per record: softmax regression.

    The derivative is the vector softmax(v) − e_y. Its norm is at most √2, and its entries sum to 0. The matrix of second
    derivatives, diag(p) − ppᵀ, has no eigenvalue above ½ (Böhning 1992). A step of 1/(½·mean(x_j²)) is therefore safe for the K
    coefficients of a column together.

    Margins and derivatives of n records are vectors (K·n,), one class after another.
    """

    name: ClassVar[str] = "multinomial"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "multinomial logistic regression"
    kernel: ClassVar[str] = "multinomial"
    start: ClassVar[str] = SHARES
    multinomial: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.5
    slope: ClassVar[float] = math.nextafter(math.sqrt(2.0), math.inf)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return log Σ_k exp(v_k) − v_y, (n,), without overflow."""
        from scipy.special import logsumexp

        V = v.reshape(-1, y.size) if y.size else v.reshape(0, 0)
        own = np.zeros(y.size)
        for k, margins in enumerate(V):
            own[y == k] = margins[y == k]
        return np.asarray(logsumexp(V, axis=0) - own) if y.size else own

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return softmax(v) − e_y, (K·n,), without overflow."""
        r = self.probabilities(v, y.size)
        for k in range(len(r)):
            r[k] -= y == k
        return np.ravel(r)

    def probabilities(self, v: Vector, n_records: int) -> Vector:
        """Return softmax(v), (K, n)."""
        V = v.reshape(-1, n_records) if n_records else v.reshape(0, 0)
        e: Vector = np.exp(V - V.max(axis=0, initial=-np.inf))
        return np.asarray(e / e.sum(axis=0))


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (Squared, Logistic, Huber, Poisson, Gamma, Tweedie, Hinge, SmoothedHinge, ClassWeighted, Multinomial)
}


def loss_of(name: str | Loss) -> Loss:
    """Return the loss of this name. For an unknown name, SpecificationError names the nearest known losses."""
    if not isinstance(name, str):
        wanted = "the name of a loss such as 'logistic', or a loss such as vfl.losses.Huber(width=2.0)"
        require("loss", name, wanted, fits=isinstance(name, Loss))
        return name
    return named("loss", name, LOSSES)()
