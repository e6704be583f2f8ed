"""Losses of labels that are classes: logistic, hinge, smoothed hinge, with weights of classes, and multinomial."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.arguments import option, require_positive
from vfl.errors import SpecificationError
from vfl.losses.base import SHARES, Loss

if TYPE_CHECKING:
    from vfl.types import Vector


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

    The loss is 0 where y v ≥ 1, 1 − y v − h/2 where y v ≤ 1 − h, and (1 − y v)²/(2h) between. It differs from hinge loss by at
    most h/2.

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

    It is ±(1 − h·(smaller share)/(larger share)), with the sign of the majority, which changes at a share of one half. Within
    two standard deviations of one half, the margin shrinks in proportion, since noise may have chosen the wrong sign.
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
