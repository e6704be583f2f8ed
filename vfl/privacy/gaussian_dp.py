"""Gaussian differential privacy: δ as a function of ε and μ, and both inverses, each rounded to the safe side.

A run is μ-GDP if telling two adjacent data sets apart is no easier than telling N(0, 1) from N(μ, 1) (Dong, Roth, Su
2022, Def. 2.6). Such a run is (ε, δ)-DP exactly for δ ≥ δ(ε; μ) (Cor. 2.13 there; Balle & Wang 2018, Thm. 8):

    δ(ε; μ) = Φ(−t) − e^ε Φ(−u),    t = ε/μ − μ/2,    u = ε/μ + μ/2.

This formula overflows near ε = 710, and cancels where δ is small. Mills' ratio R(x) = Φ(−x)/φ(x) and u² − t² = 2ε remove
the exponential, and the integrand of the resulting formula has no change of sign:

    δ = φ(t) (R(t) − R(u)) = φ(t) ∫₀^∞ e^{−ts − s²/2} (1 − e^{−μs}) ds.

The code uses the difference R(t) − R(u) if the subtraction loses at most one digit, and the integral otherwise. The
functions compute logarithms, so δ = 1e-3000 is as precise as δ = 0.1. `_error` bounds the rounding error of log δ; the
functions add this bound on the safe side.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.arguments import require_fraction
from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfl.base.types import Vector

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_SPLIT = 134217729.0  # 2²⁷ + 1: Dekker's constant
_SMALLEST, _LARGEST = 1e-140, 1e140  # range of μ and ε in which products and squares neither overflow nor lose bits
_FAR = 1e70  # beyond this t, log δ is below −1e139, and δ is below every double
_CUT = 45.0  # cut the integral at exponent 45: the tail is below 1e-19 of the integral


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest δ for which every μ-GDP run is (ε, δ)-DP, rounded up. At most 1; 0 only if μ is 0.

    epsilon : ε ≥ 0. mu : μ ≥ 0. The relative error is below 1e-12 where δ is a normal double. If δ underflows, the smallest
        double is returned; `log_delta_of` is precise there. Raises PrivacyError for invalid ε or μ.
    """
    if require_mu(mu) == 0.0:
        require_epsilon(epsilon, zero=True)
        return 0.0
    return min(1.0, max(math.exp(log_delta_of(epsilon, mu)), math.ulp(0.0)))


def log_delta_of(epsilon: float, mu: float) -> float:
    """Return log δ(ε; μ), rounded up. At most 0; −inf if μ = 0 or if log δ is below −1e139.

    Arguments and errors as in `delta_of`.
    """
    require_epsilon(epsilon, zero=True)
    if require_mu(mu) == 0.0:
        return -math.inf
    value, error = _log_delta(epsilon, mu)
    return min(0.0, value + error)


