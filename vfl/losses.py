"""Losses ℓ(v, y) of a generalised linear model: value, derivative, and the constants that privacy and steps rest on.

A loss is one frozen object. Conventions match scikit-learn so that results compare: squared is ½(v − y)², logistic is
log(1 + exp(−y v)) with y = ±1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from vfl.types import Vector


class Loss(Protocol):
    """What a solver may ask of a loss. All vectors are (n,) float64.

    name : its name in jobs; a fused kernel of that name is used where vfl.kernels has one, else `derivative` is.
    classification : labels are ±1.
    curvature : L, the largest second derivative in v; M_j = L·mean(x_j²).
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
        """Return ∂ℓ/∂v, (n,)."""
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


LOSSES: dict[str, type[Loss]] = {loss.name: loss for loss in (Squared, Logistic)}


def loss_of(name: str | Loss) -> Loss:
    """Return the loss of that name; SpecificationError names the nearest known ones."""
    if not isinstance(name, str):
        return name
    if name not in LOSSES:
        raise SpecificationError(f"unknown loss {name!r}{nearest(name, LOSSES)}; known: {', '.join(sorted(LOSSES))}")
    return LOSSES[name]()
