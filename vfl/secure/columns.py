"""One party's columns as integers: rows with capped norms for sums, and columns divided by their bounds for margins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import SpecificationError
from vfl.kernels import ring as kernels

if TYPE_CHECKING:
    import numpy.typing as npt

    from vfl.base.types import Vector
    from vfl.kernels.ring import Angles, Shorts
    from vfl.secure.ring import Bits

WEIGHT_BITS = 34
"""Bits of a coefficient B_j·w_j/L after the binary point; L is the period of the series. With a column's 14 bits: 48."""
LARGEST_SUM = 2.0**13
"""Largest part of a margin, in periods. A part, and a change of a part, then has 61 bits and fits in an int64."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnColumns:
    """One party's columns as integers, for one choice of cap, centres and scales (a set-up). The columns are never sent.

    Guarantee. For any X and any record i, Σ_j rows[j, i]² ≤ 4^FX, exactly; j runs over all columns of the party.

    rows : (p, n) int16, rint(2^FX t_i·scale ∘ (x_i − centre)/c_q); one factor t_i ≤ 1 per record.
    units : (p, n) int16, rint(2^14 x/B).
    centre, bounds : (p,), c_j and B_j ≥ |x_ij|.
    cut : number of records with t_i < 1; private, for tests only.
    """

    rows: Shorts
    units: Shorts
    centre: Vector
    bounds: Vector
    cut: int

    def reach(self, w: Vector) -> float:
        """Return reach_q = Σ_j (B_j + |c_j|)·|w_j|, the largest magnitude of the party's part of a margin."""
        return reach(w, self.centre, self.bounds)


class OwnAngles:
    """One party's part of the margins as angles: integers, 2^16 to one period of the sigmoid's series. Updated for each model.

    Sums of integers are exact, so the part depends only on the current model: a repeated model gives identical angles.
    """

    def __init__(self, columns: OwnColumns) -> None:
        self._columns = columns
        self._weights = np.zeros(len(columns.bounds), dtype=np.int64)
        self._parts = np.zeros(columns.units.shape[1], dtype=np.int64)

    def at(self, w: Vector, period: float, clamp: float | None) -> Angles:
        """Return the party's part of the margins, Σ_j (x_ij − c_j)·w_j within ±clamp, in units of period/2^16: (n,) uint16."""
        columns, w = self._columns, np.asarray(w, dtype=np.float64)
        if w.shape != columns.bounds.shape or not np.isfinite(w).all():
            raise SpecificationError("training on shares needs one finite coefficient per column")
        scaled, shift = columns.bounds * w / period, math.fsum(columns.centre * w / period)
        if not np.abs(scaled).sum() + abs(shift) < LARGEST_SUM:
            raise SpecificationError(kernels.TOO_LARGE)
        weights = np.rint(2.0**WEIGHT_BITS * scaled).astype(np.int64)
        kernels.add_products(columns.units, weights - self._weights, self._parts)
        self._weights = weights
        limit = 2**62 if clamp is None else math.floor(2.0**kernels.PERIOD * clamp / period)
        return kernels.rounded_angles(self._parts, round(-(2.0**kernels.PERIOD) * shift), limit)


def reach(w: Vector, centre: Vector, bounds: Vector) -> float:
    """Return Σ_j (B_j + |c_j|)·|w_j|. The result is public, since all arguments are public."""
    return float(((np.asarray(bounds) + np.abs(centre)) * np.abs(w)).sum())


def own_columns(
    X: npt.NDArray[np.float64], centre: Vector, scale: Vector, bounds: Vector, cap: float, bits: Bits
) -> OwnColumns:
    """Return the integers of a party's columns.

    X : (n, p), clamped to ±bounds. centre, scale : (p,), c and scale in scale ∘ (x − c). cap : c_q of vfl.secure.ring.caps.
    """
    columns = np.asarray(X.T)
    scale = np.asarray(scale, np.float64) * (2.0**bits.columns / cap)
    rows = np.empty(columns.shape, dtype=np.int16)
    cut = kernels.capped_rows(columns, centre, scale, bits.limit, rows)
    return OwnColumns(rows, kernels.unit_columns(columns, bounds), np.asarray(centre), np.asarray(bounds), cut)
