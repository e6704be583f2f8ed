"""The geometry of a clipped sum: how a record's gradient is centred, scaled, clipped and rounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vfl.types import Vector


class Geometry(NamedTuple):
    """Geometry in which a record contributes c = scale ∘ r (x − centre) to a sum over s columns.

    A clipped sum adds rint(clip(c, cap)/grid) for each record. A plain sum adds c and ignores cap and grid.

    centre : (s,) public values that are subtracted from the columns; zeros for sparse columns.
    scale : (s,) 1/√M_j in the default geometry.
    cap : κ, the largest norm of a contribution, in [1e-100, 1e100] and in scaled units.
    grid : g, a power of two with g ≤ κ ≤ 2⁵⁰g and n·κ/g < 2⁶² for n records.
    """

    centre: Vector
    scale: Vector
    cap: float = math.inf
    grid: float = 1.0
