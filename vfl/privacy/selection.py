r"""Private selection of the best score: the exponential mechanism by Gumbel noise, in fixed point, with an exact ε.

The winner among scores s_1..s_m, each of sensitivity Δ, held by any number of parties, is an ε-bounded-range release
under replace-one. So the release is ε-DP and ε²/8-zCDP (McSherry & Talwar 2007; Dong, Durfee & Rogers 2020; Cesar & Rogers
2021).

Mechanism. Each score j (called a lane) gets Y_j = s_j/b + G_j with an independent standard Gumbel G_j, and the greatest Y_j
wins. A party answers with its best lane, and the coordinator takes the best answer, which is the best lane of all. Only the
winning coordinate is released, so *one* event covers all lanes of all parties, however the lanes are divided among parties.

Range, with exact numbers. P(j) = e^(s_j/b) / Σ_i e^(s_i/b). When one record is replaced, s becomes s' and
ln P(j) - ln P'(j) = (s_j - s'_j)/b + c with the same c for all j. The first term lies in [-Δ/b, Δ/b], so the range of
the loss over j is at most 2Δ/b. The interval of losses contains 0, since probabilities sum to 1. So the absolute loss is at
most the range.

The scale 2Δ/ε. With b = Δ/ε the range is ε only if all scores move in one direction (monotone scores). Scores of gradients
do not under replace-one. For example, let two tied scores move Δ in opposite directions. The score that falls wins with
probability 1/2 before and 1/(1 + e^(2Δ/b)) after. At b = Δ/ε the ratio is (1 + e^(2ε))/2 > e^ε; at b = 2Δ/ε the ratio is
(1 + e^ε)/2 ≤ e^ε. (For Laplace noise of scale Δ/ε: e^(2ε)/(1 + ε) > e^ε.)

Range, with rounded numbers. Rounding before an argmax is not post-processing, since it may change the winner. But let
V_j be any numbers with |V_j - Y_j| ≤ e in every lane, and let j win if V_j is greatest, ties broken by any rule. Then
Y_j > max_(i≠j) Y_i + 2e implies that j wins, which implies Y_j ≥ max_(i≠j) Y_i - 2e. Moving s_j by 2eb moves
P(j) by a factor within e^(±2e), so the probability P̃(j) of winning satisfies e^(-2e) P(j) ≤ P̃(j) ≤ e^(2e) P(j). Four
such factors enter the range: it is at most 2Δ/b + 8e, without any δ. Here e ≤ 2^-43 (`fixed_value`), so b is the exact
rational 2Δ/(ε - 2^-40), and the range is at most ε.

V_j is an integer multiple of 2^-48: the floor of the score plus the floor of G, each exact, from the score and the words
of the keystream alone. V_j is the same on every platform, compares exactly, and is sent as a Python integer. Doubles serve
only to exclude lanes that cannot win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import total_ordering
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from flint import arb, ctx, fmpq

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from vfl.base.types import Integers, Vector
    from vfl.privacy.events import BoundedRange, ReleaseKey
    from vfl.privacy.keystream import Keystream
    from vfl.privacy.noise import NoiseSource

# V is a multiple of 2^-48.
FRACTION_BITS = 48
# Fixed point adds at most 8e to the range of the loss, e = 2^-43. SLACK = 8e is subtracted from ε before the scale is computed.
SLACK = Fraction(1, 2**40)
# From this ε on the slack enlarges the scale by less than a thousandth.
SMALLEST_EPSILON = 2.0**-30

# A lane whose Y in doubles is this much below the greatest cannot have the greatest V (`_candidates`). A larger tolerance
# costs time and changes no result.
TOLERANCE = 2.0**-32

_TAIL_BITS = 63
TAIL_MASK = np.int64(2**_TAIL_BITS - 1)
_WORD_BITS = 64
_HALF_UNIT = 2.0**-_WORD_BITS
# A tail with fewer leading bits than these leaves its Gumbel variable open by more than 2^-44; it takes further words.
_LEAST_TAIL = 2**44

_LOWEST = -float(np.finfo(np.float64).max)
# Every double is a multiple of 2^-1074: the grid of scores without noise.
_DOUBLE_BITS = 1074


@total_ordering
@dataclass(frozen=True, slots=True)
class NoisyScore:
    """Best noisy score of a party, which only the coordinator compares. The greatest wins; among equal scores, the first.

    coordinate : index of the score in the party's vector; `moved` adds the party's offset, which gives the index in w.
    value : the noisy score, an integer multiple of a unit that all parties of the selection use. repr hides the value, so that
        no log contains it.
    """

    coordinate: int
    value: int = field(repr=False)

    def __lt__(self, other: NoisyScore) -> bool:
        return (self.value, -self.coordinate) < (other.value, -other.coordinate)

    def moved(self, offset: int) -> NoisyScore:
        """Return the same score with `offset` added to its coordinate."""
        return NoisyScore(self.coordinate + offset, self.value)


def noisy_best(
    scores: Vector,
    sensitivity: float,
    event: BoundedRange | None,
    noise: NoiseSource,
    key: ReleaseKey,
) -> NoisyScore:
    """Return a party's best noisy score. The best over all parties is an ε-bounded-range release under replace-one.

    The guarantee is for the winning coordinate alone (module docstring). All parties of a selection use the same sensitivity
    and event, and each party uses a stream of its own.

    scores : (s,) float64, s ≥ 1. NaN and infinities count as the lowest double, so that no error depends on data.
    sensitivity : Δ > 0, the largest change of any one score *as computed* when one record is replaced, in units of the scores.
        The change includes the floating-point error of the score.
    event : event with ε. With None, no noise is drawn or added, and the greatest score wins, the first among equals.
    noise : source of the stream that `key` names. The first s words of the stream are the lanes. The top bit of a lane gives
        the half of (0, 1) that contains u (1 for the upper half). The other 63 bits are the leading bits of twice the distance
        of u to the outer end of that half, and G = -ln(-ln(1 - u)). A lane whose 63 bits are below 2⁴⁴ takes further words, 64
        bits each, until the number of all its bits is at least 2⁴⁴, in the order of the lanes. So the result is a function of
        scores and words alone.

    Raises PrivacyError for arguments out of range: an empty or wrongly shaped `scores`, Δ not positive and finite, ε below
    2⁻³⁰, or 2Δ/ε outside [2⁻¹⁰⁰⁰, 2¹⁰⁰⁰].
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1 or not scores.size:
        raise PrivacyError(f"noisy_best: scores must be a vector of at least one entry, not of shape {scores.shape}")
    scores = np.where(np.isfinite(scores), scores, _LOWEST)
    if event is None:
        first = int(scores.argmax())
        return NoisyScore(first, _floor(float(scores[first]), Fraction(1), _DOUBLE_BITS))
    scale = gumbel_scale(sensitivity, event)
    stream = noise.stream(key)
    lanes = stream.words(scores.size).view(np.int64)
    tails = lanes & TAIL_MASK
    extended = _extended(tails, stream)

    def at(lane: int) -> NoisyScore:
        tail, bits = extended.get(lane, (int(tails[lane]), _TAIL_BITS))
        return NoisyScore(lane, fixed_value(float(scores[lane]), scale, bool(lanes[lane] < 0), tail, bits))

    return max(map(at, _candidates(scores, float(scale), lanes, tails, list(extended))))


