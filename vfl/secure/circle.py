"""Circle of angles that carry score and label of a held-out record: two arcs, one per class, for scores within ±V.

V = 2^(place/4). The place is public, and messages state it in place of V.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.secure.sigmoid import ANGLES

if TYPE_CHECKING:
    import numpy.typing as npt

TERMS = 128
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


def margin(place: int) -> float:
    """Return V."""
    return float(2.0 ** (place / PER_DOUBLING))


def period(place: int) -> float:
    """Return the length of the circle: two arcs."""
    return 2.0 * ARC * margin(place)


def shifts(labels: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint16]:
    """Return the angle of v = 0 on the arc of each record's class, (n,)."""
    return np.where(labels, 3 * ANGLES // 4, ANGLES // 4).astype(np.uint16)
