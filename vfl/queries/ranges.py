"""Query `Ranges`: histograms of columns, for bounds of columns and for knots of curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy import magnitudes
from vfl.queries.query import Asked, Sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.privacy.events import Gaussian
    from vfl.queries.parts import Records, Sums
    from vfl.queries.query import Rows

MOST_CELLS = 1024
"""Largest number of cells of a curve's histogram that a party computes."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges(Sum):
    """Histograms of some columns of each addressed party, released under one event.

    Each share releases (m·cells,), the histograms of its m columns one after another. The cells are powers of two
    (vfl.privacy.magnitudes.histogram), or for curves a public grid between their bounds (vfl.base.features.curve.edges_of).

    columns : {party: positions of the columns}; with `of_curves`, positions among the curves without declared knots.
    cells : number of cells of one histogram.
    event : its sensitivity is that of all columns together.
    part : number of the party's noise stream.
    """

    columns: Mapping[str, tuple[int, ...]]
    cells: int
    event: Gaussian | None
    part: int = 0
    of_curves: bool = False

    def sizes(self) -> tuple[int, ...]:
        """Return the length of each party's released vector."""
        return tuple(len(indices) * self.cells for indices in self.columns.values())

    asked: ClassVar[Asked] = Asked.ALWAYS

    @property
    def fixes_knots(self) -> bool:
        """Return False for histograms of curves, from which their knots follow."""
        return not self.of_curves

    def required(self) -> float:
        """Return Δ = √(2m) of the histograms of all m columns together (vfl.privacy.magnitudes)."""
        if not (1 <= self.cells <= MOST_CELLS and (self.of_curves or self.cells == magnitudes.CELLS)):
            raise PrivacyError(
                f"a histogram has {magnitudes.CELLS} cells, or from 1 to {MOST_CELLS} for a curve, not {self.cells}"
            )
        return magnitudes.sensitivity(sum(map(len, self.columns.values())))

    def exact(self, rows: Rows, records: Records) -> list[Sums]:
        """Return the histograms of the party's columns."""
        own = self.columns[rows.party]
        if self.of_curves:
            return [np.concatenate([rows.curves().histogram(k, self.cells) for k in own])]
        return [np.concatenate([magnitudes.histogram(rows.columns.column(j)) for j in own])]
