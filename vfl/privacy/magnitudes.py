"""Histograms over powers of two, from which the range of an undeclared column can be bought.

A value x lies in the cell of its sign and of the k with 2^(k−1) ≤ |x| < 2^k, or in the cell of zero. Replacing a record
takes one from a cell and adds one to another, in every column: over m columns jointly Δ = √(2m). This is the usual way to
approximate bounds without seeing the data (as in Google's differential privacy library, "approximate bounds").
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.types import Integers, Vector

LARGEST = 40
"""Magnitudes from 2^−40 to 2^40 are told apart: smaller ones count as zero, larger ones as the largest."""
CELLS = 4 * LARGEST + 1
_ZERO = 2 * LARGEST


def sensitivity(columns: int) -> float:
    """Return Δ = √(2m) of the histograms of m columns, rounded up."""
    return math.nextafter(math.sqrt(2.0 * columns), math.inf)


def histogram(values: Vector) -> Integers:
    """Return how many values lie in each cell, (CELLS,) int64, from the most negative to the largest; NaN is zero."""
    x = np.where(np.isnan(values), 0.0, values).astype(np.float64)
    _, exponent = np.frexp(x)
    exponent = np.where(np.isinf(x), LARGEST, exponent)
    step = np.where(x == 0.0, 0, np.clip(exponent + LARGEST, 0, 2 * LARGEST)).astype(np.int64)
    cells = _ZERO + np.sign(x).astype(np.int64) * step
    return np.bincount(cells, minlength=CELLS).astype(np.int64)


def edges(cell: int) -> tuple[float, float]:
    """Return the smallest interval that holds a cell."""
    step = abs(cell - _ZERO)
    if step == 0:
        return 0.0, 0.0
    high = math.ldexp(1.0, step - LARGEST)
    low = 0.0 if step == 1 else high / 2
    return (low, high) if cell > _ZERO else (-high, -low)


def threshold(sigma: float, cells: int, failure: float) -> float:
    """Return a count that noise alone exceeds in none of so many cells, but with probability `failure`."""
    from scipy.special import ndtri

    return float(-ndtri(failure / cells)) * sigma


def bounds_of(noisy: Vector, least: float) -> tuple[float, float] | None:
    """Return the interval from the first cell to the last whose noisy count is above `least`; None where none or a point is.

    noisy : (CELLS,).
    """
    found = np.nonzero(noisy > least)[0]
    if not found.size:
        return None
    low, high = edges(int(found[0]))[0], edges(int(found[-1]))[1]
    return (low, high) if low < high else None
