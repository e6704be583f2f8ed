"""Clipping geometry of a block. One object gives cap, grid, sensitivity and event, so that these four always agree."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vfl.base.types import Adjacency
from vfl.errors import WITHOUT_PRIVACY, PrivacyError
from vfl.privacy.events import Gaussian

GRID_BITS = 20


@dataclass(frozen=True, slots=True)
class Clip:
    """Sum of clipped and rounded contributions of records. Replacing one record moves the sum by at most `sensitivity`.

    Each record contributes q_i = rint(c_i/g) with ‖c_i‖ ≤ κ_S in floating point, so
    g‖q_i‖ ≤ κ_S(1 + 2⁻⁵⁰·s) + g√s/2 =: a (vfl.kernels.dense proves the bound on floating-point errors). Replacing one record
    moves the sum by at most 2a. The sum is exact in 64-bit integers while n·κ_S/g < 2⁵³ (docs/mathematics.md, "The block
    release").

    cap : κ_S > 0, Euclidean cap on one record's contribution. inf does not clip, and then no charge can cover the sum.
    dimension : s ≥ 1, number of coordinates of the block.
    """

    cap: float
    dimension: int

    def __post_init__(self) -> None:
        if not self.cap > 0:
            raise PrivacyError(f"clip must be positive, not {self.cap!r}")
        if self.dimension < 1:
            raise PrivacyError(f"clip: the dimension must be at least 1, not {self.dimension!r}")

    @property
    def finite(self) -> bool:
        """True if contributions are clipped."""
        return math.isfinite(self.cap)

    @property
    def grid(self) -> float:
        """The grid step g, the largest power of two not above κ_S/2²⁰."""
        return math.ldexp(1.0, math.frexp(self.cap)[1] - 1 - GRID_BITS)

    @property
    def unit(self) -> float:
        """The value of one step of a sum: the grid step; 1 without a clip."""
        return self.grid if self.finite else 1.0

    @property
    def sensitivity(self) -> float:
        """The sensitivity Δ = 2a under replace-one, in the units of the cap."""
        slack = 1.0 + self.dimension * 2.0**-50
        return 2.0 * (self.cap * slack + self.grid * math.sqrt(self.dimension) / 2.0)

    def sensitivity_of(self, query: object, size: int) -> float:
        """Return Δ of a query's sum over `size` coordinates, computed again from cap and size alone; inf without a clip.

        Subclasses whose Δ depends on more than the cap override this method, and raise PrivacyError for other queries.

        query : query that releases the sum, in one block or several.
        """
        return Clip(self.cap, size).sensitivity if self.finite else math.inf

    def event(self, noise_multiplier: float) -> Gaussian:
        """Return the event of releasing the sum with noise of standard deviation zΔ on every coordinate."""
        if not self.finite:
            raise PrivacyError(f"a sum without a finite clip has no sensitivity: give a clip, or {WITHOUT_PRIVACY}")
        Δ = self.sensitivity
        return Gaussian(Adjacency.REPLACE_ONE, Δ, noise_multiplier * Δ, self.dimension)
