"""Noise that several participants add to one sum, and the cost of its rounding in δ.

Guarantee. Each of m parties adds rint N(0, s²) with s² ≥ σ²/m; the dealer's s² is at least kσ²/m. Remove the noise of any k
parties, or the dealer's: the remaining noise still has variance at least σ². Without a dealer, each party's s² is at least
σ²/(m − k), so that the noise of the other m − k parties has variance at least σ². A sum of rounded Gaussians is not one rounded
Gaussian. The guarantee of the Gaussian mechanism therefore holds at δ + (1 + e^ε)·N·τ for N opened numbers. For H rounded
Gaussians of at least s steps, τ = (1 + 2Σ_i exp(−2π²i²·s²/H))^(H−1) − 1. For every run that `deviations` admits, this adds less
than 10^−34000 to δ (docs/mathematics.md, "Noise of several parties").
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from vfl.errors import PrivacyError
from vfl.privacy.rounded_gaussian import LARGEST_SCALE, rounded_gaussian

if TYPE_CHECKING:
    from vfl.base.types import Integers
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import NoiseSource

LEAST_STEPS = 64
"""Least standard deviation of one contributor's noise, in steps of the sum, divided by √H. H : number of contributors."""


class Deviations(NamedTuple):
    """Standard deviations of the noise of each party and of the dealer in one release, in steps of its sum; 0: no dealer."""

    party: float
    dealer: float

    def total(self, parties: int) -> float:
        """Return Σs, the sum of the standard deviations of all parties and the dealer."""
        return parties * self.party + self.dealer


@lru_cache(maxsize=256)  # every participant calls this for every revealed sum
def deviations(sigma: float, step: float | Fraction, parties: int, collude: int, *, dealt: bool = True) -> Deviations:
    """Return the standard deviations of each party's and the dealer's noise for a release with noise σ, in steps of its sum.

    sigma : σ of the charged event. step : g > 0, in the unit of σ. parties : m. collude : k. dealt : True with a dealer. Raises
        PrivacyError if a party's deviation is below 64√(m + 1) steps or a deviation is above 2^48 steps.
    """
    variance = (Fraction(sigma) / Fraction(step)) ** 2
    if dealt:
        found = Deviations(_root_above(variance / parties), _root_above(variance * collude / parties))
    else:
        found = Deviations(_root_above(variance / (parties - collude)), 0.0)
    if not LEAST_STEPS * math.sqrt(parties + 1) <= found.party or not max(found) <= LARGEST_SCALE:
        raise PrivacyError(
            f"trust='secure': each party would add noise of {found.party:.3g} steps, but a sum needs "
            f"{LEAST_STEPS * math.sqrt(parties + 1):.0f} to 2^48; plan other bits or releases"
        )
    return found


def drawn(noise: NoiseSource, key: ReleaseKey, who: str, deviation: float, size: int) -> Integers:
    """Draw one contributor's noise, (size,) int64 in steps."""
    return rounded_gaussian(noise.stream(key, who), deviation, size)


def _root_above(square: Fraction) -> float:
    """Return a double whose square is at least `square`, within a few units in the last place of the smallest such double."""
    root = math.sqrt(square)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
