"""Geometry of clipped sums, that is, how a record's gradient is centred, scaled, clipped and rounded. Also record limits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.types import Vector

WEIGHTS, SQUARED, LOGISTIC, MULTINOMIAL = 0, 1, 2, 3
CODES = {"squared": SQUARED, "logistic": LOGISTIC, "multinomial": MULTINOMIAL}
"""Name of a loss → code of the loss. MULTINOMIAL is only for vfl.kernels.classes. A further code, WEIGHTS, says that the array
of margins already contains the weights r."""
TINY, HUGE = 1e-280, 1e280
PIECE = 1 << 16
"""Number of records per step of an elementwise computation. Small steps keep temporary vectors small."""


class Geometry(NamedTuple):
    """Geometry of a sum over s columns, to which a record contributes c = scale ∘ r (x − centre).

    A clipped sum adds rint(clip(c, cap)/grid) per record. A plain sum adds c, and ignores cap and grid.

    centre : (s,) public values that are subtracted from the columns; zeros for sparse columns.
    scale : (s,) factors of the columns; in the default geometry 1/√M_j.
    cap : κ, the largest norm of a contribution, in scaled units and in [1e-100, 1e100].
    grid : g, a power of two with g ≤ κ ≤ 2⁵⁰g and n·κ/g < 2⁶² for n records.
    """

    centre: Vector
    scale: Vector
    cap: float = math.inf
    grid: float = 1.0


def pieces(n_records: int) -> Iterator[slice]:
    """Yield consecutive slices of at most PIECE records, which together cover all n records."""
    return (slice(start, min(start + PIECE, n_records)) for start in range(0, n_records, PIECE))


def record_limits(norms: Vector, cap: float) -> Vector:
    """Return C/‖z_i‖, (n,), the largest residuals under a record cap; 0 if the norm is NaN or overflows.

    If |r_i| ≤ C/‖z_i‖, the products r_i z_i have norm at most C(1 + p·2⁻⁵⁰) over all p coordinates. Proof: ‖z_i‖² is a sum of p
    non-negative terms with a relative error of at most 3u each (u = 2⁻⁵³), so the sum has an error of at most (p + 3)u. The
    root, the division and the two products of a contribution add 4u, so the error is at most 8pu. A floor on the norm covers
    squares that underflow.

    norms : (n,) ‖z_i‖², from `record_norms`, summed over all parties.
    """
    limits = np.empty(len(norms))
    with np.errstate(invalid="ignore"):
        for rows in pieces(len(norms)):
            limits[rows] = np.where(norms[rows] <= HUGE, cap / np.sqrt(np.maximum(norms[rows], TINY)), 0.0)
    return limits


def capped(r: Vector, limits: Vector, kernel: str = "") -> Vector:
    """Return residuals capped at ±limits, (n,); NaN becomes 0. For K classes, (K·n,), norms are capped at the limits.

    kernel : name of the loss. 'logistic': r·min(1, limit/max(|r|, 1 − |r|)). Its mean at the true probabilities is 0 for every
        limit, so an unbalanced label does not shift the intercept. It is nondecreasing in the margin, so it is the derivative
        of a convex function. 'multinomial': f(p − e_y) with f = min(1, limit/max_k ‖p − e_k‖). This f is equal for all labels,
        so the mean at the true probabilities is 0, too. Other losses: min(max(r, −limit), limit), or with K classes
        r·min(1, limit/‖r‖).
    """
    if r.size != limits.size:
        return _capped_norms(r, limits, kernel)
    with np.errstate(invalid="ignore"):
        if kernel == "logistic":
            q = abs(r)
            r = r * np.minimum(limits / np.maximum(q, 1.0 - q), 1.0)
        return np.where(np.isnan(r), 0.0, np.clip(r, -limits, limits))


def _capped_norms(r: Vector, limits: Vector, kernel: str) -> Vector:
    """Return f_i r_i with ‖f_i r_i‖ ≤ limits_i, (K·n,). A record with a value that is not finite contributes 0.

    r : (K·n,), one class after another. For 'multinomial' r_i = p_i − e_y, whose smallest entry is that of class y. The k
        with the smallest p_k maximises ‖p − e_k‖. The divisor is raised by the factor 1 + 2⁻⁴⁰, which covers its rounding.
    """
    R = r.reshape(-1, limits.size)
    with np.errstate(all="ignore"):
        squares = np.einsum("ki,ki->i", R, R)
        if kernel == "multinomial" and len(R) > 1:
            least, second = np.partition(R, 1, axis=0)[:2]
            low = np.minimum(second, least + 1.0)
            farthest = squares + 2.0 * least + 2.0 - 2.0 * low  # ‖p‖² + 1 − 2 min p, ‖p‖² = ‖r‖² + 2 r_y + 1
            squares = np.maximum(squares, farthest)
        f = np.minimum(limits / (np.sqrt(squares) * (1.0 + 2.0**-40)), 1.0)
        f = np.where(squares >= TINY, f, 0.0)  # smaller sums of squares may have underflowed
        sound = np.isfinite(R).all(axis=0) & np.isfinite(f)
        return np.ravel(np.where(sound, R * f, 0.0))
