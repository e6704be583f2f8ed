"""Numbers as words modulo 2^64: the bits of a run, the caps of the parties, and the decoding of an opened sum.

Guarantee. With the result of `bits`, every opened sum decodes to the exact integer sum, for any data. With the result of
`caps`, the contributions of one record to all releases of a pass form a vector of norm at most C, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.privacy.keystream import Words
    from vfl.types import Integers

COEFFICIENT_BITS = 14
"""FC, bits of the coefficients of the sigmoid."""
WAVE_BITS = 12
"""FT, bits of the dealt waves."""
RESIDUAL_BITS = COEFFICIENT_BITS + WAVE_BITS

LARGEST_TOTAL = 40
SMALLEST_TOTAL = 34
LARGEST_DRAW = 1 << 52
"""Bound on a draw of vfl.privacy.rounded_gaussian at its largest deviation, 2^48 steps: 16 deviations."""
LARGEST_DEVIATION = 1 << 48
_HALF = 1 << 63


@dataclass(frozen=True, slots=True)
class Bits:
    """Bits after the binary point of an opened sum: F = FX + FC + FT.

    columns : FX, the bits of the columns, from 8 to 14, so that a scaled column fits in int16.
    """

    columns: int

    @property
    def total(self) -> int:
        """Return F."""
        return self.columns + RESIDUAL_BITS

    @property
    def limit(self) -> int:
        """Return 4^FX, the largest ‖Q_i‖² of a party's integer row over all of its columns."""
        return 1 << (2 * self.columns)

    def step(self, cap: float) -> float:
        """Return g_q = c_q·2^−F, the value of one step of a sum over a party's columns. Exact unless it underflows."""
        return math.ldexp(cap, -self.total)


def bits(n_records: int, residual: int, deviation: Fraction | float, parties: int) -> Bits:
    """Return the bits of a run of logistic regression; PrivacyError if fewer than 34 are left.

    n_records : n. parties : m.
    residual : R, the bound on an integer residual, in steps of 2^−26 (vfl.secure.sigmoid.residual_bound).
    deviation : max over parties and releases of σ/c_q, with c_q from `caps`.

    F is the largest number ≤ 40 with n·R·2^FX + (m + 1)·2^52 < 2^63 and 2^F·σ/c_q ≤ 2^48.
    """
    ratio = Fraction(deviation)
    for total in range(LARGEST_TOTAL, SMALLEST_TOTAL - 1, -1):
        columns = total - RESIDUAL_BITS
        if exact(n_records, residual, columns, parties) and ratio * 2**total <= LARGEST_DEVIATION:
            return Bits(columns)
    raise PrivacyError(
        f"trust='secure': {n_records} records at this noise leave fewer than {SMALLEST_TOTAL} bits for a sum: plan fewer "
        "releases or a larger clip"
    )


def exact(n_records: int, residual: int, columns: int, parties: int) -> bool:
    """Return True if every noised sum decodes exactly: n·R·2^FX + (m + 1)·2^52 < 2^63."""
    largest = (n_records * residual << columns) + (parties + 1) * LARGEST_DRAW
    return largest < _HALF


def caps(cap: float, residual: int, squares: Mapping[str, float]) -> dict[str, float]:
    """Return c_q for every party, c_q² ∝ squares_q, with Σ_q (c_q·R·2^−26)² ≤ C² in exact arithmetic.

    A party shrinks its rows until ‖Q_i‖² ≤ 4^FX. With residuals |r_i| ≤ R·2^−26, the contributions of a record to disjoint
    blocks of all parties then have joint norm at most C, so a pass has Δ = 2C.

    cap : C. squares : public, for instance ΣB_j²; positive.
    """
    total = math.fsum(squares.values())
    if not (math.isfinite(cap) and cap > 0 and all(square > 0 for square in squares.values()) and total < math.inf):
        raise PrivacyError(
            "trust='secure' needs a finite clip, and at least one column with a positive bound at every party"
        )
    unit = cap / (residual / 2**RESIDUAL_BITS)
    found = {party: unit * math.sqrt(square / total) for party, square in squares.items()}
    while not covers(cap, residual, found):
        found = {party: math.nextafter(own, 0.0) for party, own in found.items()}
    return found


def covers(cap: float, residual: int, caps: Mapping[str, float]) -> bool:
    """Return True if Σ_q (c_q·R·2^−26)² ≤ C², in exact arithmetic."""
    joint = sum((Fraction(own) ** 2 for own in caps.values()), start=Fraction(0))
    return joint * residual * residual <= Fraction(cap) ** 2 * (1 << 2 * RESIDUAL_BITS)


def decoded(words: Words) -> Integers:
    """Return the integers in [−2^63, 2^63) that are congruent to the words."""
    return np.ascontiguousarray(words, dtype=np.uint64).view(np.int64)


def encoded(integers: Integers) -> Words:
    """Return the words modulo 2^64."""
    return np.ascontiguousarray(integers, dtype=np.int64).view(np.uint64)
