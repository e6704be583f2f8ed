"""Logistic loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

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

        r: Vector = -y * expit(-y * v)
        return r

    def constant(self, share: float, noise: float) -> float:
        """Return the log-odds of a share, after clipping the share to between 1 and 99 %."""
        share = min(max(share, 0.01), 0.99)
        return math.log(share / (1.0 - share))
