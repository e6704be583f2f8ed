"""Calibration of noise to a budget. Results are rounded so that the planned releases fit the budget in exact arithmetic."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

from vfl.base.arguments import require_fraction
from vfl.errors import PrivacyError
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian
from vfl.privacy.gaussian_dp import mu_of, require_mu
from vfl.privacy.spending import UNIT_BITS, floor_units, mu_squared, units

Noised: TypeAlias = Gaussian | PoissonSubsampledGaussian
Charge: TypeAlias = tuple[Noised, int]

_SIGMA = 1 - Fraction(1, 1 << 53)  # σ = zΔ is rounded once and may be low by this factor.


def noise_multiplier(mu: float, releases: int) -> float:
    """Return z = √releases/μ, rounded up, so that `releases` Gaussian events of σ = z·Δ together are μ-GDP.

    The releases fit under a cap of `mu` in `GaussianAccountant` and in every privacy account, although σ = z·Δ is rounded once
    more. The statement holds for every Δ for which z·Δ is a normal double. mu : μ > 0. releases : at least 1. Raises
    PrivacyError otherwise.
    """
    releases = operator.index(releases)
    if releases < 1:
        raise PrivacyError(f"releases must be at least 1, not {releases!r}: a plan without releases needs no noise")
    if not require_mu(mu) > 0:
        raise PrivacyError("mu must be positive: no finite noise makes a release free")
    # The accountant rounds each event, and the cap, by up to one unit.
    budget = Fraction(mu) ** 2 - Fraction(releases + 1, 1 << UNIT_BITS)
    if not budget > 0:
        raise PrivacyError(f"mu = {mu!r} is too small for {releases!r} releases: raise epsilon or lower the releases")
    z = math.sqrt(releases) / mu
    while (Fraction(z) * _SIGMA) ** 2 * budget < releases:
        z = math.nextafter(z, math.inf)
    return z


def split(mu: float, share: float) -> tuple[float, float]:
    """Split a budget μ into (a, b): a² is about `share` of μ², and a² + b² ≤ μ² holds exactly.

    mu : μ > 0. share : 0 < share < 1. Raises PrivacyError otherwise.
    """
    if not require_mu(mu) > 0:
        raise PrivacyError("mu must be positive: there is nothing to split")
    require_fraction("share", share, PrivacyError)
    total = Fraction(mu) ** 2
    first = mu * math.sqrt(share)
    rest = math.sqrt(max(0.0, float(total - Fraction(first) ** 2)))
    while Fraction(first) ** 2 + Fraction(rest) ** 2 > total:
        rest = math.nextafter(rest, 0.0)
    if not (first > 0 and rest > 0):
        raise PrivacyError(f"share = {share!r} leaves no budget on one side: choose a share further from 0 and 1")
    return first, rest


@lru_cache(maxsize=64)
def scaled_to_budget(plan: tuple[Charge, ...], epsilon: float, delta: float) -> tuple[Charge, ...]:
    """Return the plan with every σ multiplied by one factor, so that the plan is (ε, δ)-DP.

    A plan without sampling is accounted exactly, and the factor is the smallest possible one up to its last bits. A plan with
    sampling is accounted by privacy loss distributions (PLD), and the ε of the scaled plan is at most `epsilon` and within a
    thousandth of `epsilon`.
    plan : ((event, count), ...) of Gaussian and PoissonSubsampledGaussian events. The ratios of their σ decide how the events
    share the budget.
    Fix a plan with sampling before its first release. Raises PrivacyError if no noise is enough. For a plan with sampling,
    also raises PrivacyError if the extra `accounting` is not installed.
    """
    mu = mu_of(epsilon, delta)
    # Sampling only lowers the cost: this factor suffices, apart from its last bits and the discretisation of PLD.
    plain = tuple((Gaussian(e.adjacency, e.sensitivity, e.sigma, 1), count) for e, count in plan)
    factor = math.sqrt(float(sum(mu_squared(event) * count for event, count in plain))) / mu
    if any(isinstance(event, PoissonSubsampledGaussian) for event, _ in plan):
        return _scaled(plan, _sampled_factor(plan, factor, epsilon, delta))
    limit = floor_units(Fraction(mu) ** 2)
    rise = 2.0**-52
    while sum(units(event, mu_squared) * count for event, count in _scaled(plan, factor)) > limit:
        factor, rise = factor * (1.0 + rise), 2.0 * rise
    return _scaled(plan, factor)


def _scaled(plan: tuple[Charge, ...], factor: float) -> tuple[Charge, ...]:
    return tuple((replace(event, sigma=event.sigma * factor), count) for event, count in plan)


def _sampled_factor(plan: tuple[Charge, ...], start: float, epsilon: float, delta: float) -> float:
    """Return a factor at which the ε of the plan, by PLD, lies just below `epsilon`.

    log ε is nearly linear in the logarithm of the factor, so the search takes secant steps, kept inside the known bracket.
    start : a factor at which the plan would have at most this ε without sampling.
    """
    from vfl.privacy.pld import PldAccountant

    def excess(x: float) -> float:
        accountant = PldAccountant(plan[0][0].adjacency).compose_all(_scaled(plan, math.exp(x)))
        try:
            return math.log(max(accountant.epsilon(delta), 1e-9 * epsilon) / epsilon)
        except PrivacyError:  # the loss is too large to compute; if it is at the start, every factor fails
            if x == first:
                raise
            return math.inf

    x = first = math.log(start)
    enough, little = math.inf, -math.inf
    last: tuple[float, float] | None = None
    for _ in range(60):
        f = excess(x)
        if -1e-3 <= f <= 0.0:
            return math.exp(x)
        enough, little = (min(enough, x), little) if f <= 0.0 else (enough, max(little, x))
        slope = (f - last[1]) / (x - last[0]) if last is not None and math.isfinite(f) else -1.0
        last = (x, f) if math.isfinite(f) else None
        x = x - (f + 4e-4) / min(slope, -0.5) if math.isfinite(f) else x + 0.5
        if not little < x < enough:
            x = 0.5 * (little + enough)  # the step left the bracket: halve the bracket
    raise PrivacyError(f"no noise makes this plan fit under epsilon = {epsilon!r} at delta = {delta!r}")