def gumbel_scale(sensitivity: float, event: BoundedRange) -> Fraction:
    """Return b = 2Δ/(ε - SLACK), exactly."""
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise PrivacyError(f"noisy_best: sensitivity must be positive and finite, not {sensitivity!r}")
    if event.epsilon < SMALLEST_EPSILON:
        raise PrivacyError(
            f"noisy_best: epsilon of one selection must be at least 2^-30, not {event.epsilon!r}; "
            "use fewer rounds or a larger budget"
        )
    scale = 2 * Fraction(sensitivity) / (Fraction(event.epsilon) - SLACK)
    if not Fraction(1, 2**1000) <= scale <= 2**1000:
        raise PrivacyError("noisy_best: 2·sensitivity/epsilon is beyond 2^±1000; choose other units for the scores")
    return scale


def _extended(tails: Integers, stream: Keystream) -> dict[int, tuple[int, int]]:
    """Return {lane: (tail, bits)} for the lanes with short tails (about 2⁻¹⁹ of all lanes), extended by further words."""
    longer = {}
    if tails.min() < _LEAST_TAIL:
        for lane in np.flatnonzero(tails < _LEAST_TAIL).tolist():
            tail, bits = int(tails[lane]), _TAIL_BITS
            while tail < _LEAST_TAIL:
                tail = tail << _WORD_BITS | int(stream.words(1)[0])
                bits += _WORD_BITS
            longer[lane] = tail, bits
    return longer


