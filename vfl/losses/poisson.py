"""Poisson loss."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.arguments import as_floats, require_number
from vfl.errors import SpecificationError
from vfl.losses.base import COUNTS, REACH, Loss

if TYPE_CHECKING:
    from vfl.types import Vector


LARGEST_MARGIN = 50.0
"""Largest margin of a loss with a log link. Beyond exp(50), steps would be too short to change any coordinate."""


@dataclass(frozen=True, slots=True)
class Poisson(Loss):
    """exp(v) − y v for counts y with mean exp(v). Beyond v = margin, the loss is linear.

    Without the linear part, ℓ'' = exp(v) would have no bound, so no finite M_j would exist and no step size would be safe. With
    it, the loss is convex and once differentiable, ℓ'' ≤ exp(margin), and the largest predicted mean is exp(margin). Declare a
    margin just above the log of the largest plausible mean, because steps shrink as exp(margin) grows. Labels below 0 count as
    0. The derivative is as large as the label, so a private job declares a clip or bounds of the label.

    margin : value of v = Xw + intercept beyond which the loss is linear. With 3, means up to 20 are possible.
    """

    margin: float = 3.0
    name: ClassVar[str] = "poisson"
    classification: ClassVar[bool] = False
    words: ClassVar[str] = "Poisson regression"
    start: ClassVar[str] = COUNTS
    power: ClassVar[float | None] = 1.0
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
    def highest(self) -> float:
        """Return `margin`."""
        return self.margin

    def near(self, start: float, least: float) -> Self:
        """Return the loss with `margin` lowered to start + REACH, if it is larger."""
        return replace(self, margin=min(self.margin, start + REACH))

    @property
    def curvature(self) -> float:
        """Return exp(margin)."""
        return math.exp(self.margin)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return exp(v') (1 + v − v') − y v with v' = min(v, margin), (n,)."""
        near = np.minimum(v, self.margin)
        return np.exp(near) * (1.0 + (v - near)) - np.maximum(y, 0.0) * v

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return exp(min(v, margin)) − y, (n,)."""
        return self.response(v) - np.maximum(y, 0.0)

    def response(self, v: Vector) -> Vector:
        """Return the mean, exp(min(v, margin)), (n,)."""
        return np.exp(np.minimum(v, self.margin))
