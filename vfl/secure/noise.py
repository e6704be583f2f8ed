"""Noise that several participants add to one sum, and the price of its rounding.

Guarantee. Each party adds rint N(0, s²) with s² ≥ σ²/m, and the dealer with s² ≥ kσ²/m. Without the noise of any k parties, and
without that of the dealer, at least σ² is left. A sum of rounded Gaussians is not one rounded Gaussian: the guarantee of the
Gaussian mechanism holds at δ + `added_delta`, which is below 10^−34000 for every run that `deviations` admits
(docs/mathematics.md, "Noise of several parties").
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from vfl.errors import PrivacyError
from vfl.privacy.rounded_gaussian import LARGEST_SCALE, rounded_gaussian

if TYPE_CHECKING:
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import NoiseSource
    from vfl.types import Integers

LEAST_STEPS = 64
"""Every deviation is at least this many steps, times √H for H contributors."""


class Deviations(NamedTuple):
    """Deviations of one release, in steps of its sum: of every party, and of the dealer."""

    party: float
    dealer: float


def deviations(sigma: float, step: float | Fraction, parties: int, collude: int) -> Deviations:
    """Return the deviations of the contributors for a release with noise σ; PrivacyError outside [64√(m+1), 2^48] steps.

    sigma : σ of the event that is charged. step : g > 0, in the same unit. parties : m. collude : k.
    """
    variance = (Fraction(sigma) / Fraction(step)) ** 2
    found = Deviations(_root_above(variance / parties), _root_above(variance * collude / parties))
    if not LEAST_STEPS * math.sqrt(parties + 1) <= found.party or not found.dealer <= LARGEST_SCALE:
        raise PrivacyError(
            f"trust='secure': noise of {found.party:.3g} steps for each party: a sum needs from "
            f"{LEAST_STEPS * math.sqrt(parties + 1):.0f} to 2^48; plan other bits or releases"
        )
    return found


def drawn(noise: NoiseSource, key: ReleaseKey, who: str, deviation: float, size: int) -> Integers:
    """Draw one contributor's noise, (size,) int64 in steps."""
    return rounded_gaussian(noise.stream(key, who), deviation, size)


def tau(least: float, contributors: int) -> float:
    """Return τ = (1 + 2Σ_i exp(−2π²i²·s²/H))^(H−1) − 1, rounded up; half of it bounds a total variation.

    The law of a sum of H rounded Gaussians with deviations at least s steps is, for each opened number and whatever was
    opened before, within τ/2 in total variation of a function of the continuous Gaussian mechanism's output.

    least : s > 0. contributors : H ≥ 1, only those whose noise the opponent does not know. Never 0 for H > 1.
    """
    rate = 2.0 * math.pi**2 * least**2 / contributors * (1.0 - 1e-12)
    theta, i = 0.0, 1
    while (term := math.exp(-rate * i * i)) > 0.0 and i < 10_000:
        theta, i = theta + term, i + 1
    if i >= 10_000:
        return math.inf
    if contributors == 1:
        return 0.0
    return max(math.expm1((contributors - 1) * math.log1p(2.0 * theta)) * (1.0 + 1e-9), math.ulp(0.0))


def added_delta(epsilon: float, opened: int, tau: float) -> float:
    """Return (1 + e^ε)·N·τ, which the rounding of N opened numbers adds to δ; twice what the lemma needs."""
    return (1.0 + math.exp(min(epsilon, 700.0))) * opened * tau


def _root_above(square: Fraction) -> float:
    """Return a double whose square is at least `square`, within a few units in the last place of the smallest one."""
    root = math.sqrt(square)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