@lru_cache(maxsize=1024)
def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε for which every μ-GDP run is (ε, δ)-DP, rounded up; 0 if δ alone is enough.

    mu : μ ≥ 0. delta : 0 < δ < 1. `epsilon_of(mu_of(epsilon, delta), delta) <= epsilon` always holds. Raises PrivacyError for
        invalid μ or δ, and if no ε below 1e140 is enough.
    """
    target = math.log(require_delta(delta))
    if require_mu(mu) == 0.0:
        return 0.0

    def holds(epsilon: float) -> bool:
        value, error = _log_delta(epsilon, mu)
        return value + error <= target

    if holds(0.0):
        return 0.0
    if not holds(_LARGEST):
        raise PrivacyError(
            f"mu = {mu!r} gives no usable epsilon at delta = {delta!r}: use more noise or fewer releases"
        )
    return _adjacent(holds, _LARGEST, 0.0)


@lru_cache(maxsize=1024)
def mu_of(epsilon: float, delta: float) -> float:
    """Return the budget of (ε, δ), the largest μ for which every μ-GDP run is (ε, δ)-DP, rounded down.

    epsilon : ε > 0. delta : 0 < δ < 1. Raises PrivacyError otherwise.
    """
    require_epsilon(epsilon)
    target = math.log(require_delta(delta))

    def holds(mu: float) -> bool:
        # Four errors here and one error in epsilon_of, so that rounding cannot lift the round trip above ε.
        value, error = _log_delta(epsilon, mu)
        return value + 4.0 * error <= target

    if not holds(_SMALLEST) or holds(_LARGEST):
        raise PrivacyError(
            f"epsilon = {epsilon!r} at delta = {delta!r} is outside what can be computed: "
            "use an epsilon between 1e-100 and 1e100"
        )
    return _adjacent(holds, _SMALLEST, _LARGEST)


def require_epsilon(epsilon: float, *, zero: bool = False) -> float:
    """Return epsilon. Raise PrivacyError unless it is finite and positive (or 0, if `zero`)."""
    if not (math.isfinite(epsilon) and (epsilon > 0 or (zero and epsilon == 0)) and epsilon <= _LARGEST):
        least = "at least 0" if zero else "positive"
        raise PrivacyError(f"epsilon must be {least} and finite, not {epsilon!r}: usual values lie between 0.1 and 10")
    return epsilon


def require_delta(delta: float) -> float:
    """Return delta. Raise PrivacyError unless 0 < δ < 1."""
    remedy = ": choose one well below 1/n for n records, such as 1/n² (Gaussian noise gives no guarantee at delta = 0)"
    require_fraction("delta", delta, PrivacyError, remedy)
    return delta


def require_mu(mu: float) -> float:
    """Return mu. Raise PrivacyError unless it is 0 or between 1e-140 and 1e140."""
    if not (mu == 0 or _SMALLEST <= mu <= _LARGEST):
        raise PrivacyError(f"mu must be 0 or between 1e-140 and 1e140, not {mu!r}: check sensitivity and sigma")
    return mu


def _log_delta(epsilon: float, mu: float) -> tuple[float, float]:
    """Return log δ(ε; μ) and a bound on its absolute error, for ε ≥ 0 and μ > 0."""
    from scipy.special import erfcx, ndtr

    t, low = _margin(epsilon, mu)
    if t > _FAR:
        return -math.inf, 0.0
    second = _SQRT_HALF_PI * float(erfcx((t + mu) * _SQRT_HALF))
    log_density = -0.5 * t * t - t * low - _LOG_SQRT_2PI
    if t >= 0.0:
        first = _SQRT_HALF_PI * float(erfcx(t * _SQRT_HALF))
        difference = first - second
        if difference < 0.1 * first:
            difference = _difference(t, mu)
    else:
        rest = float(ndtr(t)) + math.exp(log_density) * second  # Φ(t) + e^ε Φ(−u) = 1 − δ
        if rest <= 0.9:
            return math.log1p(-rest), _error(t, mu)
        difference = _difference(t, mu)
    return log_density + _log(difference), _error(t, mu)


def _error(t: float, mu: float) -> float:
    """Return a bound on the absolute error of `_log_delta`.

    For t ≥ 0, the bound is for three roundings of t²/2. For t < 0, it is for the error of 1 − δ, divided by δ ≥ 0.1. That
    error comes from t itself (below μ·2⁻⁵³) and from t²/2, each times φ(t). All other errors together are below 3e-14.
    """
    if t >= 0.0:
        return 2.0**-52 * (t * t) + 3e-14
    return 2.0**-49 * (mu + t * t) * math.exp(-min(700.0, 0.5 * t * t)) + 3e-14


def _log(difference: float) -> float:
    if not difference > 0.0:
        raise PrivacyError("delta cancelled to zero in the computation: this is a defect, please report it")
    return math.log(difference)


def _margin(epsilon: float, mu: float) -> tuple[float, float]:
    """Return t = ε/μ − μ/2 as a double, and a correction for its rounding. Without it log δ would err by t·ulp(ε/μ)."""
    quotient = epsilon / mu
    if not quotient < 1e150:  # only where μ is so small that t is beyond _FAR as well
        return math.inf, 0.0
    product, lost = _product(quotient, mu)
    half = 0.5 * mu
    t = quotient - half
    back = t - quotient
    rounding = (quotient - (t - back)) + (-half - back)
    return t, rounding + ((epsilon - product) - lost) / mu


def _product(a: float, b: float) -> tuple[float, float]:
    """Return fl(a·b) and its exact rounding error (Dekker 1971)."""
    product = a * b
    a_high = _SPLIT * a - (_SPLIT * a - a)
    b_high = _SPLIT * b - (_SPLIT * b - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@lru_cache(maxsize=1)
def _nodes() -> tuple[Vector, Vector]:
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def _difference(t: float, mu: float) -> float:
    """Return R(t) − R(t+μ) by quadrature. The factor 1 − e^{−μs} is nearly linear where the weight is large."""
    nodes, weights = _nodes()
    end = 2.0 * _CUT / (math.sqrt(t * t + 2.0 * _CUT) + t)  # ts + s²/2 = _CUT
    s = nodes * end
    return float(np.dot(weights, np.exp(-s * (t + 0.5 * s)) * -np.expm1(-mu * s))) * end


def _adjacent(holds: Callable[[float], bool], good: float, bad: float) -> float:
    """Return the last double for which `holds` is true, between `good` and `bad`, by bisection over the doubles.

    good, bad : non-negative doubles. `holds` is true for `good` and false for `bad`.
    """
    inside, outside = _rank(good), _rank(bad)
    while abs(inside - outside) > 1:
        middle = (inside + outside) // 2
        if holds(_double(middle)):
            inside = middle
        else:
            outside = middle
    return _double(inside)


def _rank(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _double(rank: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", rank))[0])
