"""Zero-concentrated differential privacy (zCDP): ε as a function of ρ and δ, and its inverse, rounded to the safe side.

A run is ρ-zCDP if its Rényi divergence of every order α > 1 is at most ρα (Bun & Steinke 2016, Def. 1.1). For each α, a
ρ-zCDP run is (ε_α, δ)-DP with (Canonne, Kamath, Steinke 2020, Prop. 12, and Cor. 13 for zCDP)

    ε_α = αρ + log(1/(αδ))/(α−1) + log(1 − 1/α).

The derivative of ε_α in α vanishes where ρ(α−1)² = log(1/(αδ)). The left side rises with α and the right side falls, so the
best order is the only root. Conversely, the best order determines ρ, and along this curve ε falls as α grows. Both directions
are therefore one bisection over x = α − 1. Every order gives a valid bound, so an inexact root only makes the bound less
tight.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError
from vfl.privacy.gaussian_dp import require_delta, require_epsilon

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALLEST_LOG, _ROUNDING = -330.0, 2.0**-49  # eight roundings of the largest term


def require_rho(rho: float) -> float:
    """Return rho. Raise PrivacyError unless it is 0 or between 1e-280 and 1e280."""
    if not (rho == 0 or 1e-280 <= rho <= 1e280):
        raise PrivacyError(f"rho must be 0 or between 1e-280 and 1e280, not {rho!r}: check sensitivities and noise")
    return rho


@lru_cache(maxsize=1024)
def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return an ε, the smallest over all orders, rounded up, for which every ρ-zCDP run is (ε, δ)-DP; 0 for ρ = 0.

    rho : ρ ≥ 0. delta : 0 < δ < 1. `epsilon_of_rho(rho_of(epsilon, delta), delta) <= epsilon` always holds. Raises PrivacyError
        for invalid ρ or δ.
    """
    log_delta = math.log(require_delta(delta))
    if require_rho(rho) == 0.0:
        return 0.0
    x = _turn(lambda x: rho * x <= _gap(x, log_delta) / x, log_delta)
    value, error = _epsilon(x, rho, log_delta)
    return max(0.0, value + error)


@lru_cache(maxsize=1024)
def rho_of(epsilon: float, delta: float) -> float:
    """Return the largest ρ, rounded down, for which every ρ-zCDP run is (ε, δ)-DP by the best order.

    epsilon : ε > 0. delta : 0 < δ < 1. Raises PrivacyError otherwise, and if no ρ above 1e-280 fits.
    """
    require_epsilon(epsilon)
    log_delta = math.log(require_delta(delta))

    def too_much(x: float) -> bool:
        rho = _gap(x, log_delta) / x / x
        return _epsilon(x, rho, log_delta)[0] > epsilon

    x = _turn(too_much, log_delta)
    rest, error = _epsilon(x, 0.0, log_delta)
    # Four errors here against one in epsilon_of_rho, and the relative error of ρ itself.
    scale = max(1.0, abs(rest) + epsilon)
    rho = (epsilon - rest - 4.0 * error - 16.0 * _ROUNDING * scale) / (1.0 + x)
    if not rho >= 1e-280:
        raise PrivacyError(
            f"no zCDP budget fits under epsilon = {epsilon!r} at delta = {delta!r}: raise epsilon or delta"
        )
    return require_rho(rho)


def _gap(x: float, log_delta: float) -> float:
    return -log_delta - math.log1p(x)


def _epsilon(x: float, rho: float, log_delta: float) -> tuple[float, float]:
    """Return ε_α at α = 1 + x and a bound on its rounding error."""
    terms = ((1.0 + x) * rho, _gap(x, log_delta) / x, -math.log1p(1.0 / x))
    return math.fsum(terms), _ROUNDING * (sum(map(abs, terms)) + (math.log1p(x) - log_delta) / x + 1.0)


def _turn(holds: Callable[[float], bool], log_delta: float) -> float:
    """Return the x = α − 1 at which `holds` turns from true to false, by bisection of log x over 0 < x < 1/δ."""
    low, high = _SMALLEST_LOG, min(700.0, -log_delta)
    for _ in range(80):
        middle = 0.5 * (low + high)
        if holds(math.exp(middle)):
            low = middle
        else:
            high = middle
    return math.exp(high)


def delta_of_rho(epsilon: float, rho: float) -> float:
    """Return a δ, by the best order and rounded up, for which every ρ-zCDP run is (ε, δ)-DP; at most 1, and 0 for ρ = 0.

    log δ_α = x((1+x)ρ − ε) + x log x − (1+x) log(1+x), x = α − 1: this is ε_α of the module docstring, solved for δ. The
    derivative of log δ_α in x, (1+2x)ρ − ε + log(x/(1+x)), rises with x, so the best order is again the only root.
    epsilon : ε ≥ 0. rho : ρ ≥ 0. Raises PrivacyError for invalid ε or ρ.
    """
    require_epsilon(epsilon, zero=True)
    if require_rho(rho) == 0.0:
        return 0.0
    # If x > 1e100, terms overflow. A smaller order also gives a valid bound.
    x = min(1e100, _turn(lambda x: (1.0 + 2.0 * x) * rho - epsilon - math.log1p(1.0 / x) <= 0.0, -700.0))
    terms = (x * (1.0 + x) * rho, -x * epsilon, -x * math.log1p(1.0 / x), -math.log1p(x))
    value = math.fsum(terms) + _ROUNDING * (sum(map(abs, terms)) + 1.0)
    return min(1.0, max(math.exp(min(0.0, value)), math.ulp(0.0)))
