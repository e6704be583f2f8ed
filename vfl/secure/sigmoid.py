"""The logistic function as a short Fourier series, with the integer tables that holders of shares and the dealer use.

Guarantee. An integer residual is at most `residual_bound` in magnitude for every angle and every dealt number. The series is
periodic, so this bound holds for all margins and hence for every w.

    r = ½ + π(v) − t,  t ∈ {0, 1},      π(v) = Σ_{f≤K} c_f sin(2πfv/L) ≈ 1/(1 + e^(−v)) − ½  for |v| ≤ V

A margin is an angle: one period is divided into 2^16 angles. With the public sum δ of masked angles and the mask ρ, the angle
of a margin is δ − ρ, and

    2^26 π = Σ_f P_f(δ)·C_f(ρ) − Q_f(δ)·S_f(ρ),     P, Q = rint(2^14 c_f (sin, cos)(2πfδ/2^16)),
                                                     C, S = rint(2^12 (cos, sin)(2πfρ/2^16))

The coefficients are integers in steps of 2^−30. All tables follow from them by integer arithmetic, so every participant has
the same tables on every machine. Participants with different tables would compute meaningless sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError
from vfl.secure.ring import COEFFICIENT_BITS, RESIDUAL_BITS, TERM_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

ANGLES = 1 << 16
"""Number of angles in one period."""
FINE = 30
"""Bits after the binary point of the coefficients, and of the sine from which all tables are rounded."""
SLOPE = 0.25
"""Largest derivative of the logistic function."""
TABLE_ERROR = 0.5 + 2.0**-12
"""Bound on the rounding error of a table entry, in steps of the table: ½ for rounding to a whole step, plus 2^−12 for the error
of the sine (`FINE` bits) from which the entry is rounded."""


@dataclass(frozen=True, slots=True)
class Series:
    """A Fourier series close to the logistic function: least maximum error on |v| ≤ V for K terms, period L, sup|π| ≤ 0.501.

    margin : V. period : L. coefficients : (c_1, ..., c_K) in steps of 2^−30.
    error : η ≥ max_{|v| ≤ V} |π(v) − (1/(1 + e^(−v)) − ½)|. largest : ≥ sup |π|.
    """

    margin: float
    period: float
    coefficients: tuple[int, ...]
    error: float
    largest: float

    @property
    def terms(self) -> int:
        """Return K, the number of Fourier terms."""
        return len(self.coefficients)

    @property
    def rounding(self) -> float:
        """Return E, a bound on the error of a residual that the rounded tables cause.

        Let P or Q have an error e and C or S an error e′, of at most h steps each. A term then changes by at most
        2^FC |c_f| h √2 + 2^FT h √2 + 2h² steps of 2^−26, since |sin| + |cos| ≤ √2.
        """
        h, root = TABLE_ERROR, math.sqrt(2.0)
        magnitudes = sum(map(abs, self.coefficients)) * 2.0**-FINE
        per_term = magnitudes * h * root * 2.0**-TERM_BITS
        per_coefficient = self.terms * h * root * 2.0**-COEFFICIENT_BITS
        both = self.terms * 2.0 * h * h * 2.0**-RESIDUAL_BITS
        return float((per_term + per_coefficient + both) * (1.0 + 1e-12))

    @property
    def bound(self) -> float:
        """Return r_max of this series: ½ + sup|π| + E."""
        return 0.5 + self.largest + self.rounding


SERIES: tuple[Series, ...] = (
    Series(4.0, 16.0, (542098919, 8176865, 25086963, 11493237), 5.1e-4, 0.48273),
    Series(6.0, 18.0, (598687633, -40888241, 83585297, -12912251, 9980995), 3.54e-4, 0.49748),
    Series(8.0, 24.0, (612150604, 5302833, 83551563, 15799308, 4761821, 8675193), 1.311e-3, 0.5008),
    Series(
        8.0,
        24.0,
        (617527133, -3265390, 92080350, 9996828, 6819531, 9391158, -2153154, 2546212),
        1.93e-4,
        0.49978,
    ),
    Series(
        12.0,
        30.0,
        (650432601, -22259258, 151282612, -20559161, 48684479, -9651031, 14232112, -2232871, 2961397, 386055),
        4.57e-4,
        0.50046,
    ),
    Series(
        16.0,
        40.0,
        (
            *(657425844, -584003, 160784886, 3738667, 51203496, 8376848),
            *(12164776, 8819672, 384212, 5820200, -1028600, 2588640),
        ),
        6.73e-4,
        0.50069,
    ),
    Series(
        24.0,
        55.2,
        (
            *(671506082, -4144023, 194621233, -5482671, 89110176, -3908144, 42841019, -1186388),
            *(19542254, 1038325, 7860738, 2075592, 2517370, 2032998, 539699, 1937348),
        ),
        9.72e-4,
        0.50099,
    ),
)
"""All series, ordered by margin, then by number of terms. A `place` is the index of a series in this tuple."""


def chosen(needed: float, *, fine: bool = False) -> int:
    """Return the index of the first series with V ≥ needed, else of the last. With `fine`: the most terms among equal V."""
    fitting = [place for place, series in enumerate(SERIES) if series.margin >= needed] or [len(SERIES) - 1]
    margin = SERIES[fitting[0]].margin
    equal = [place for place in fitting if SERIES[place].margin == margin]
    return equal[-1] if fine else equal[0]


def residual_bound(places: Iterable[int] | None = None) -> int:
    """Return R, the largest magnitude of an integer residual, in units of 2^−26, over all series that the run may use.

    Columns are scaled only once, but the series in use changes with w. The run therefore needs the largest bound of all its
    series.

    places : indices of these series in SERIES; None for all series.
    """
    used = list(range(len(SERIES)) if places is None else places)
    largest = max(SERIES[place].bound for place in used)
    return math.ceil(largest * 2.0**RESIDUAL_BITS)


def clamps(margin: float, reaches: Mapping[str, float]) -> dict[str, float | None]:
    """Return {party: bound to which the party clamps its part of a margin}, or None as bound if no clamp is needed.

    If Σ reach > V, each party clamps its part to ±V·reach_q/Σ reach, so a margin stays within ±V. Without a clamp, a margin
    beyond L/2 would get the residual of the opposite sign. A confident margin near L/2 would get the residual of an undecided
    one. A clamp adds bias but no sensitivity.

    margin : V.
    reaches : {party: reach_q}, reach_q = Σ_j (B_j + |c_j|)·|w_j| over centred columns, plus |intercept| at the label party.
    """
    total = math.fsum(reaches.values())
    if total <= margin:
        return dict.fromkeys(reaches)
    return {party: margin * reach / total for party, reach in reaches.items()}


def error(series: Series, parties: int, spread: float) -> float:
    """Return a bound on the error of a residual for |v| ≤ V: η + E + mL/2^19 + spread/2^17. parties : m.

    spread : Σ_j B_j|w_j|, where each column is rounded to a multiple of 2^−14 of its bound B_j.
    """
    angles = SLOPE * parties * series.period / 2 ** (16 + 1)
    return float(series.error + series.rounding + angles + SLOPE * spread * 2.0**-15)


@lru_cache(maxsize=1)
def fine_sine() -> npt.NDArray[np.int64]:
    """Return rint(2^30 sin(2πa/2^16)), (2^16,) int64. No value is close to a half-integer, so all machines round alike."""
    quarter = np.rint(2.0**FINE * np.sin(np.arange(ANGLES // 4 + 1) * (2.0 * math.pi / ANGLES))).astype(np.int64)
    half = np.concatenate([quarter, quarter[-2:0:-1]])
    return np.concatenate([half, -half])


@lru_cache(maxsize=8)
def fourier_terms(terms: int) -> npt.NDArray[np.int16]:
    """Return the dealer's table (2^16, 2K) int16: entry ρ is C_1(ρ), S_1(ρ), ..., C_K(ρ), S_K(ρ)."""
    table = np.empty((ANGLES, 2 * terms), dtype=np.int16)
    sine = _rounded(fine_sine(), FINE - TERM_BITS)
    for f in range(1, terms + 1):
        table[:, 2 * f - 2] = sine[_turned(f, ANGLES // 4)]
        table[:, 2 * f - 1] = sine[_turned(f, 0)]
    table.flags.writeable = False
    return table


@lru_cache(maxsize=8)
def responses(place: int) -> npt.NDArray[np.int16]:
    """Return the table (2^16, 2K) int16 of all holders of shares: entry δ is P_1(δ), −Q_1(δ), ...

    Its product with the dealer's row is 2^26 π.
    """
    series = SERIES[place]
    table = np.empty((ANGLES, 2 * series.terms), dtype=np.int16)
    for f, coefficient in enumerate(series.coefficients, start=1):
        scaled = _rounded(fine_sine() * coefficient, 2 * FINE - COEFFICIENT_BITS)
        if abs(scaled).max() > np.iinfo(np.int16).max:
            raise PrivacyError("a coefficient of the sigmoid's series is too large for its table")
        table[:, 2 * f - 2] = scaled[_turned(f, 0)]
        table[:, 2 * f - 1] = -scaled[_turned(f, ANGLES // 4)]
    table.flags.writeable = False
    return table


def _turned(f: int, by: int) -> npt.NDArray[np.int64]:
    """Return f·a + by modulo 2^16 for every angle a, (2^16,)."""
    return (f * np.arange(ANGLES, dtype=np.int64) + by) % ANGLES


def _rounded(values: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Return values/2^bits rounded to the nearest integer, halves away from 0, so that a rounded sine stays an odd function."""
    magnitude = (np.abs(values) + (1 << (bits - 1))) >> bits
    return np.where(values < 0, -magnitude, magnitude)


# Angles that carry score and label of a held-out record (vfl.secure.measures). V = 2^(place/4); messages state the place.

MOMENTS = 128
"""K, the number of moments. A row of the dealer's terms fits a whole number of times into an encrypted piece."""
ARC = 2.2
"""Length of the arc of a class, in units of V. A gap of V/5 separates the clamped scores of the two classes, so the
kernels of one class are negligible at those of the other.
"""
PER_DOUBLING, PLACES = 4, range(-40, 33)
"""Number of places of V per factor of 2, and all places."""


def place_of(needed: float) -> int:
    """Return the place of the smallest V that is at least `needed`; that of the largest V if there is none."""
    exponent = math.ceil(PER_DOUBLING * math.log2(needed)) if needed > 0.0 else PLACES[0]
    return min(max(exponent, PLACES[0]), PLACES[-1])


def margin_at(place: int) -> float:
    """Return V."""
    return float(2.0 ** (place / PER_DOUBLING))


def period_at(place: int) -> float:
    """Return the length of the circle: two arcs."""
    return 2.0 * ARC * margin_at(place)


def class_angles(labels: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint16]:
    """Return the angle of v = 0 on the arc of each record's class, (n,)."""
    return np.where(labels, 3 * ANGLES // 4, ANGLES // 4).astype(np.uint16)
