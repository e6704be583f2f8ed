"""Query `Moments`: sums of the first and second moments of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy.geometry import GRID_BITS
from vfl.queries.query import Asked, Sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.base.types import Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.parts import Names, Records, Sums
    from vfl.queries.query import Rows

UNIT_GRID = 2.0**-GRID_BITS
PAIR = 1.2862
"""max ((x−x')/2)² + (x²−x'²)² over x, x' in [−1, 1], rounded up. With d = x−x' and s = x+x' the sum is d²(¼ + s²) under
|s| + |d| ≤ 2, largest at d = (6−√2)/4, where it is 1.28618."""


@dataclass(frozen=True, slots=True, eq=False)
class Moments(Sum):
    """Sums of first and second moments over the first `widths[party]` columns of each party, released under one event.

    Each share releases (2m,): Σ_i x_ij/(2B_j), then Σ_i x_ij²/B_j². Without `means`, or for a party in `uncentred`, a share
    releases only the second sum, (m,).

    reach : {party: (m,) bounds B_j ≥ |x_ij|}; None for the exact sums of x_ij and x_ij² without B (event must then be None).
    event : its sensitivity is that of all columns together (`moments_sensitivity`).
    part : number of the party's noise stream. uncentred : parties without first moments.
    """

    widths: Mapping[str, int]
    reach: Mapping[str, Vector] | None
    means: bool
    event: Gaussian | None
    part: int = 0
    uncentred: Names = frozenset()

    def asks_means(self, party: str) -> bool:
        """Return True if the query also asks for the party's first moments."""
        return self.means and party not in self.uncentred

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each party's released vector."""
        return tuple(width * (1 + self.asks_means(name)) for name, width in self.widths.items())

    asked: ClassVar[Asked] = Asked.ALWAYS

    def addresses(self, party: str, n_coordinates: int, n_columns: int) -> bool:
        """Return True if the party has as many columns."""
        return 0 <= self.widths[party] <= n_columns

    @property
    def grid(self) -> float:
        """Return the step of moments in units of the bounds; 1 for exact sums."""
        return 1.0 if self.reach is None else UNIT_GRID

    def required(self) -> float:
        """Return Δ of the moments of all parties together."""
        if self.reach is None:
            return math.inf
        if {party: len(reach) for party, reach in self.reach.items()} != dict(self.widths):
            raise PrivacyError("a query of moments needs a bound for each of its columns")
        if not all((reach > 0).all() for reach in self.reach.values()):
            raise PrivacyError("a query of moments needs a positive bound for each of its columns")
        with_means = sum(width for party, width in self.widths.items() if self.asks_means(party))
        return joint_moments(with_means, sum(self.widths.values()) - with_means)

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return Σ x_ij/(2B_j) and Σ x_ij²/B_j² on the grid; without bounds B, the exact Σ x_ij and Σ x_ij²."""
        X, kernels = rows.columns.block(0, self.widths[rows.party]), rows.columns.kernels
        means = self.asks_means(rows.party)
        if self.reach is None:
            first, second = kernels.plain_moments(X)
            return [np.concatenate([first, second]) if means else second]
        reach = self.reach[rows.party]
        parts = [kernels.first_moments(X, reach, UNIT_GRID, threads=rows.threads)] if means else []
        parts.append(kernels.second_moments(X, reach**2, UNIT_GRID, threads=rows.threads))
        return [np.concatenate(parts)]


def moments_sensitivity(columns: int, *, means: bool) -> float:
    """Return Δ, under replace-one, of the sums (Σ x_ij/(2B_j), Σ x_ij²/B_j²) over all columns jointly, for |x_ij| ≤ B_j.

    With means, the two sums of a column move by at most √1.2862 (PAIR). Without means, x²/B² lies in [0, 1], so its sum moves
    by at most 1. Entries are rounded to a grid of 2⁻²⁰ that contains the ends of the entries' ranges. With means, rounding
    changes each of a column's two entries by at most half a step, both before and after the replacement.
    """
    if not means:
        return math.nextafter(math.sqrt(columns), math.inf)  # √3 as a double is less than √3
    return math.sqrt(columns) * (math.sqrt(PAIR) + math.sqrt(2.0) * 2.0**-GRID_BITS)


def joint_moments(with_means: int, alone: int) -> float:
    """Return Δ of the column moments of several parties together. alone : number of columns without first moments."""
    Δs = [moments_sensitivity(count, means=means) for count, means in ((with_means, True), (alone, False)) if count]
    return Δs[0] if len(Δs) == 1 else math.nextafter(math.hypot(*Δs), math.inf)
