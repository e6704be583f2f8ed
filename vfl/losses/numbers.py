"""Losses of numeric labels: squared and Huber."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.arguments import option, require_positive
from vfl.losses.base import MEAN, Loss

if TYPE_CHECKING:
    from vfl.types import Vector


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
