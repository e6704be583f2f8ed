"""Numbers as integers modulo 2^64, or modulo a prime without a dealer: bits, caps of the parties, decoding of an opened sum.

Guarantee. With the result of `bits`, every opened sum decodes to the exact integer sum, for any data. Such a sum fills at most
a sixteenth of the ring, and `within` refuses a sum that is too large for the data and the noise. With the result of `caps`,
the contributions of one record to all releases of a pass form a vector of norm at most C, exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import FederationError, PrivacyError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.types import Integers
    from vfl.kernels.ring import Elements

COEFFICIENT_BITS = 14
"""FC, bits after the binary point of a coefficient in the tables of the sigmoid's Fourier series."""
TERM_BITS = 12
"""FT, bits after the binary point of the dealt Fourier terms."""
RESIDUAL_BITS = COEFFICIENT_BITS + TERM_BITS

LARGEST_TOTAL = 40
SMALLEST_TOTAL = 34
DRAW = 16
"""Bound on a draw of noise, in standard deviations. A draw of rint N(0, s²) with s ≥ 64 exceeds 16s with probability 2^-188."""
LARGEST_DEVIATION = 1 << 48
RESERVED_BITS = 4
RANGE = 1 << (63 - RESERVED_BITS)
"""Bound on the magnitude of an opened sum. A uniformly random uint64 is below it with probability 2^-RESERVED_BITS."""


