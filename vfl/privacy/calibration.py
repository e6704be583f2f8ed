"""From a budget to noise. Every result is rounded so that what it plans fits under the budget in exact arithmetic."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from vfl.errors import PrivacyError
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian
from vfl.privacy.gaussian_dp import mu_of, require_mu
from vfl.privacy.spending import UNIT_BITS, floor_units, mu_squared, units

if TYPE_CHECKING:
    from collections.abc import Callable

Noised: TypeAlias = Gaussian | PoissonSubsampledGaussian
Charge: TypeAlias = tuple[Noised, int]

_SIGMA = 1 - Fraction(1, 1 << 53)  # the party's σ = z·Δ is one rounding, so it may fall short of it by this factor


def noise_multiplier(mu: float, releases: int) -> float:
    """Return the z = √releases/μ, rounded up, for which `releases` Gaussian events of σ = z·Δ together are μ-GDP.

    Fits under a cap of `mu` in `GaussianAccountant` and in a `GdpFilter`, for every Δ for which z·Δ is a normal double,
    although z·Δ is rounded once more. mu : μ > 0. releases : at least 1. Raises PrivacyError otherwise.
    """
    releases = operator.index(releases)
    if releases < 1:
        raise PrivacyError(f"releases must be at least 1, not {releases!r}: nothing is released without a release")
    if not require_mu(mu) > 0:
        raise PrivacyError("mu must be positive: no finite noise makes a release free")
    # The accountant rounds each event and the cap to its unit: one unit each.
    budget = Fraction(mu) ** 2 - Fraction(releases + 1, 1 << UNIT_BITS)
    if not budget > 0:
        raise PrivacyError(f"mu = {mu!r} is too small for {releases!r} releases: raise epsilon or lower the releases")
    z = math.sqrt(releases) / mu
    while (Fraction(z) * _SIGMA) ** 2 * budget < releases:
        z = math.nextafter(z, math.inf)
    return z


def split(mu: float, share: float) -> tuple[float, float]:
    """Return (a, b) with a² + b² ≤ μ² exactly: budgets of two parts of a run, the first with `share` of μ².

    mu : μ > 0. share : 0 < share < 1. Raises PrivacyError otherwise.
    """
    if not require_mu(mu) > 0:
        raise PrivacyError("mu must be positive: there is nothing to split")
    if not 0.0 < share < 1.0:
        raise PrivacyError(f"share must lie strictly between 0 and 1, not {share!r}")
    total = Fraction(mu) ** 2
    first = mu * math.sqrt(share)
    rest = math.sqrt(max(0.0, float(total - Fraction(first) ** 2)))
    while Fraction(first) ** 2 + Fraction(rest) ** 2 > total:
        rest = math.nextafter(rest, 0.0)
    if not (first > 0 and rest > 0):
        raise PrivacyError(f"share = {share!r} leaves nothing for one part: choose one further from 0 and 1")
    return first, rest


@lru_cache(maxsize=64)
def scaled_to_budget(plan: tuple[Charge, ...], epsilon: float, delta: float) -> tuple[Charge, ...]:
    """Return the plan with every σ multiplied by one factor, so that it is (ε, δ)-DP: exactly, or by PLD where it samples.

    plan : ((event, count), ...) of Gaussian and PoissonSubsampledGaussian events; their σ say how they share the budget.
    A plan that samples has to be committed to beforehand. Raises PrivacyError where no factor up to 2⁴⁰ is enough, and
    without the extra `accounting` for a plan that samples.
    """
    sampled = any(isinstance(event, PoissonSubsampledGaussian) for event, _ in plan)
    fits = _fits_by_pld if sampled else _fits_exactly
    low, high = -40.0, 40.0
    if not fits(_scaled(plan, 2.0**high), epsilon, delta):
        raise PrivacyError(f"no noise makes this plan fit under epsilon = {epsilon!r} at delta = {delta!r}")
    tolerance = 2.0**-14 if sampled else 2.0**-44
    while high - low > tolerance:
        middle = 0.5 * (low + high)
        if _affords(fits, _scaled(plan, 2.0**middle), epsilon, delta):
            high = middle
        else:
            low = middle
    return _scaled(plan, 2.0**high)


def _scaled(plan: tuple[Charge, ...], factor: float) -> tuple[Charge, ...]:
    return tuple((replace(event, sigma=event.sigma * factor), count) for event, count in plan)


def _affords(fits: Callable[..., bool], plan: tuple[Charge, ...], epsilon: float, delta: float) -> bool:
    """Whether a plan fits; one that loses more than can be computed does not."""
    try:
        return fits(plan, epsilon, delta)
    except PrivacyError:
        return False


def _fits_exactly(plan: tuple[Charge, ...], epsilon: float, delta: float) -> bool:
    spent = sum(units(event, mu_squared) * count for event, count in plan)
    return spent <= floor_units(Fraction(mu_of(epsilon, delta)) ** 2)


def _fits_by_pld(plan: tuple[Charge, ...], epsilon: float, delta: float) -> bool:
    from vfl.privacy.pld import PldAccountant

    accountant = PldAccountant(plan[0][0].adjacency)
    for event, count in plan:
        accountant.compose(event, count)
    return accountant.epsilon(delta) <= epsilon
