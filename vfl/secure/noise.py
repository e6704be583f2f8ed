"""Noise that several participants add to one sum, and the cost of its rounding in δ.

Guarantee. Each party adds rint N(0, s²) with s² ≥ σ²/m, and the dealer adds it with s² ≥ kσ²/m. Take away the noise of any k
parties, or that of the dealer: the rest still has variance at least σ². A sum of rounded Gaussians is not one rounded Gaussian.
The guarantee of the Gaussian mechanism therefore holds at δ + `added_delta`. For every run that `deviations` admits,
`added_delta` is below 10^−34000 (docs/mathematics.md, "Noise of several parties").
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
"""Least deviation in steps, per √H, for H contributors."""


class Deviations(NamedTuple):
    """Standard deviations of the noise of each party and of the dealer in one release, in steps of its sum."""

    party: float
    dealer: float

    def total(self, parties: int) -> float:
        """Return Σs over all parties and the dealer."""
        return parties * self.party + self.dealer


def deviations(sigma: float, step: float | Fraction, parties: int, collude: int) -> Deviations:
    """Return the contributors' deviations for a release with noise σ; PrivacyError outside [64√(m+1), 2^48] steps.

    sigma : σ of the charged event. step : g > 0, in the same unit. parties : m. collude : k.
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

    Consider a sum of H rounded Gaussians with deviations of at least s steps. For each opened number, and given all numbers
    opened before, its law is within τ/2 in total variation of a function of the continuous Gaussian mechanism's output.

    least : s > 0. contributors : H ≥ 1, only those whose noise the opponent does not know. The result is positive for H > 1.
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
    """Return (1 + e^ε)·N·τ, an addition to δ for the rounding of N opened numbers; it is twice the bound of the lemma."""
    return (1.0 + math.exp(min(epsilon, 700.0))) * opened * tau


def _root_above(square: Fraction) -> float:
    """Return a double whose square is at least `square`, within a few units in the last place of the smallest one."""
    root = math.sqrt(square)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
