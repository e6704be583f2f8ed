"""The interface of a loss, with the facts that solvers, reports and exports read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Vector

SHARES, MEAN, COUNTS = "shares", "mean", "counts"
REACH = 2.0
"""Distance of margins from log(mean) beyond which `near` makes a loss linear. This distance is a factor of e² = 7.4 in the
mean."""


class Loss(ABC):
    """A loss ℓ(v, y), convex in the margin v. A subclass is a frozen dataclass whose fields are public options.

    All vectors are (n,) float64. Solvers read the attributes below and never the name of a loss. Attributes with a default are
    optional in a subclass.

    name : name of the loss in jobs.
    classification : True if labels are classes: ±1, or 0 to K − 1 if `multinomial`.
    curvature : L, the largest second derivative in v; M_j = L·mean(x_j²). Infinite where ℓ has a kink.
    slope : R, the largest |ℓ'|; infinite when the derivative is unbounded.
    words : name of the model in reports.
    kernel : name of the fused kernel in vfl.kernels, and of the kernel's rule for caps; '' if there is no kernel, so that
        `derivative` is called.
    start : statistic of the labels that gives the best constant model: SHARES of the classes, MEAN, or COUNTS, a histogram; ''
        if runs start at 0.
    quadratic : True if the minimum follows from products of columns and labels.
    log_odds : True if margins are log-odds of the positive class.
    multinomial : True if a record has K margins.
    closed_dual : True if `dual_step` has a closed form, which needs no curvature.
    power : p, for labels with mean exp(v) and a variance proportional to mean^p; None for losses without a log link.
    highest : margin beyond which ℓ is linear; infinite if there is none.
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

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Largest second derivative L."""

    @property
    @abstractmethod
    def slope(self) -> float:
        """Largest derivative R, in magnitude."""

    @property
    def highest(self) -> float:
        """Margin beyond which ℓ is linear."""
        return math.inf

    @abstractmethod
    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ℓ(v, y), (n,)."""

    @abstractmethod
    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return ∂ℓ/∂v, (n,); at a kink, one of its subgradients."""

    def response(self, v: Vector) -> Vector:
        """Return the numeric label that a margin predicts, (n,): the y with ∂ℓ/∂v = 0."""
        return v

    def constant(self, share: float, noise: float) -> float:
        """Return the margin of the best constant model, from a noisy share of positive labels and the noise's deviation."""
        del share, noise
        return 0.0

    def declared(self, highest_label: float) -> Self:
        """Return the loss for labels up to a declared bound."""
        del highest_label
        return self

    def near(self, start: float, least: float) -> Self:
        """Return this loss with a linear part beyond margin start + REACH, for runs that start at the mean of the labels.

        least : starting margin of the records with the smallest exposure.
        """
        del start, least
        return self

    def dual_step(self, v: Vector, y: Vector, α: Vector, q: Vector) -> Vector:
        """Return dual steps ζ, (n,), towards the maximum of −ℓ*(−(α + ζ)) − ζ v − (q/2) ζ²; α + ζ stays in the domain of ℓ*.

        One Newton step from the point −ℓ'(v), where the gradient of ℓ* is known to be v, with the largest curvature L for ℓ'':
        ζ = (−ℓ'(v) − α)/(1 + qL). The dual variable α + ζ lies between α and −ℓ'(v), and converges linearly (Shalev-Shwartz &
        Zhang 2013, Thm. 1 and its proof's choice of s). For squared loss the step is the closed form.

        q : (n,) σ'‖x_i‖²/(λn), the change of a record's margin per unit of the dual steps in its batch.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return (-self.derivative(v, y) - α) / (1.0 + q * self.curvature)
