"""Squared loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

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
