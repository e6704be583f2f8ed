"""Gaussian noise on the integers: continuous normal variables, drawn from a keystream and rounded exactly."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

import numpy as np
from flint import arb, ctx, fmpq

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from vfl.base.types import Integers, Vector
    from vfl.privacy.keystream import Keystream

# Relative error of scipy.special.ndtri on (0, 1/2]. The largest difference from mpmath is 0.9e-15, near q = exp(-2) where
# it changes formulas; this bound is four times as large, and tests/privacy/test_noise.py requires scipy to be within half of
# it. A larger bound costs time and changes no result.
NDTRI_ERROR = 2.0**-48

# 63 bits give |Z| of at most 9.1. Values at this scale are then below 2^52: half-integers are doubles, and sums fit in int64.
LARGEST_SCALE = 2.0**48

_TAIL_BITS = 63
_TAIL_MASK = np.int64(2**_TAIL_BITS - 1)
_WORD_BITS = 64
_HALF_UNIT = 2.0**-_WORD_BITS

# Largest ratio Q(z)/φ(z) for z ≥ 0, at 0: a relative change of q by η moves |Z| by at most this times η.
_MILLS = math.sqrt(math.pi / 2) * (1 + 1e-9)
# Tails of at least this size have |Z| < 3.9 and an interval of relative width 2^-50, so one bound holds for all.
_WIDE_TAIL = 2**50
_WIDE_TAIL_LARGEST = 3.9
# Lanes per chunk; a few arrays of this size fit in the second-level cache.
LANES = 8192
# Bits of precision of the interval arithmetic beyond those of q at the start. These bits change the running time, never the
# answer.
GUARD = 64


def rounded_gaussian(stream: Keystream, scale: float, size: int) -> Integers:
    """Draw rint(N(0, scale²)) exactly: (size,) int64, independent. Each is the rounding of a *continuous* normal variable.

    Since rint(v + x) = v + rint(x) for integer v, adding the result to an integer query is post-processing of the
    continuous Gaussian mechanism. So the guarantee has no term for floating point (docs/mathematics.md, "The block release").
    Background: Mironov 2012; Holohan & Braghin 2021; Jin et al. 2022.

    stream : the release's own keystream. The next `size` words are called lanes, one per result. The top bit of a lane is the
        sign (1 is negative); the other 63 bits are the leading bits of 2q, where |Z| = Q⁻¹(q). A lane that 63 bits do not
        decide takes further words, 64 bits each, in the order of the lanes. The result therefore depends on the stream's words
        alone, and not on ndtri, the error bound of ndtri, the chunk size or the platform.
    scale : standard deviation in units of the grid, 0 < scale ≤ 2⁴⁸, taken as the exact value of the double.

    Method: double precision decides nearly all lanes. If scale·|Z| of a lane lies within the error of a half-integer, the
    lane is compared with both half-integers around it in interval arithmetic (`side_of`). The share of such lanes is about
    2⁻⁴⁷·scale, and a lane takes about 20 µs: negligible at scale 2²⁶, noticeable at 2⁴⁵.

    Raises PrivacyError if scale or size is out of range. Never returns an undecided value.
    """
    scale = float(scale)
    if not 0 < scale <= LARGEST_SCALE:
        raise PrivacyError(
            "rounded_gaussian: scale must be positive and at most 2^48 grid units, "
            f"not {scale!r}; choose a coarser grid"
        )
    if size < 0:
        raise PrivacyError(f"rounded_gaussian: size must be 0 or more, not {size!r}")
    result = np.empty(size, dtype=np.int64)
    undecided: list[tuple[int, int]] = []
    for start in range(0, size, LANES):
        lanes = stream.words(min(LANES, size - start)).view(np.int64)
        doubtful = _round_lanes(lanes, scale, result[start : start + len(lanes)])
        undecided.extend((start + lane, int(lanes[lane])) for lane in doubtful)
    if undecided:
        # Decide these after all lanes, so that the words of a lane do not depend on the size of chunks.
        ratio = scale.as_integer_ratio()
        for lane, word in undecided:
            magnitude = decided(word & int(_TAIL_MASK), ratio, stream)
            result[lane] = -magnitude if word < 0 else magnitude
    return result


def _round_lanes(lanes: Integers, scale: float, result: Integers) -> list[int]:
    """Write the rounded value of every lane into `result`. Return the lanes that double precision cannot decide, ascending."""
    from scipy.special import ndtri  # imported here so that an actor starts faster

    tails = lanes & _TAIL_MASK
    # q at the middle of [k, k+1]·2^-64. Conversion and addition err by 2^-53 each; relative to q that is at most 2^-52.
    value = tails.astype(np.float64)
    value += 0.5
    value *= _HALF_UNIT
    ndtri(value, out=value)
    value *= -scale
    rounded = np.rint(value)
    result[:] = rounded
    sign = lanes >> _TAIL_BITS
    result ^= sign
    result -= sign
    value -= rounded  # exact: both are multiples of one ulp, and the difference is at most a half
    np.abs(value, out=value)
    limit = 0.5 - scale * (_MILLS * 2.0**-49 + (NDTRI_ERROR + 2.0**-52) * _WIDE_TAIL_LARGEST)
    if tails.min() >= _WIDE_TAIL and value.max() < limit:
        return []
    suspects = np.flatnonzero((tails < _WIDE_TAIL) | (value >= limit))
    certain_below = _certain_below(tails[suspects], rounded[suspects], scale)
    return [int(lane) for lane in suspects[value[suspects] >= certain_below]]


def _certain_below(tails: Integers, rounded: Vector, scale: float) -> Vector:
    """Return one threshold per lane. The rounding is certain if the computed value is closer to its integer than the threshold.

    |computed - scale·|Z|| ≤ scale·(Mills·η + (ndtri's error)·|Z|) + rounding of the product, where η bounds the
    relative distance from the computed q to any q of the lane: 1/(2k) for the interval and 2^-52 for its middle. Every
    term is an overestimate that also covers second-order errors. The threshold may be negative. There is no bound for k = 0.
    """
    with np.errstate(divide="ignore"):
        q_error = 2.0**-51 + 1.0 / tails
    return np.asarray(0.5 - scale * _MILLS * q_error - (NDTRI_ERROR + 2.0**-52) * (rounded + 0.5))


def decided(tail: int, ratio: tuple[int, int], stream: Keystream) -> int:
    """Return rint(scale·|Z|) for a word whose last 63 bits are `tail`. Draw more words until the bits decide the result.

    The search starts at a guess. The search returns n once |Z| provably lies between (n - 1/2)/scale and (n + 1/2)/scale for
    every value of the bits that were not drawn.
    """
    scale_above, scale_below = ratio
    bits = _TAIL_BITS
    while True:
        nearest = _guess(tail, bits, ratio) if tail else 0
        while tail:
            above = side_of((2 * nearest + 1) * scale_below, 2 * scale_above, tail, bits)
            if above is Side.ABOVE:
                nearest += 1
                continue
            below = Side.ABOVE
            if nearest:
                below = side_of((2 * nearest - 1) * scale_below, 2 * scale_above, tail, bits)
            if below is Side.BELOW:
                nearest -= 1
                continue
            if above is Side.BELOW and below is Side.ABOVE:
                return nearest
            break
        tail = tail << _WORD_BITS | int(stream.words(1)[0])
        bits += _WORD_BITS


def _guess(tail: int, bits: int, ratio: tuple[int, int]) -> int:
    """Return an estimate of rint(scale·|Z|) from the leading bits of q, in double precision."""
    from scipy.special import ndtri

    return max(0, round(-float(ndtri((2 * tail + 1) / (1 << (bits + 2)))) * (ratio[0] / ratio[1])))


class Side(enum.Enum):
    """Side of a boundary on which |Z| lies, for every q that agrees with the known bits."""

    BELOW = "below"
    ABOVE = "above"
    OPEN = "open"


def side_of(numerator: int, denominator: int, tail: int, bits: int) -> Side:
    """Compare |Z| with the boundary t = numerator/denominator ≥ 0. The answer is exact; OPEN asks for more bits of q.

    |Z| = Q⁻¹(q), where Q(t) = P(Z > t) = erfc(t/√2)/2 falls and q is uniform on (0, 1/2). So |Z| > t exactly if q < Q(t).
    The known bits say that q lies in [k, k + 1]·2^-(B+1). So |Z| > t if k + 1 ≤ 2^B·erfc(t/√2), |Z| < t if
    k ≥ 2^B·erfc(t/√2), and both are possible in between. Arb encloses the right-hand side in a ball with a proven radius, and
    a comparison of balls holds only if it holds for all points of the balls (Johansson 2017). The precision doubles until one
    of the three cases is certain, so the answer depends on the arguments alone. If another thread sets Arb's precision, only
    the time changes.

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
