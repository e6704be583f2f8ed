"""Measures of held-out records on secret shares: sums over the records of trigonometric polynomials of one angle.

A record's label and its linear predictor v are one angle. The circle has two arcs, the negative class first, each centred at
v = 0; v is clamped to ±V, and an arc covers ±1.1V. With the angles θ_i of the records, every holder has a share of the moments

    S_f = Σ_i e^(i f θ_i),   f = 1..K                                              (vfl.secure.moments)

Nobody opens the moments. A release is a public integer matrix times the moments, plus noise. This product is a sum over
records of a function g of θ alone, so no angle and no label takes g out of its range on the circle.

    four cells and a loss     the indicators of the arcs of the cells, and the clamped loss, smoothed to series of K terms
    one score                 the loss, or the indicator of the wrong predictions, smoothed
    a histogram               the moments themselves, with weights u_f. Their inverse transform, as post-processing, is a
                              histogram of M bins: bin j, centred at θ_j, sums (1 + 2Σ_f u_f cos f(θ − θ_j))/M

Guarantee. Replacing a record moves the released vector by at most the sensitivity of the charged event, for every model, clamp,
label and mask: `release` bounds ‖g(θ) − g(θ′)‖ over all pairs of the 2^16 angles, from the integers that are used, and adds the
error of the tables.

Every holder computes g from the job, the number of records and V (vfl.secure.sigmoid).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.holdout import Side
from vfl.errors import PrivacyError
from vfl.queries import SharedTally, Statistic
from vfl.queries.statistics import GRID, Lost, Outcomes
from vfl.secure import noise
from vfl.secure.ring import LARGEST_DEVIATION, TERM_BITS, largest_sum
from vfl.secure.sigmoid import ANGLES, ARC, MOMENTS, PLACES, TABLE_ERROR, period_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from vfl.base.types import Integers, Vector
    from vfl.privacy.events import Gaussian
    from vfl.secure.noise import Deviations
    from vfl.secure.roles import Roles

FLAT = 0.3
"""Share of the frequencies that a histogram keeps at full weight; the weights of the others fall to 0 like a cosine. At equal
noise, this lowers the area under the curve less than non-negative kernels do (tests/secure/test_measures.py).
"""
SLACK = 1.05
"""Factor by which a charged sensitivity exceeds that of exact cells and losses: room for series that leave [0, 1] by a few
hundredths, and for rounded coefficients and tables. Series that need more are smoothed more.
"""
LATTICE = 1.0 / 512
"""Step to which points are rounded before their distances are compared; the bound of the distances allows for it."""
ROOM = 1.01
"""The same factor for moments: room for their rounded weights and tables."""
TOP = 1.05
"""Bound on the magnitude of one record's part of a released number."""
LARGEST_BITS, SMALLEST_BITS = 16, 11
PRODUCT_BITS = 2 * TERM_BITS
_TABLES = (2.0 * math.sqrt(2.0) * TABLE_ERROR * 2.0**TERM_BITS + 2.0 * TABLE_ERROR**2) / 2.0**PRODUCT_BITS
"""Bound on the error of cos fδ cos fρ + sin fδ sin fρ, whose four factors are rounded to multiples of 2^−12."""
_ROUNDING = 1e-9
"""Bound on the error of a norm that is computed with float64 transforms; relative."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments(Statistic):
    """Weighed moments, whose transform is a histogram of `bins` bins, half of them on the arc of each class.

    With κ(t) = Σ u_f² cos ft, contributions of two records at distance t differ by a vector of squared norm 2(κ(0) − κ(t)).

    bins : M = 2(degree + 1), a power of two. White noise of the moments is white noise of the bins, except that
        their sum, the public number of records, and one alternating pattern have no noise.
    """

    bins: int

    grid = GRID

    @property
    def degree(self) -> int:
        """Return the number of moments."""
        return self.bins // 2 - 1

    @property
    def dimension(self) -> int:
        """Return the number of released values."""
        return 2 * self.degree

    @property
    def weights(self) -> Vector:
        """Return u_f, (degree,)."""
        return tapered(self.degree, FLAT)

    @property
    def sensitivity(self) -> float:
        """Return Δ with the room for rounding."""
        return _sensitivity(self.bins)

    def __call__(self, margins: Vector, labels: Vector) -> Integers:
        """Raise an error: only holders of shares compute moments."""
        raise NotImplementedError

    def histogram(self, released: Vector, n_records: int) -> Vector:
        """Return the counts of the bins, (M,), from weighed moments: C_1, S_1, C_2, ..."""
        spectrum = np.zeros(self.bins // 2 + 1, dtype=complex)
        turned = np.exp(-1j * np.pi / self.bins * np.arange(1, self.degree + 1))  # the centre of the first bin
        spectrum[0], spectrum[1:-1] = n_records, (released[::2] + 1j * released[1::2]) * turned
        return np.asarray(np.fft.irfft(np.conj(spectrum), self.bins))

    def deviation(self, sigma: float) -> float:
        """Return the standard deviation of a bin's noise, for noise sigma of each moment."""
        return sigma * math.sqrt(2.0 / self.bins)

    def edges(self, margin: float) -> Vector:
        """Return the edges between the bins of one class, as linear predictors, (M/2 − 1,). margin : V."""
        half = self.bins // 2
        width = 2.0 * ARC * margin / self.bins
        return np.asarray((np.arange(1, half) - half // 2) * width, dtype=np.float64)


@lru_cache(maxsize=16)
def _sensitivity(bins: int) -> float:
    u = Moments(bins).weights
    return ROOM * math.sqrt(_farthest(u * u))


def _farthest(squares: Vector) -> float:
    """Return max_t 2Σ_f s_f(1 − cos ft) over the 2^16 angles t."""
    spectrum = np.zeros(ANGLES // 2 + 1)
    spectrum[1 : len(squares) + 1] = squares
    kernel = np.fft.irfft(spectrum, ANGLES) * (ANGLES / 2)
    return float(2.0 * (squares.sum() - kernel.min()) * (1.0 + _ROUNDING))


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """Public integer matrix of one release.

    matrix : (d, 2K) int64, in steps of 2^−bits; its product with the moments is the sum. constants : (d,) added per record.
    bits : bits of the matrix after the binary point. sensitivity : bound on the change by one record, table errors included.
    """

    matrix: Integers
    constants: Vector
    bits: int
    sensitivity: float

    @property
    def step(self) -> float:
        """Return the value of one step of an opened sum."""
        return 2.0 ** -(PRODUCT_BITS + self.bits)

    def values(self, sums: Integers, n_records: int) -> Vector:
        """Return the released values, (d,)."""
        return np.asarray(sums * self.step + n_records * self.constants)


@dataclass(frozen=True, slots=True)
class Measuring:
    """Public facts of the measures of a run on secret shares.

    roles : as in training. n_records : number of held-out records. releases : ((statistic, event), ...) in their order.
    """

    roles: Roles
    n_records: int
    releases: Sequence[tuple[Any, Gaussian]]

    def query(self, number: int) -> SharedTally:
        """Return the query under which a release is charged."""
        return SharedTally(*self.releases[number], Side.HELD_OUT, number)

    def bits(self, number: int) -> int:
        """Return the bits of a release's matrix: at most 16, so that its sums decode. PrivacyError if fewer than 11 fit."""
        _, event = self.releases[number]
        for bits in range(LARGEST_BITS, SMALLEST_BITS - 1, -1):
            scale = 2.0 ** (PRODUCT_BITS + bits)
            if event.sigma * scale <= LARGEST_DEVIATION / 2 and self.largest(number, bits) < self.roles.ring.range:
                return bits
        raise PrivacyError(
            f"trust='secure': {self.n_records} held-out records at this noise leave too few bits for the sums: hold out fewer "
            "records, or raise the budget"
        )

    def largest(self, number: int, bits: int) -> int:
        """Return the largest magnitude of an honest opened sum."""
        contribution = math.ceil(TOP * 2.0 ** (PRODUCT_BITS + bits))
        return largest_sum(self.n_records, contribution, self.deviations(number, bits).total(len(self.roles.parties)))

    def deviations(self, number: int, bits: int) -> Deviations:
        """Return the standard deviations of the noise of each contributor, in steps."""
        roles, (_, event), step = self.roles, self.releases[number], 2.0 ** -(PRODUCT_BITS + bits)
        return noise.deviations(event.sigma, step, len(roles.parties), roles.collude, dealt=roles.dealt)

    def release(self, number: int, place: int) -> Release:
        """Return the matrix of a release. Raises PrivacyError if its event does not cover it, and for a place out of range."""
        if not 0 <= number < len(self.releases) or place not in PLACES:
            raise PrivacyError("the job does not plan this measure on shares")
        statistic, event = self.releases[number]
        found = release(statistic, place, self.bits(number))
        if not found.sensitivity <= event.sensitivity:
            raise PrivacyError("the noise of a measure on shares is too small for its sensitivity")
        return found


def release(statistic: Any, place: int, bits: int) -> Release:
    """Return the matrix of a statistic, with a bound of its sensitivity. The result is cached."""
    kind: Any = type(statistic)
    return _release(kind, tuple(getattr(statistic, own.name) for own in fields(statistic)), place, bits)


@lru_cache(maxsize=16)
def _release(kind: Any, values: tuple[Any, ...], place: int, bits: int) -> Release:
    """Return the matrix of a statistic, with a bound of its sensitivity.

    The bound is the diameter of the curve of the rounded functions over all 2^16 angles; the kernel gives that of moments.
    The tables add at most 2‖(τ Σ_f |A_rf|)_r‖, where τ bounds the error of a term of one record.
    """
    statistic = kind(*values)
    if isinstance(statistic, Moments):
        weights = np.rint(statistic.weights * 2.0**bits)
        matrix = np.zeros((statistic.dimension, 2 * MOMENTS))
        np.fill_diagonal(matrix, np.repeat(weights, 2))
        farthest, constants = _farthest((weights * 2.0**-bits) ** 2), np.zeros(len(matrix))
        return _released(matrix, constants, bits, math.sqrt(farthest))
    v, positive = _margins(place)
    functions = _functions(statistic, v, positive)
    for flat in (0.1, 0.0):
        series, means = zip(*(_series(values, tapered(MOMENTS, flat)) for values in functions), strict=True)
        matrix = np.rint(np.array(series) * 2.0**bits)
        curve = np.array([_on_circle(row) for row in matrix]) * 2.0**-bits
        found = _released(matrix, np.array(means), bits, _diameter(curve))
        if found.sensitivity <= SLACK * statistic.sensitivity:
            break
    return found


def _released(matrix: Vector, constants: Vector, bits: int, farthest: float) -> Release:
    error = _TABLES * float(np.linalg.norm(np.abs(matrix).sum(axis=1))) * 2.0**-bits
    return Release(matrix.astype(np.int64), constants, bits, (farthest + 2.0 * error) * (1.0 + _ROUNDING))


def _functions(statistic: Any, v: Vector, positive: npt.NDArray[np.bool_]) -> list[Vector]:
    """Return the functions on the circle, (2^16,) each, whose sums form the statistic. v, positive : from `_margins`."""
    if isinstance(statistic, Outcomes):
        a, b = (step * GRID for step in statistic.steps)
        cells = 2 * positive + (v > statistic.threshold)
        return [*(a * (cells == cell) for cell in range(4)), b * _losses(statistic, v, positive)]
    if isinstance(statistic, Lost) and statistic.measure in ("loss", "accuracy"):
        wrong = (v > 0.0) != positive
        own = wrong if statistic.measure == "accuracy" else _losses(statistic, v, positive)
        return [statistic.steps * GRID * own]
    raise PrivacyError(f"{type(statistic).__name__} is not measured on shares")


def _losses(statistic: Outcomes | Lost, v: Vector, positive: npt.NDArray[np.bool_]) -> Vector:
    losses = statistic.loss.value(v, np.where(positive, 1.0, -1.0)) / statistic.cap
    return np.clip(losses, 0.0, 1.0)


def _diameter(curve: Vector) -> float:
    """Return a bound of the largest distance between points of a curve, (d, points). Points are rounded to a lattice."""
    points = np.unique(np.rint(curve.T / LATTICE), axis=0) * LATTICE
    squares = (
        ((some[:, None] - points) ** 2).sum(axis=2).max() for some in np.array_split(points, -(-len(points) // 256))
    )
    return float(math.sqrt(max(squares)) + LATTICE * math.sqrt(len(curve)))


def _margins(place: int) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Return the linear predictor at every angle, and True on the arc of the positive class, (2^16,) each."""
    angles = np.arange(ANGLES)
    positive = angles >= ANGLES // 2
    within = angles - np.where(positive, 3 * ANGLES // 4, ANGLES // 4)
    return np.asarray(within * (period_at(place) / ANGLES), dtype=np.float64), positive


def _series(values: Vector, smooth: Vector) -> tuple[Vector, float]:
    """Return the series (2K,) of a function on the circle after smoothing, C_1, S_1, C_2, ..., and its mean."""
    spectrum = np.fft.rfft(values) / ANGLES
    series = np.empty(2 * MOMENTS)
    series[::2] = 2.0 * smooth * spectrum[1 : MOMENTS + 1].real
    series[1::2] = -2.0 * smooth * spectrum[1 : MOMENTS + 1].imag
    return series, float(spectrum[0].real)


def _on_circle(series: Vector) -> Vector:
    """Return the values of a series without constant at every angle, (2^16,)."""
    spectrum = np.zeros(ANGLES // 2 + 1, dtype=complex)
    spectrum[1 : MOMENTS + 1] = (series[::2] - 1j * series[1::2]) / 2.0
    return np.asarray(np.fft.irfft(spectrum, ANGLES) * ANGLES)


def tapered(degree: int, flat: float) -> Vector:
    """Return weights (degree,): 1 up to the share `flat` of the frequencies, then falling to 0 like half a cosine wave."""
    f = np.arange(1, degree + 1) / (degree + 1)
    falling = 0.5 + 0.5 * np.cos(np.pi * np.clip((f - flat) / (1.0 - flat), 0.0, 1.0))
    return np.asarray(np.where(f <= flat, 1.0, falling), dtype=np.float64)
