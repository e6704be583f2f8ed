"""Costs that a privacy account adds up: one integer per event, rounded up.

Sums of such integers are never too small and do not depend on the order of the events.

Both kinds of accounting below are valid *privacy filters*: events may be chosen adaptively while the total stays under a cap
fixed beforehand. Neither is an odometer: the guarantee is the cap, not the total at which a run stopped after looking at
released values.

- `Accounting.GDP` adds μ². This sum is exact for Gaussian releases (Smith & Thakurta 2022, arXiv 2210.17520).
  Each Laplace or bounded-range release, and each selection, counts as a Gaussian release that dominates it (`_mu_squared`).
- `Accounting.ZCDP` adds ρ (Bun & Steinke 2016; Cesar & Rogers 2021): Gaussian μ²/2, pure ε²/2, bounded range ε²/8,
  selection μ′²/2. This sum is tighter if selections are a large share of the releases.

The accounting of a data set is fixed before its first release. A choice after some releases would take the better of two
bounds in each case, and the failure probabilities of both bounds would add up to 2δ.
"""

from __future__ import annotations

import enum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from vfl.privacy import gaussian_dp, spending, zcdp
from vfl.privacy.events import BoundedRange, Event, Gaussian, Laplace, PoissonSubsampledGaussian, Selection, bare

if TYPE_CHECKING:
    from collections.abc import Sequence

Plan: TypeAlias = "Sequence[tuple[Event, int]]"


class Accounting(enum.StrEnum):
    """Cost of a release that a ledger or privacy account adds up: μ² or ρ."""

    GDP = "gdp"
    ZCDP = "zcdp"


def accounting_for(plan: Plan) -> Accounting:
    """Return the tighter accounting for a plan: μ² if all releases are Gaussian or selections, else ρ."""
    gaussian = all(type(bare(event)) in (Gaussian, PoissonSubsampledGaussian, Selection) for event, _ in plan)
    return Accounting.GDP if gaussian else Accounting.ZCDP


# Every ε-DP mechanism is μ-GDP with μ = √(π/2)·ε. A mechanism of bounded range ε is μ-GDP with half of that μ. Proof:
# Take a trade-off function that is linear from (0, 1) to a kink (q, 1−p), and from there to (1, 0). It lies above a Gaussian
# trade-off function if the kink does, by convexity (Dong, Roth, Su 2022, §2), that is for μ ≥ Φ⁻¹(p) − Φ⁻¹(q). The extreme
# pairs have logit p − logit q = 2ε (pure: p = 1/(1+e^−ε), q = 1−p) and ε (bounded range: p = (e^ε−e^t)/(e^ε−1), q = p·e^−t,
# 0 ≤ t ≤ ε). The slope of Φ⁻¹ of the logistic function is at most √(π/8), its value at 0.
# A rational number above π makes sums equal on every machine.
_PI_ABOVE = Fraction(355, 113)


def _mu_squared(event: Event) -> Fraction:
    event = bare(event)
    if type(event) is PoissonSubsampledGaussian:
        event = _unamplified(event)
    elif type(event) in (Laplace, BoundedRange):
        # Under both accountings, bounded range ε costs as much as pure ε/2. Under zCDP, pure ε costs ρ = ε²/2.
        return _PI_ABOVE * spending.rho(event)
    elif isinstance(event, Selection) and type(event) is Selection:
        return spending.dominating_mu_squared(event)
    return spending.mu_squared(event)


def _rho(event: Event) -> Fraction:
    event = bare(event)
    return spending.rho(_unamplified(event) if type(event) is PoissonSubsampledGaussian else event)


def _unamplified(event: PoissonSubsampledGaussian) -> Gaussian:
    # The sampled pair is a mixture of the plain pair and of two equal distributions, so the plain pair dominates it.
    # Amplification holds for a plan fixed beforehand (FitBudget), not inside a privacy filter.
    return Gaussian(event.adjacency, event.sensitivity, event.sigma, 1)


_MEANING = {Accounting.GDP: _mu_squared, Accounting.ZCDP: _rho}


def cost(event: Event, accounting: Accounting) -> int:
    """Return the units, rounded up, that one release adds to the sum. Raises PrivacyError for an unknown event."""
    return spending.units(event, _MEANING[accounting])


def plan_cost(plan: Plan, accounting: Accounting) -> int:
    """Return the units that a plan adds to the sum if each of its releases is charged separately.

    Of the parts of a public split, only the part that is most expensive within this plan counts (vfl.base.holdout).
    """
    total = spending.Total()
    for event, count in plan:
        total.add(event, cost(event, accounting) * count)
    return total.units


def exact_mu(plan: Plan) -> float | None:
    """Return μ of a plan whose releases are all Gaussian, rounded up; None for any other plan.

    Such a plan is μ-GDP exactly. Of the parts of a public split, only the most expensive one counts.
    """
    if any(type(bare(event)) is not Gaussian for event, _ in plan):
        return None
    return spending.root_above(plan_cost(plan, Accounting.GDP))


@lru_cache(maxsize=256)
def capacity(accounting: Accounting, epsilon: float, delta: float) -> int:
    """Return the largest sum in units, rounded down, at which all releases together are (ε, δ)-DP."""
    if accounting is Accounting.GDP:
        return spending.floor_units(Fraction(gaussian_dp.mu_of(epsilon, delta)) ** 2)
    return spending.floor_units(Fraction(zcdp.rho_of(epsilon, delta)))


USABLE = 1e-6
"""Messages report the rest of a budget as spent if the rest is below this ε. Rounding may leave such a rest, and no plan can
use it.
"""


def epsilon_of(accounting: Accounting, units: int, delta: float) -> float:
    """Return an ε, rounded up, at which releases of `units` in total are (ε, δ)-DP; 0 without a release."""
    if accounting is Accounting.GDP:
        return gaussian_dp.epsilon_of(spending.root_above(units), delta)
    return zcdp.epsilon_of_rho(spending.float_above(units), delta)