PRIME = 1152921504606748673
"""t, the largest prime below 2^60 with t ≡ 1 modulo 2^15: the modulus of shares in a run without a dealer."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The integers modulo 2^64 or modulo t, as uint64. range : bound on the magnitude of an opened sum."""

    range: int

    def decoded(self, elements: Elements) -> Integers:
        """Return elements as signed integers, of at most half the modulus in magnitude."""
        if self is WORDS:
            return decoded(elements)
        if (elements >= PRIME).any():
            raise FederationError("a share is not an integer modulo t")
        signed = elements.view(np.int64)
        return np.where(signed > PRIME // 2, signed - PRIME, signed)

    def added(self, parts: Sequence[Elements]) -> Elements:
        """Return the sum of elements of equal shape."""
        return added(parts) if self is MODULAR else np.sum(parts, axis=0, dtype=np.uint64)


WORDS = Ring(RANGE)
MODULAR = Ring(1 << (59 - RESERVED_BITS))


@dataclass(frozen=True, slots=True)
class Bits:
    """Bits after the binary point of an opened sum, F = FX + FC + FT: of columns, coefficients and Fourier terms.

    columns : FX, the bits of the columns, from 8 to 14. A scaled column then fits in int16.
    """

    columns: int

    @property
    def total(self) -> int:
        """Return F, the bits after the binary point of an opened sum."""
        return self.columns + RESIDUAL_BITS

    @property
    def limit(self) -> int:
        """Return 4^FX, the largest permitted ‖Q_i‖² of a record's integer row over all columns of a party."""
        return 1 << (2 * self.columns)

    def step(self, cap: float) -> float:
        """Return g_q = c_q·2^−F, the value of one integer step of a sum over a party's columns. Exact unless g_q underflows."""
        return math.ldexp(cap, -self.total)


def bits(n_records: int, residual: int, deviation: Fraction | float, parties: int, ring: Ring = WORDS) -> Bits:
    """Return the bits of an opened sum of logistic regression; PrivacyError if F would be below 34.

    n_records : n. parties : m.
    residual : R, the bound on an integer residual, in steps of 2^−26 (vfl.secure.sigmoid.residual_bound).
    deviation : max over parties and releases of σ/c_q, with c_q from `caps`.

    F is the largest number ≤ 40 with n·R·2^FX + 16·Σs < `ring.range`, for the largest Σs (see `fits`), and 2^F·σ/c_q ≤ 2^48.
    Here FX = F − FC − FT, the `columns` of the result.
    """
    ratio = Fraction(deviation)
    for total in range(LARGEST_TOTAL, SMALLEST_TOTAL - 1, -1):
        columns = total - RESIDUAL_BITS
        if fits(n_records, residual, columns, parties, ring) and ratio * 2**total <= LARGEST_DEVIATION:
            return Bits(columns)
    raise PrivacyError(
        f"trust='secure': {n_records} records at this noise leave fewer than {SMALLEST_TOTAL} bits for a sum: plan fewer "
        f"releases, a larger clip, or at most {'3·10^7' if ring is WORDS else '1.5·10^6'} records"
    )


def fits(n_records: int, residual: int, columns: int, parties: int, ring: Ring = WORDS) -> bool:
    """Return True if every noised sum, n·R·2^FX + 16·Σs, stays below `ring.range`. columns : FX.

    Σs, the sum of all contributors' deviations, is at most (√m + √(k/m))·2^48, for which the code uses (⌊√m⌋ + 2)·2^48, and
    m·2^48 for the m = 2 parties without a dealer.
    """
    most = math.isqrt(parties) + 2 if ring is WORDS else parties
    return largest_sum(n_records, residual << columns, most * LARGEST_DEVIATION) < ring.range


def largest_sum(n_records: int, contribution: int, deviations: float) -> int:
    """Return n·contribution + 16·Σs, the largest magnitude of an opened sum of honest participants, in steps.

    contribution : bound on one record's part, R·2^FX or 4^FX. deviations : Σs over all contributors of noise. A sum exceeds it
        with probability at most 2^-188 per contributor and opened number, so at most 2^-170 in a run that opens N numbers with
        N(m + 1) ≤ 2^18 (docs/mathematics.md, "Decoding").
    """
    return n_records * contribution + math.ceil(DRAW * deviations)


def within(sums: Integers, largest: int) -> Integers:
    """Return the opened sums unchanged. Raises PrivacyError if a sum's magnitude is above `largest`, from `largest_sum`."""
    if (sums > largest).any() or (sums < -largest).any():
        raise PrivacyError(
            "an opened sum is out of range and was not released (its privacy cost remains charged): any party, or the "
            "dealer, may have deviated from the protocol. Find out who runs changed software before you train again"
        )
    return sums


def caps(cap: float, residual: int, squares: Mapping[str, float]) -> dict[str, float]:
    """Return c_q for every party, c_q² ∝ squares_q, with Σ_q (c_q·R·2^−26)² ≤ C² in exact arithmetic.

    A party shrinks its rows until ‖Q_i‖² ≤ 4^FX. Residuals satisfy |r_i| ≤ R·2^−26. The contributions of a record to disjoint
    blocks of all parties then form a vector of norm at most C. A pass over all blocks therefore has Δ = 2C.

    cap : C. squares : {party: weight > 0}, public; for instance ΣB_j² over the party's columns.
    """
    return shared_cap(cap, cap / (residual / 2**RESIDUAL_BITS), Fraction(residual, 1 << RESIDUAL_BITS), squares)


def shared_cap(cap: float, unit: float, factor: Fraction | int, squares: Mapping[str, float]) -> dict[str, float]:
    """Return {party: c_q} with c_q near unit·√(squares_q/Σ squares) and Σ_q (c_q·factor)² ≤ C² in exact arithmetic. cap : C."""
    return dict(_shared_cap(cap, unit, factor, tuple(squares.items())))


@lru_cache(maxsize=64)  # called for every revealed sum
def _shared_cap(
    cap: float, unit: float, factor: Fraction | int, shares: tuple[tuple[str, float], ...]
) -> dict[str, float]:
    squares = dict(shares)
    total = math.fsum(squares.values())
    if not (math.isfinite(cap) and cap > 0 and all(square > 0 for square in squares.values()) and total < math.inf):
        raise PrivacyError(
            "trust='secure' needs a finite clip, and at least one column with a positive bound at every party"
        )
    found = {party: unit * math.sqrt(square / total) for party, square in squares.items()}
    while sum((Fraction(own) ** 2 for own in found.values()), start=Fraction(0)) * factor**2 > Fraction(cap) ** 2:
        found = {party: math.nextafter(own, 0.0) for party, own in found.items()}
    return found


def decoded(elements: Elements) -> Integers:
    """Return integers modulo 2^64, uint64, as signed integers in [−2^63, 2^63)."""
    return np.ascontiguousarray(elements, dtype=np.uint64).view(np.int64)


def encoded(integers: Integers) -> Elements:
    """Return signed integers modulo 2^64, as uint64."""
    return np.ascontiguousarray(integers, dtype=np.int64).view(np.uint64)


def modular(integers: Integers | Elements) -> Elements:
    """Return signed or unsigned integers of magnitude below t, of any type, as integers modulo t, uint64."""
    wide = integers.astype(np.int64)
    return np.where(wide < 0, wide + PRIME, wide).view(np.uint64)


def added(parts: Sequence[Elements]) -> Elements:
    """Return the sum of integers modulo t. parts : arrays of equal shape, each entry below t."""
    total = np.zeros(parts[0].shape, dtype=np.uint64)
    for part in parts:
        total = (total + part) % np.uint64(PRIME)
    return total
