"""Losses of two classes with declared weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.arguments import as_floats, require_positive
from vfl.errors import SpecificationError
from vfl.losses.base import Loss
from vfl.losses.hinge import Hinge, SmoothedHinge
from vfl.losses.logistic import Logistic

if TYPE_CHECKING:
    from vfl.types import Vector


WEIGHED: dict[str, Loss] = {loss.name: loss() for loss in (Logistic, Hinge, SmoothedHinge)}
"""{name: loss} for all losses that `ClassWeighted` can weigh."""


@dataclass(frozen=True, slots=True)
class ClassWeighted(Loss):
    """c_y·ℓ(v, y) with *declared* weights c of two classes. Curvature and slope are those of ℓ times the larger weight.

    Declared weights cost no privacy. A record's contribution is c_y r_i x_i, which is clipped (or bounded by the larger slope)
    like any other contribution. Under replace-one, the cap alone decides the sensitivity, for any classes of the two records.
    'balanced' weights n/(2 n_y) are refused: they depend on counts of labels, and one record changes a count.

    loss : name of the loss ℓ. negative, positive : weights c of the two classes.
    """

    loss: str = "logistic"
    negative: float = 1.0
    positive: float = 1.0
    name: ClassVar[str] = "class_weighted"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "classification with class weights"

    def __post_init__(self) -> None:
        for option in ("negative", "positive"):
            if isinstance(getattr(self, option), str):
                raise SpecificationError(
                    f"class_weighted: {option} must be a declared number, not {getattr(self, option)!r}: 'balanced' weights "
                    "are computed from the number of labels per class, which one record changes, and are not charged; "
                    "declare weights from public knowledge, such as 1/(2·share of the class)"
                )
            require_positive(f"class_weighted: {option}", getattr(self, option))
        as_floats(self, "negative", "positive")
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
