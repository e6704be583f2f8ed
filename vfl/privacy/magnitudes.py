"""Histograms over powers of two. The histograms give a private range for a column without declared bounds.

Each cell counts the values of one sign with 2^(k−1) ≤ |x| < 2^k; zero has a cell of its own. In every column, replacing a
record lowers one cell by one and raises another by one. Jointly over m columns, Δ = √(2m). Google's differential privacy
library calls the method "approximate bounds".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.base.types import Integers, Vector

LARGEST = 40
"""Exponent of the largest magnitude. A value below 2^−40 counts as zero; a value above 2^40 counts as the largest magnitude."""
CELLS = 4 * LARGEST + 1
_ZERO = 2 * LARGEST


def sensitivity(columns: int) -> float:
    """Return Δ = √(2m) of the joint histograms of m columns, rounded up."""
    return math.nextafter(math.sqrt(2.0 * columns), math.inf)


def histogram(values: Vector) -> Integers:
    """Return the number of values per cell, (CELLS,) int64, the most negative cell first. NaN counts as zero."""
    x = np.where(np.isnan(values), 0.0, values).astype(np.float64)
    _, exponent = np.frexp(x)
    exponent = np.where(np.isinf(x), LARGEST, exponent)
    step = np.where(x == 0.0, 0, np.clip(exponent + LARGEST, 0, 2 * LARGEST)).astype(np.int64)
    cells = _ZERO + np.sign(x).astype(np.int64) * step
    return np.bincount(cells, minlength=CELLS).astype(np.int64)


def edges(cell: int) -> tuple[float, float]:
    """Return the smallest interval that contains a cell."""
    step = abs(cell - _ZERO)
    if step == 0:
        return 0.0, 0.0
    high = math.ldexp(1.0, step - LARGEST)
    low = 0.0 if step == 1 else high / 2
    return (low, high) if cell > _ZERO else (-high, -low)


def threshold(sigma: float, cells: int, failure: float) -> float:
    """Return a count that noise alone exceeds, in at least one of `cells` cells, with probability at most `failure`."""
    from scipy.special import ndtri

    return float(-ndtri(failure / cells)) * sigma


def bounds_of(noisy: Vector, least: float) -> tuple[float, float] | None:
    """Return the interval from the first to the last cell with a noisy count above `least`; None if it is empty or a point.

    noisy : (CELLS,).
    """
    found = np.nonzero(noisy > least)[0]
    if not found.size:
        return None
    low, high = edges(int(found[0]))[0], edges(int(found[-1]))[1]
    return (low, high) if low < high else None
