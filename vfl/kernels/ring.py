"""Passes over records for runs on secret shares: products and sums of integers modulo 2^64, exact for every input.

Arrays of columns are (s, n), one contiguous row per column. Elements, integers modulo 2^64, are uint64. Each function runs
in one thread, since splitting the records over threads was slower than using one thread per array. The loops are compiled on
first use and cached.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.errors import SpecificationError
from vfl.kernels import ring_loops as loops

if TYPE_CHECKING:
    import numpy.typing as npt

    from vfl.base.types import Integers, Vector

    Elements = npt.NDArray[np.uint64]
    Shorts = npt.NDArray[np.int16]
    Columns = npt.NDArray[np.int16] | npt.NDArray[np.int32]
    Angles = npt.NDArray[np.uint16]

UNIT = 14
"""Bits of the columns from which margins are computed: columns are rounded to multiples of 2^−UNIT of their bounds."""
PERIOD = 48
"""Bits of margins in sums: margins are summed in steps of 2^−PERIOD of a period, then rounded to angles, 2^−16 of a period."""
TOO_LARGE = "the model's coefficients are too large for the angles of a run on shares"


def products(columns: Columns | Elements, elements: Elements) -> Elements:
    """Return Σ_i columns[j, i]·elements[i] modulo 2^64, (s,). columns : int16, int32 or uint64. elements : uint64."""
    _fit(columns, elements)
    sums = np.zeros(len(columns), dtype=np.uint64)
    loops.dot(columns, elements, sums)
    return sums


def cross_products(left: Columns | Elements, right: Elements) -> Elements:
    """Return Σ_i left[j, i]·right[l, i] modulo 2^64, (p, q). left : int32, int16 or uint64."""
    _fit(left, right)
    sums = np.zeros((len(left), len(right)), dtype=np.uint64)
    loops.cross(left, right, sums)
    return sums


def residual_shares(table: Shorts, angles: Angles, elements: Elements, out: Elements | None = None) -> Elements:
    """Return Σ_f table[angles[i], f]·elements[i, f] modulo 2^64, (n,): shares of the Fourier series at every record.

    table : (2^16, 2K) of vfl.secure.sigmoid.responses. elements : (n, 2K) uint64, a party's shares of the Fourier terms.
    """
    _fit_table(table, angles, elements)
    out = np.empty(len(angles), dtype=np.uint64) if out is None else out
    if out.shape != angles.shape or out.dtype != np.uint64:
        raise SpecificationError("out must hold one uint64 element per angle: pass an array of that shape, or none")
    loops.residuals(table, angles, elements, out)
    return out


def moments(table: Shorts, angles: Angles, elements: Elements) -> Elements:
    """Return this party's shares of Σ_i cos f(δ_i − ρ_i) and Σ_i sin f(δ_i − ρ_i) for each f, (2K,), modulo 2^64.

    table : (2^16, 2K) of vfl.secure.sigmoid.fourier_terms. angles : δ, (n,). elements : (n, 2K) uint64, shares of the terms
        of ρ.
    """
    _fit_table(table, angles, elements)
    sums = np.zeros(table.shape[1], dtype=np.uint64)
    loops.moments(table, angles, elements, sums)
    return sums


def last_shares(table: Shorts, angles: Angles, elements: Elements) -> Elements:
    """Replace elements by table[angles[i], f] − elements[i, f] modulo 2^64, in place, and return them.

    elements : (n, 2K) uint64, the sum of all other shares. The result plus this sum equals the entries of the table.
    """
    _fit_table(table, angles, elements)
    loops.dealt(table, angles, elements)
    return elements


def add_products(columns: Shorts, weights: Integers, parts: Integers) -> None:
    """Add Σ_j columns[j, i]·weights[j] to parts, (n,) int64, in place and modulo 2^64. Adding up changes is therefore exact.

    columns : result of `unit_columns`. weights : (p,) int64, in 2^−34 of a period. parts : in 2^−48 of a period.
    """
    if columns.dtype != np.int16 or not columns.flags.c_contiguous or parts.dtype != np.int64:
        raise SpecificationError("columns must be contiguous int16, as unit_columns returns them, and parts int64")
    if columns.shape != (len(weights), len(parts)):
        raise SpecificationError("columns must have one row per weight and one entry per part")
    loops.add_products(columns, np.ascontiguousarray(weights, dtype=np.int64), parts)


def rounded_angles(parts: Integers, shift: int, limit: int) -> Angles:
    """Return (parts + shift), clamped to ±limit and rounded to 2^−16 of a period, modulo 2^16: (n,) uint16.

    parts, shift, limit : in 2^−48 of a period, at most 2^62 in magnitude.
    """
    if not 0 <= limit <= 2**62 or abs(shift) > 2**62:
        raise SpecificationError(TOO_LARGE)
    out = np.empty(len(parts), dtype=np.uint16)
    loops.rounded(parts, shift, limit, out)
    return out


def unit_columns(X: npt.NDArray[np.float64], bounds: Vector) -> Shorts:
    """Return rint(2^14 x/B), (p, n) int16, for columns (p, n) clamped to their bounds; NaN becomes 0."""
    out = np.empty(X.shape, dtype=np.int16)
    loops.small(X, 2.0**UNIT / np.asarray(bounds, dtype=np.float64), out)
    return out


def capped_rows(
    X: npt.NDArray[np.float64],
    centre: Vector,
    scale: Vector,
    limit: int,
    out: Columns,
) -> int:
    """Write Q = rint(t_i·scale ∘ (x_i − centre)) to out, (p, n). t_i ≤ 1 makes Σ_j Q_ij² ≤ limit, exactly in integers.

    Return the number of rows with t_i < 1. A row that is not finite becomes 0 and counts, too.

    X : (p, n). scale : (p,) factors that give Q in its steps. limit : at least 0; its root must fit in the type of `out`.
    """
    if not 0 <= limit <= 2**42 or math.isqrt(limit) > np.iinfo(out.dtype).max or out.shape != X.shape:
        raise SpecificationError(
            f"rows of squared norm {limit} overflow {out.dtype}: lower `limit`, or pass an `out` of a wider integer type"
        )
    return int(loops.capped(X, np.asarray(centre, np.float64), np.asarray(scale, np.float64), limit, out))


def _fit(columns: npt.NDArray[np.generic], elements: Elements) -> None:
    if columns.shape[-1] != elements.shape[-1] or elements.dtype != np.uint64:
        raise SpecificationError("elements must be uint64, with one entry per record of the columns")
    _require_contiguous(columns, elements)


def _fit_table(table: Shorts, angles: Angles, elements: Elements) -> None:
    if len(angles) != len(elements) or table.shape[1] != elements.shape[1] or len(table) != 1 << 16:
        raise SpecificationError("elements must have a row per angle, as wide as the table; the table has 2^16 rows")
    if angles.dtype != np.uint16 or elements.dtype != np.uint64 or table.dtype != np.int16:
        raise SpecificationError("angles must be uint16, elements uint64, and entries of the table int16")
    _require_contiguous(angles, elements, table)


def _require_contiguous(*arrays: npt.NDArray[Any]) -> None:
    if not all(array.flags.c_contiguous for array in arrays):
        raise SpecificationError("kernels on shares need contiguous arrays: pass numpy.ascontiguousarray(...)")
