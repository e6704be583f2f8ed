"""Losses ℓ(v, y) of a generalised linear model: value, derivative, and the constants that set noise and step sizes.

A loss is one frozen object, convex in v. Conventions match scikit-learn so that results compare: squared is ½(v − y)²,
logistic is log(1 + exp(−y v)) with y = ±1, hinge is max(0, 1 − y v). Fields are public options that the job declares;
none of them is ever taken from data.

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
| class_weighted | ±1 | c_y times another's | max c times its | max c times its |
| multinomial | 0 to K − 1 | softmax(v) − e_y, a vector | ½ | √2 |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from vfl.arguments import as_floats, provides, require, require_number
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from vfl.types import Vector


class Loss(Protocol):
    """Interface of a loss. All vectors are (n,) float64.

    name : its name in jobs. vfl.kernels.dense has a fused kernel for some names; other losses use `derivative`.
    classification : labels are ±1.
    curvature : L, the largest second derivative in v; M_j = L·mean(x_j²). Infinite where ℓ has a kink.
    slope : R, the largest |ℓ'|; infinite when the derivative is unbounded.
    """

    name: ClassVar[str]
    classification: ClassVar[bool]

    @property
    def curvature(self) -> float:
        """L."""
        ...

    @property
    def slope(self) -> float:
        """R."""
        ...

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ℓ(v, y), (n,)."""
        ...

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return ∂ℓ/∂v, (n,); at a kink, one of its subgradients."""
        ...

    def response(self, v: Vector) -> Vector:
        """Return the numeric label that a margin predicts, (n,): the y with ∂ℓ/∂v = 0."""
        ...


@dataclass(frozen=True, slots=True)
class Squared:
    """½(v − y)²: derivative v − y, curvature 1, derivative unbounded."""

    name: ClassVar[str] = "squared"
    classification: ClassVar[bool] = False
    curvature: ClassVar[float] = 1.0
    slope: ClassVar[float] = math.inf

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ½(v − y)², (n,)."""
        return 0.5 * (v - y) ** 2

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return v − y, (n,)."""
        return v - y

    def response(self, v: Vector) -> Vector:
        """Return v."""
        return v


@dataclass(frozen=True, slots=True)
class Logistic:
    """log(1 + exp(−y v)), y = ±1: derivative −y/(1 + exp(y v)), curvature ¼, |derivative| ≤ 1."""

    name: ClassVar[str] = "logistic"
    classification: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.25
    slope: ClassVar[float] = 1.0

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return log(1 + exp(−y v)), (n,), without overflow."""
        import numpy as np

        return np.logaddexp(0.0, -y * v)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return −y/(1 + exp(y v)), (n,), without overflow."""
        from scipy.special import expit

        r: Vector = -y * expit(-y * v)
        return r

    def response(self, v: Vector) -> Vector:
        """Return v."""
        return v


@dataclass(frozen=True, slots=True)
class Huber:
    """½(v − y)² where |v − y| ≤ width, beyond it width·|v − y| − ½width²: derivative v − y capped at ±width, curvature 1.

    The derivative is bounded: labels need no bounds, no record has a residual beyond `width`, and output perturbation
    applies. For large widths it becomes squared loss (Huber 1964).

    width : in units of the label. 1.35 keeps 95 % of the efficiency under normal residuals of deviation 1.
    """

    width: float = 1.35
    name: ClassVar[str] = "huber"
    classification: ClassVar[bool] = False
    curvature: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _positive("huber", "width", self.width)
        as_floats(self, "width")

    @property
    def slope(self) -> float:
        """Return width."""
        return float(self.width)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return a(|v − y| − a/2) with a = min(|v − y|, width), (n,)."""
        import numpy as np

        far = abs(v - y)
        near = np.minimum(far, self.width)
        return near * (far - 0.5 * near)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return v − y between −width and width, (n,)."""
        import numpy as np

        return np.clip(v - y, -self.width, self.width)

    def response(self, v: Vector) -> Vector:
        """Return v."""
        return v


@dataclass(frozen=True, slots=True)
class Poisson:
    """exp(v) − y v for counts y with mean exp(v), continued as a straight line beyond v = margin.

    Without the straight continuation, ℓ'' = exp(v) has no bound, so no finite M_j exists and no step size is safe. With it,
    the loss stays convex and differentiable once, ℓ'' ≤ exp(margin), and the largest predicted mean is exp(margin). Declare
    a margin just above the largest plausible mean, because steps shrink as exp(margin) grows. Labels below 0 count as 0.
    The derivative is as large as the label, so a private job declares the label's bounds or a clip.

    margin : the v from which the loss is straight; 3 allows means up to 20. On the scale of Xw with the intercept.
    """

    margin: float = 3.0
    name: ClassVar[str] = "poisson"
    classification: ClassVar[bool] = False
    log_link: ClassVar[bool] = True
    power: ClassVar[float] = 1.0
    slope: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        require_number("poisson: margin", self.margin)
        if not (math.isfinite(self.margin) and abs(self.margin) <= LARGEST_MARGIN):
            raise SpecificationError(
                f"poisson: margin must lie between ±{LARGEST_MARGIN:g}, not {self.margin!r}: exp(margin) is the largest "
                "mean"
            )
        as_floats(self, "margin")

    @property
    def curvature(self) -> float:
        """Return exp(margin)."""
        return math.exp(self.margin)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return exp(v') (1 + v − v') − y v with v' = min(v, margin), (n,)."""
        import numpy as np

        near = np.minimum(v, self.margin)
        return np.exp(near) * (1.0 + (v - near)) - np.maximum(y, 0.0) * v

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return exp(min(v, margin)) − y, (n,)."""
        import numpy as np

        return self.response(v) - np.maximum(y, 0.0)

    def response(self, v: Vector) -> Vector:
        """Return the mean, exp(min(v, margin))."""
        import numpy as np

        return np.exp(np.minimum(v, self.margin))


@dataclass(frozen=True, slots=True)
class Power:
    """exp((2 − p)v)/(2 − p) − y exp((1 − p)v)/(1 − p), for amounts with mean exp(v) and variance in proportion to mean^p.

    It is half the deviance of a Tweedie distribution of power 1 < p ≤ 2, up to a constant in y, as in scikit-learn. At p = 2 it
    is v + y exp(−v). It goes on as a straight line below v = low and above v = high, so that it stays convex, and labels count
    as at least 0 and at most `largest`. Then ℓ'' = (2 − p)exp((2 − p)v) + (p − 1)y exp((1 − p)v), convex in v, has its maximum
    at low or at high with y = largest: this is L. ℓ' rises in v and falls in y, so |ℓ'| has its maximum R at (high, 0) or at
    (low, largest).

    low, high : logarithms of the least and the largest plausible mean. Steps shrink as L grows: declare them tightly.
    largest : the largest label; the job takes it from the label's declared bounds.
    """

    low: float = -3.0
    high: float = 3.0
    largest: float = math.inf
    classification: ClassVar[bool] = False
    log_link: ClassVar[bool] = True

    def __post_init__(self) -> None:
        name = type(self).name  # type: ignore[attr-defined]
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
        return float(self.power)  # type: ignore[attr-defined]

    @property
    def curvature(self) -> float:
        """Return L."""
        p = self._p
        ends = (
            (2.0 - p) * math.exp((2.0 - p) * v) + (p - 1.0) * self.largest * math.exp((1.0 - p) * v)
            for v in (self.low, self.high)
        )
        return max(ends)

    @property
    def slope(self) -> float:
        """Return R."""
        p = self._p
        most = abs(math.exp((2.0 - p) * self.low) - self.largest * math.exp((1.0 - p) * self.low))
        return math.nextafter(max(math.exp((2.0 - p) * self.high), most) * (1.0 + 1e-12), math.inf)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ℓ at v' = v within [low, high], and (v − v') times the slope there, (n,)."""
        import numpy as np

        p, near, y = self._p, self._near(v), self._clamped(y)
        rising = near if p == 2.0 else np.exp((2.0 - p) * near) / (2.0 - p)
        return rising + y * np.exp((1.0 - p) * near) / (p - 1.0) + (v - near) * self.derivative(v, y)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return exp((2 − p)v') − y exp((1 − p)v'), (n,)."""
        import numpy as np

        p, near = self._p, self._near(v)
        return np.exp((2.0 - p) * near) - self._clamped(y) * np.exp((1.0 - p) * near)

    def response(self, v: Vector) -> Vector:
        """Return the mean, exp(v')."""
        import numpy as np

        return np.exp(self._near(v))

    def _near(self, v: Vector) -> Vector:
        import numpy as np

        return np.clip(v, self.low, self.high)

    def _clamped(self, y: Vector) -> Vector:
        import numpy as np

        return np.clip(y, 0.0, self.largest)


@dataclass(frozen=True, slots=True)
class Gamma(Power):
    """v + y exp(−v) for amounts y > 0 with mean exp(v) and standard deviation in proportion to it; see `Power` with p = 2.

    It suits the size of a claim: GammaRegressor of scikit-learn.
    """

    name: ClassVar[str] = "gamma"
    power: ClassVar[float] = 2.0


@dataclass(frozen=True, slots=True)
class Tweedie(Power):
    """Loss of amounts y ≥ 0 that are often exactly 0, with mean exp(v); see `Power`.

    It suits the cost of claims per contract: TweedieRegressor of scikit-learn.

    power : p, between 1 and 2. For 1 use 'poisson', for 2 'gamma'.
    """

    power: float = 1.5
    name: ClassVar[str] = "tweedie"

    def __post_init__(self) -> None:
        require_number("tweedie: power", self.power)
        if not 1.0 < self.power < 2.0:
            raise SpecificationError(
                f"tweedie: power lies between 1 (poisson loss) and 2 (gamma loss), not {self.power!r}"
            )
        as_floats(self, "power")
        Power.__post_init__(self)


@dataclass(frozen=True, slots=True)
class Hinge:
    """max(0, 1 − y v), y = ±1: derivative −y where y v < 1, else 0; |derivative| ≤ 1; a kink, so no curvature.

    Use it with solvers that need no M_j: SCD has a closed dual step, SGD shrinks its steps. Coordinate descent needs
    'smoothed_hinge'.
    """

    name: ClassVar[str] = "hinge"
    classification: ClassVar[bool] = True
    curvature: ClassVar[float] = math.inf
    slope: ClassVar[float] = 1.0

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return max(0, 1 − y v), (n,)."""
        import numpy as np

        return np.maximum(0.0, 1.0 - y * v)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return −y where y v < 1, else 0, (n,)."""
        import numpy as np

        return np.where(y * v < 1.0, -y, 0.0)

    def response(self, v: Vector) -> Vector:
        """Return v."""
        return v


@dataclass(frozen=True, slots=True)
class SmoothedHinge:
    """Hinge loss with the kink rounded over a width h (Shalev-Shwartz & Zhang 2013): curvature 1/h, |derivative| ≤ 1.

    0 where y v ≥ 1, 1 − y v − h/2 where y v ≤ 1 − h, (1 − y v)²/(2h) between: within h/2 of hinge everywhere.

    width : h.
    """

    width: float = 0.5
    name: ClassVar[str] = "smoothed_hinge"
    classification: ClassVar[bool] = True
    slope: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _positive("smoothed_hinge", "width", self.width)
        as_floats(self, "width")

    @property
    def curvature(self) -> float:
        """Return 1/h."""
        return 1.0 / self.width

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return a((1 − y v)⁺ − a h/2) with a = (1 − y v)/h between 0 and 1, (n,)."""
        import numpy as np

        short = np.maximum(1.0 - y * v, 0.0)
        share = np.minimum(short / self.width, 1.0)
        return share * (short - 0.5 * share * self.width)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return −y·(1 − y v)/h, with the factor clipped to [0, 1], (n,)."""
        import numpy as np

        return -y * np.clip((1.0 - y * v) / self.width, 0.0, 1.0)

    def response(self, v: Vector) -> Vector:
        """Return v."""
        return v


@dataclass(frozen=True, slots=True)
class ClassWeighted:
    """c_y·ℓ(v, y) with *declared* weights of the two classes; curvature and slope are those of ℓ times the larger weight.

    Declared weights cost no privacy. A record's contribution is c_y r_i x_i, clipped (or bounded by the larger slope) like
    any other, so under replace-one the cap alone decides the sensitivity, for any classes of the two records. 'balanced'
    weights n/(2 n_y) are refused: they are counts of labels, which one record changes.

    loss : name of the loss. negative, positive : c of the two classes.
    """

    loss: str = "logistic"
    negative: float = 1.0
    positive: float = 1.0
    name: ClassVar[str] = "class_weighted"
    classification: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for option in ("negative", "positive"):
            if isinstance(getattr(self, option), str):
                raise SpecificationError(
                    f"class_weighted: {option} is a declared number, not {getattr(self, option)!r}: 'balanced' weights "
                    "are computed from the number of labels per class, which one record changes, and are not charged; "
                    "declare weights from public knowledge, 1/(2·share of the class)"
                )
            _positive("class_weighted", option, getattr(self, option))
        as_floats(self, "negative", "positive")
        if not loss_of(self.loss).classification or self.loss in (self.name, Multinomial.name):
            raise SpecificationError(f"class_weighted needs a loss of two classes, not {self.loss!r}")

    @property
    def curvature(self) -> float:
        """Return max(c)·L."""
        return max(self.negative, self.positive) * loss_of(self.loss).curvature

    @property
    def slope(self) -> float:
        """Return max(c)·R."""
        return max(self.negative, self.positive) * loss_of(self.loss).slope

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return c_y ℓ(v, y), (n,)."""
        return self._weights(y) * loss_of(self.loss).value(v, y)

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return c_y ∂ℓ/∂v, (n,)."""
        return self._weights(y) * loss_of(self.loss).derivative(v, y)

    def response(self, v: Vector) -> Vector:
        """Return v."""
        return v

    def _weights(self, y: Vector) -> Vector:
        import numpy as np

        return np.where(y > 0, self.positive, self.negative)


@dataclass(frozen=True, slots=True)
class Multinomial:
    """log Σ_k exp(v_k) − v_y for y = 0, ..., K − 1 and K margins per record: softmax regression.

    The derivative is the vector softmax(v) − e_y. Its norm is at most √2, and its entries sum to 0. The matrix of second
    derivatives, diag(p) − ppᵀ, has no eigenvalue above ½ (Böhning 1992), so one step of 1/(½·mean(x_j²)) is safe for the K
    coefficients of a column together.

    Margins and derivatives of n records are vectors (K·n,), one class after the other.
    """

    name: ClassVar[str] = "multinomial"
    classification: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.5
    slope: ClassVar[float] = math.nextafter(math.sqrt(2.0), math.inf)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return log Σ_k exp(v_k) − v_y, (n,), without overflow."""
        import numpy as np
        from scipy.special import logsumexp

        V = v.reshape(-1, y.size) if y.size else v.reshape(0, 0)
        own = np.zeros(y.size)
        for k, margins in enumerate(V):
            own[y == k] = margins[y == k]
        return np.asarray(logsumexp(V, axis=0) - own) if y.size else own

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return softmax(v) − e_y, (K·n,), without overflow."""
        import numpy as np

        r = self.probabilities(v, y.size)
        for k in range(len(r)):
            r[k] -= y == k
        return np.ravel(r)

    def response(self, v: Vector) -> Vector:
        """Return v."""
        return v

    def probabilities(self, v: Vector, n_records: int) -> Vector:
        """Return softmax(v), (K, n)."""
        import numpy as np

        V = v.reshape(-1, n_records) if n_records else v.reshape(0, 0)
        e: Vector = np.exp(V - V.max(axis=0, initial=-np.inf))
        p: Vector = e / e.sum(axis=0)
        return p


def unit_deviance(y: Vector, mean: Vector, power: float) -> Vector:
    """Return the deviance of each label y ≥ 0 under the mean, (n,): 2·(log-likelihood of the mean y − that of `mean`).

    Power 1 is Poisson: 2(y log(y/m) − y + m). Power 2 is Gamma: 2(log(m/y) + y/m − 1). Powers between are Tweedie:
    2(y^(2−p)/((1 − p)(2 − p)) − y m^(1−p)/(1 − p) + m^(2−p)/(2 − p)). The deviance is 0 at y = m, as in scikit-learn's
    mean_tweedie_deviance. Labels below 0 count as 0. The result is infinite or NaN where the distribution has no such label or
    mean.
    """
    import numpy as np
    from scipy.special import xlogy

    p, y = power, np.maximum(y, 0.0)
    with np.errstate(all="ignore"):
        if p == 1.0:
            return np.asarray(2.0 * (xlogy(y, y) - xlogy(y, mean) - y + mean))
        if p == 2.0:
            return np.asarray(2.0 * (np.log(mean / y) + y / mean - 1.0))
        own, slope, rising = y ** (2.0 - p) / ((1.0 - p) * (2.0 - p)), mean ** (1.0 - p), mean ** (2.0 - p)
        return np.asarray(2.0 * (own - y * slope / (1.0 - p) + rising / (2.0 - p)))


def power_of(loss: Loss) -> float | None:
    """Return the power p of the variance mean^p, of losses of counts and amounts; None for other losses."""
    return getattr(loss, "power", None)


LARGEST_MARGIN = 50.0
"""Largest margin of Poisson loss: beyond exp(50), steps are too short to change any coordinate."""


def _positive(loss: str, option: str, value: float) -> None:
    require_number(f"{loss}: {option}", value)
    if not (math.isfinite(value) and value > 0):
        raise SpecificationError(f"{loss}: {option} must be positive and finite, not {value!r}")


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (Squared, Logistic, Huber, Poisson, Gamma, Tweedie, Hinge, SmoothedHinge, ClassWeighted, Multinomial)
}


def loss_of(name: str | Loss) -> Loss:
    """Return the loss of that name; SpecificationError names the nearest known ones."""
    if not isinstance(name, str):
        wanted = "the name of a loss such as 'logistic', or a loss such as vfl.losses.Huber(width=2.0)"
        require("loss", name, wanted, fits=provides(name, ("name", "classification", "derivative")))
        return name
    if name not in LOSSES:
        raise SpecificationError(f"unknown loss {name!r}{nearest(name, LOSSES)}; known: {', '.join(sorted(LOSSES))}")
    return LOSSES[name]()