def _candidates(scores: Vector, scale: float, lanes: Integers, tails: Integers, extended: list[int]) -> list[int]:
    """Return lanes that contain every lane with the greatest V, and all extended lanes.

    For the other lanes |G| < 14. With the logarithms of numpy within 2^-48 (relative; tests require half of that) and q
    within 2^-51, E is within 2^-47 and G within 2^-47 + 14·2^-48 < 2^-43. Scores enter as (s - top)/b, where top is the
    greatest score: within 2^-51 relative, 2^-45 for lanes down to -64. V itself is within 2^-46 of the approximated number.
    So two lanes compare correctly if they differ by 2^-41, and the tolerance is 512 times that. A lane below -64 is computed
    below -49. The lane at `top` has more than -3, or more than -28 if it is extended: G is at least -ln(B) with B bits, fewer
    than 2^41 in a stream. So a lane below -64 cannot win. The lane at `top` is returned, or loses to a lane that is returned.
    """
    noisy = float_gumbel(lanes, tails)
    # Overflow goes to minus infinity: a lane that cannot win.
    with np.errstate(over="ignore", under="ignore"):
        noisy += (scores - scores.max()) / scale
    # 63 bits may put an extended lane too high, and the threshold with it.
    noisy[extended] = -np.inf
    return sorted({*np.flatnonzero(noisy >= noisy.max() - TOLERANCE).tolist(), *extended})


def float_gumbel(lanes: Integers, tails: Integers) -> npt.NDArray[np.float64]:
    """Return standard Gumbel variables in double precision, from 63 bits per lane."""
    q = tails.astype(np.float64)
    q += 0.5
    q *= _HALF_UNIT
    exponential = np.where(lanes < 0, np.log(q), np.log1p(-q))
    np.negative(exponential, out=exponential)
    np.log(exponential, out=exponential)
    return np.negative(exponential, out=exponential)


def fixed_value(score: float, scale: Fraction, upper: bool, tail: int, bits: int) -> int:
    """Return V·2⁴⁸ as an integer, where |V - (s/b + G)| ≤ 2⁻⁴³ for every G that the known bits allow.

    upper : True if u is in the upper half.
    tail : k ≥ 2⁴⁴. q, the distance of u to the outer end of its half, then lies in [k, k + 1]·2^-(bits + 1).

    The floor of the score loses at most 2^-48, and so does the floor of G (`fixed_gumbel`). |dG/dq| is at most 2/q in
    the lower half (G = -ln(-ln(1 - q)), -ln(1 - q) ≥ q, 1 - q ≥ 1/2) and 1/(q ln 2) in the upper half (G = -ln(-ln q)). So
    G at the middle of the interval is within 1/k ≤ 2^-44 of G anywhere in the interval. All errors together are below 2^-43.
    """
    return _floor(score, scale, FRACTION_BITS) + fixed_gumbel(upper, tail, bits)


def _floor(score: float, scale: Fraction, fraction_bits: int) -> int:
    numerator, denominator = score.as_integer_ratio()
    return (numerator * scale.denominator << fraction_bits) // (denominator * scale.numerator)


def fixed_gumbel(upper: bool, tail: int, bits: int) -> int:
    """Return ⌊2⁴⁸·G⌋, exactly, at q = (2·tail + 1)/2^(bits + 2).

    Arb encloses G in a ball with a proven radius (Johansson 2017). The precision doubles until all numbers in the ball
    have the same floor.
    """
    q = fmpq(2 * tail + 1, 1 << (bits + 2))
    precision = 2 * bits
    while True:
        with ctx.workprec(precision):
            gumbel = -(-arb(q if upper else 1 - q).log()).log()
            floor = (gumbel * 2**FRACTION_BITS).floor().unique_fmpz()
            if floor is not None:
                return int(floor)
        precision *= 2
