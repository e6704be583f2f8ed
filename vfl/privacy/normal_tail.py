"""Exact comparison of a normal variable with a boundary, from the leading bits of its tail probability, by interval arithmetic.

|Z| = Q⁻¹(q) for a standard normal Z, where Q(t) = P(Z > t) and q is uniform on (0, 1/2). Only the leading bits of q are
known: if the B bits are k, q lies in [k, k + 1]·2^-(B+1). Q is decreasing, so |Z| > t exactly if q < Q(t).
"""

from __future__ import annotations

import enum

from flint import arb, ctx, fmpq

GUARD = 64
"""Bits of precision beyond those of q at the start. They change the running time, never the answer."""


class Side(enum.Enum):
    """Side of the boundary on which |Z| lies, for every q that agrees with the known bits."""

    BELOW = "below"
    ABOVE = "above"
    OPEN = "open"


def side_of(numerator: int, denominator: int, tail: int, bits: int) -> Side:
    """Compare |Z| with the boundary t = numerator/denominator ≥ 0. The answer is exact; OPEN asks for more bits of q.

    With Q(t) = erfc(t/√2)/2, the known bits leave |Z| > t if k + 1 ≤ 2^B·erfc(t/√2), |Z| < t if k ≥ 2^B·erfc(t/√2),
    and both possible in between. Arb encloses the right-hand side in a ball with a proven radius, and a comparison of
    balls holds only if it holds for all of their points (Johansson 2017). The precision doubles until one of the three
    cases is certain, so the answer depends on the arguments alone. If another thread sets Arb's precision, only the time
    changes.

    tail : k, the known leading bits of 2q, 0 ≤ k < 2^bits.
    bits : B ≥ 1, the number of known bits.
    """
    precision = bits + GUARD
    while True:
        with ctx.workprec(precision):
            edge = (arb(fmpq(numerator, denominator)) / arb(2).sqrt()).erfc() * 2**bits
            if edge >= tail + 1:
                return Side.ABOVE
            if tail and edge <= tail:
                return Side.BELOW
            if (not tail or edge > tail) and edge < tail + 1:  # Q is positive, so k = 0 is never too large
                return Side.OPEN
        precision *= 2
