"""Hinge loss and smoothed hinge loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.arguments import as_floats, require_positive
from vfl.losses.base import SHARES, Loss

if TYPE_CHECKING:
    from vfl.types import Vector


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

    width: float = 0.5
    name: ClassVar[str] = "smoothed_hinge"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "linear support vector machine (smoothed)"
    start: ClassVar[str] = SHARES
    slope: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        require_positive("smoothed_hinge: width", self.width)
        as_floats(self, "width")

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
