"""What a book adds up: one whole number per event, rounded up, so sums never under-count and never depend on order.

Two ways of accounting are valid *filters*, that is, under events chosen adaptively while the total stays under a cap
fixed beforehand. Neither is an odometer: the guarantee is the cap, not a total at which somebody stopped because of
what he saw.

- `Accounting.GDP` adds μ². Exact for Gaussian releases (Smith & Thakurta 2022, arXiv 2210.17520).
  Laplace and bounded-range releases enter through a Gaussian pair that dominates them (`_mu_squared`).
- `Accounting.ZCDP` adds ρ (Bun & Steinke 2016; Cesar & Rogers 2021): Gaussian μ²/2, pure ε²/2, bounded range ε²/8.
  Tighter where selections are a large share.

The way is fixed before the first release of a scope. Choosing it after some were seen would take the better of two
bounds in each branch, and their failure probabilities would add up to 2δ.
"""

from __future__ import annotations

import enum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from vfl.privacy import gaussian_dp, spending, zcdp
from vfl.privacy.events import BoundedRange, Event, Gaussian, Laplace, PoissonSubsampledGaussian, bare

if TYPE_CHECKING:
    from collections.abc import Sequence

Plan: TypeAlias = "Sequence[tuple[Event, int]]"


class Accounting(enum.StrEnum):
    """Which quantity a book adds up under its cap."""

    GDP = "gdp"
    ZCDP = "zcdp"


def accounting_for(plan: Plan) -> Accounting:
    """Return the tighter way for a plan: exact μ² when all is Gaussian, ρ for a mix."""
    gaussian = all(type(bare(event)) in (Gaussian, PoissonSubsampledGaussian) for event, _ in plan)
    return Accounting.GDP if gaussian else Accounting.ZCDP


# Every ε-DP mechanism is μ-GDP with μ = √(π/2)·ε, and one of bounded range ε with half of that. A trade-off function
# that is linear from (0, 1) over a kink (q, 1−p) to (1, 0) lies above a Gaussian one as soon as the kink does, by
# convexity (Dong, Roth, Su 2022, §2), that is for μ ≥ Φ⁻¹(p) − Φ⁻¹(q). The extreme pairs have logit p − logit q = 2ε
# (pure: p = 1/(1+e^−ε), q = 1−p) and ε (bounded range: p = (e^ε−e^t)/(e^ε−1), q = p·e^−t, 0 ≤ t ≤ ε), and Φ⁻¹ of the
# logistic function is nowhere steeper than √(π/8), its slope at 0. A rational above π keeps sums equal everywhere.
_PI_ABOVE = Fraction(355, 113)


def _mu_squared(event: Event) -> Fraction:
    event = bare(event)
    if type(event) is PoissonSubsampledGaussian:
        event = _unamplified(event)
    elif type(event) in (Laplace, BoundedRange):
        # In both ways a bounded range ε costs what a pure ε/2 does, and pure ε costs ρ = ε²/2 in the other.
        return _PI_ABOVE * spending.rho(event)
    return spending.mu_squared(event)


def _rho(event: Event) -> Fraction:
    event = bare(event)
    return spending.rho(_unamplified(event) if type(event) is PoissonSubsampledGaussian else event)


def _unamplified(event: PoissonSubsampledGaussian) -> Gaussian:
    # The pair is a mixture of the plain one and of no change, so it is dominated by the plain one. Amplification holds
    # for a plan committed to beforehand (FitBook), not inside a filter.
    return Gaussian(event.adjacency, event.sensitivity, event.sigma, 1)


_MEANING = {Accounting.GDP: _mu_squared, Accounting.ZCDP: _rho}


def cost(event: Event, accounting: Accounting) -> int:
    """Return what one release adds to the sum, in units, rounded up. An unknown event raises UnknownEvent."""
    return spending.units(event, _MEANING[accounting])


def plan_cost(plan: Plan, accounting: Accounting) -> int:
    """Return what a plan adds to the sum, in units: as if each of its releases were charged by itself.

    Of the parts of a public split the dearest counts, within this one plan (vfl.holdout).
    """
    total = spending.Total()
    for event, count in plan:
        total.add(event, cost(event, accounting) * count)
    return total.units


@lru_cache(maxsize=256)
def capacity(accounting: Accounting, epsilon: float, delta: float) -> int:
    """Return the largest sum, in units, under which all releases together are (ε, δ)-DP; rounded down."""
    if accounting is Accounting.GDP:
        return spending.floor_units(Fraction(gaussian_dp.mu_of(epsilon, delta)) ** 2)
    return spending.floor_units(Fraction(zcdp.rho_of(epsilon, delta)))


def epsilon_of(accounting: Accounting, units: int, delta: float) -> float:
    """Return an ε, rounded up, such that releases that add up to `units` are (ε, δ)-DP; 0 for none."""
    if accounting is Accounting.GDP:
        return gaussian_dp.epsilon_of(spending.root_above(units), delta)
    return zcdp.epsilon_of_rho(spending.float_above(units), delta)
