"""Public grid between the bounds of a number. A private run counts records per cell of the grid to place knots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.columns import Bounds
    from vfl.types import Integers, Vector


def edges_of(bounds: Bounds, cells: int) -> Vector:
    """Return the ends of the cells, (cells + 1,), ascending. They depend only on the bounds.

    Three quarters of the cells have equal width. The other cells divide one equal cell, next to 0 or to the bound nearest to 0,
    by powers of √2. Amounts are dense there, and a value that many records share, such as 0, gets a narrow cell. Cells may have
    width 0 and be empty.
    """
    low, high = bounds
    extra = cells // 4
    equal = np.linspace(low, high, cells - extra + 1)
    zero = min(max(0.0, low), high)
    steps = (equal[1] - equal[0]) * np.exp2(-0.5 * np.arange(1, extra + 1))
    if low < zero < high:
        half = (extra - 1) // 2
        around = np.concatenate([zero - steps[:half], [zero], zero + steps[: extra - 1 - half]])
    else:
        around = zero + steps if zero == low else zero - steps
    return np.sort(np.concatenate([equal, np.clip(around, low, high)]))


def histogram(values: Vector, edges: Vector) -> Integers:
    """Return the number of values per cell, (cells,) int64. Values outside count in the outermost cells, NaN in no cell.

    Replacing a record lowers at most one count by one, and raises at most one count by one.
    """
    known = values[~np.isnan(values)]
    cells = np.clip(np.searchsorted(edges, known, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(cells, minlength=len(edges) - 1).astype(np.int64)
