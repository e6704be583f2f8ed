"""The interface of a loss, including facts for solvers, reports and exports."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.arguments import check_options

if TYPE_CHECKING:
    from vfl.types import Vector

SHARES, MEAN, COUNTS = "shares", "mean", "counts"
REACH = 2.0
"""Distance of margins from log(mean) beyond which `near` makes a loss linear. In the mean this is a factor of 7.4."""


class Loss(ABC):
    """A loss ℓ(v, y), convex in the margin v. A subclass is a frozen dataclass whose fields are public options.

    `vfl.arguments.option` gives a field its check. All vectors are (n,) float64. Solvers read the attributes below, never the
    name of a loss. An attribute with a default value is optional in a subclass.

    name : name of the loss in jobs.
    classification : True if labels are classes: ±1, or 0 to K − 1 if `multinomial`.
    curvature : L, the largest second derivative in v, from which M_j = L·mean(x_j²) follows. It is infinite if ℓ has a kink.
    slope : R, the largest |ℓ'|; infinite if the derivative is unbounded.
    words : name of the model in reports.
    kernel : name of the fused kernel in vfl.kernels, and of the kernel's rule for caps; '' if there is no kernel. `derivative`
        is then called.
    start : statistic of the labels that determines the best constant model: SHARES of the classes, MEAN, or COUNTS (a
        histogram); '' if runs start at 0.
    quadratic : True if the minimum follows from products of columns and labels.
    log_odds : True if margins are log-odds of the positive class.
    multinomial : True if a record has K margins.
    closed_dual : True if `dual_step` has a closed form, which does not need the curvature.
    power : p, for labels with mean exp(v) and a variance proportional to mean^p; None for losses without a log link.
    highest : margin beyond which ℓ is linear; infinite if there is no such margin.
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

    def __post_init__(self) -> None:
        """Check each option by itself."""
        check_options(self, f"{self.name}: ")

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Return L, the largest second derivative."""

    @property
    @abstractmethod
    def slope(self) -> float:
        """Return R, the largest derivative in magnitude."""

    @property
    def highest(self) -> float:
        """Return the margin beyond which ℓ is linear."""
        return math.inf

    @abstractmethod
    def value(self, v: Vector, y: Vector) -> Vector:
        """Return ℓ(v, y), (n,)."""

    @abstractmethod
    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return ∂ℓ/∂v, (n,). At a kink, return a subgradient."""

    def response(self, v: Vector) -> Vector:
        """Return the numeric label that each margin predicts, (n,): the y with ∂ℓ/∂v = 0."""
        return v

    def constant(self, share: float, noise: float) -> float:
        """Return the margin of the best constant model.

        share : noisy share of positive labels. noise : deviation of its noise.
        """
        return 0.0

    def declared(self, highest_label: float, exposure: tuple[float, float] = (1.0, 1.0)) -> Self:
        """Return the loss for labels of at most `highest_label`, a declared bound.

        exposure : declared bounds of the exposures if margins are logarithms of rates, for predictions.
        """
        return self

    @property
    def seeks_spread(self) -> bool:
        """True if the loss is measured in units of the spread of the labels."""
        return False

    def of_spread(self, spread: float) -> Self:
        """Return the loss for labels of this spread."""
        return self

    def near(self, start: float, least: float, reach: float = REACH) -> Self:
        """Return this loss with a linear part above the margin start + reach, for runs that start at the mean of the labels.

        least : starting margin of records with the smallest exposure.
        """
        return self

    def dual_step(self, v: Vector, y: Vector, α: Vector, q: Vector) -> Vector:
        """Return dual steps ζ, (n,), towards the maximum of −ℓ*(−(α + ζ)) − ζ v − (q/2) ζ². α + ζ stays in the domain of ℓ*.

        This is one Newton step from the point −ℓ'(v), where the gradient of ℓ* is known to be v, with the largest curvature L
        in place of ℓ'': ζ = (−ℓ'(v) − α)/(1 + qL). The dual variable α + ζ lies between α and −ℓ'(v), and converges linearly
        (Shalev-Shwartz & Zhang 2013, Thm. 1 and the choice of s in its proof). For squared loss this is the closed form.

        q : (n,) σ'‖x_i‖²/(λn), the change of a record's margin per unit of the dual steps in its batch.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return (-self.derivative(v, y) - α) / (1.0 + q * self.curvature)
