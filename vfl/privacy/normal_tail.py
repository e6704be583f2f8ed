"""On which side of a boundary a normal variable lies, decided in integers from the bits of its tail probability.

|Z| = Q⁻¹(q) for a standard normal Z, where Q(t) = P(Z > t) and q is uniform on (0, 1/2). Of q only the leading bits are
known: with B bits k, q lies in [k, k + 1]·2^-(B+1). Q falls, so |Z| > t exactly when q < Q(t).
"""

from __future__ import annotations

import enum
from functools import lru_cache
from math import isqrt

# Bits beyond those of q. Rounding leaves a doubt of about 2^-GUARD of the interval that the bits of q leave open.
GUARD = 64


class Side(enum.Enum):
    """Where |Z| lies for every q that the known bits allow."""

    BELOW = "below"
    ABOVE = "above"
    OPEN = "open"


def side_of(numerator: int, denominator: int, tail: int, bits: int) -> Side:
    """Compare |Z| with the boundary t = numerator/denominator ≥ 0. Never wrong; OPEN when more bits are needed.

    tail : k, the known leading bits of 2q, 0 ≤ k < 2^bits.
    bits : B ≥ 1.

    With τ = t rounded down to 2^-P, S(τ) = Σ_j (-1)^j τ^(2j+1) / (2^j j! (2j+1)) is √(2π)·(1/2 - Q(τ)). It is compared
    with √(2π)·(1/2 - q) at both ends of q's interval, all in multiples ("ulps") of 2^-P.

    Error of the sum. Let x = τ²/2 and c_j = τ x^j/j!, made from c_(j-1) by a multiplication and a division that round
    down and lose at most 2 ulps. What is lost at step i stays in all later terms with the factors
    (-x)^(j-i) i!/j!/(2j+1), and their sum over j ≥ i is ∫ u^(2i) G_i(xu²) du over (0, 1), where G_0(y) = e^-y and
    G_i(y) = i ∫ (1-s)^(i-1) e^(-ys) ds over (0, 1) lie in (0, 1]: at most 1/(2i+1), however large the terms in between.
    So J steps lose at most 2J, and the divisions by 2j+1 J more. A term computed as 0 loses nothing from there on, so
    nothing is omitted at the end. Rounding τ² moves S by at most τ/6 and rounding t by at most 1. Altogether no more
    than 3J + τ/6 + 1 ulps.
    """
    # Q(t) ≤ e^(-t²/2)/2 < 2^-(B+1) once t² ≥ 1.4·B (2·ln 2 = 1.386...), and q is above that for all k ≥ 1.
    if 5 * numerator * numerator >= 7 * bits * denominator * denominator:
        return Side.BELOW if tail else Side.OPEN
    precision = bits + GUARD
    tau = (numerator << precision) // denominator
    tau_squared = tau * tau >> precision
    power, total, step = tau, 0, 0
    while power:
        term = power // (2 * step + 1)
        total += -term if step & 1 else term
        step += 1
        power = (power * tau_squared >> precision) // (2 * step)
    # The right-hand sides are within 2 ulps; 8 covers these and the 1.
    doubt = 3 * step + (tau >> precision) + 8
    root = _root_of_two_pi(precision)
    half = 1 << bits
    if total + doubt < (half - tail - 1) * root >> (bits + 1):
        return Side.ABOVE
    if total - doubt > (half - tail) * root >> (bits + 1):
        return Side.BELOW
    return Side.OPEN


@lru_cache(maxsize=256)
def _root_of_two_pi(precision: int) -> int:
    """Return √(2π)·2^precision, at most 1 below and never above by more than 1."""
    extra = precision + 64
    # Machin 1706: π = 16·arctan(1/5) - 4·arctan(1/239); what the series lose is far below the 64 extra bits.
    pi = 16 * _arctangent_of_inverse(5, extra) - 4 * _arctangent_of_inverse(239, extra)
    return isqrt((pi << (1 + 2 * precision)) >> extra)


def _arctangent_of_inverse(integer: int, precision: int) -> int:
    """Return arctan(1/integer)·2^precision by its series, within one unit a term."""
    power = (1 << precision) // integer
    total, step = power, 1
    while power:
        power //= integer * integer
        total += -(power // (2 * step + 1)) if step & 1 else power // (2 * step + 1)
        step += 1
    return total
