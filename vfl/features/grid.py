"""Cells of a public grid over the bounds of a number, in which `private_quantiles` counts records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.columns import Bounds, checked_bounds
from vfl.features.base import OfNumbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.types import Vector

GRID = 160
"""Number of cells in the grid of a `GridCell`."""
_HALF = 80


@dataclass(frozen=True, slots=True)
class GridCell(OfNumbers):
    """Cell of a number in a grid of 160 equal cells between its bounds, for `private_quantiles` only.

    The coordinate encodes the cell as a magnitude, so the histogram of vfl.privacy.magnitudes counts the records per cell.
    The grid has the cells −80, ..., 79 of that histogram; a missing value lies in its last cell, 80. Range: ±0.75·2⁴⁰.
    """

    kind: ClassVar[str] = "grid_cell"
    bounds: Bounds

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", checked_bounds(self.bounds))
        self._check()

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """±0.75·2⁴⁰."""
        return ((-0.75 * 2.0**40, 0.75 * 2.0**40),)

    def edges(self) -> Vector:
        """Return the ends of the cells, (GRID + 1,), ascending."""
        return np.linspace(*self.bounds, GRID + 1)

    def _made(self, values: Vector) -> Iterator[Vector]:
        cells = np.clip(np.searchsorted(self.edges(), values, side="right") - 1, 0, GRID - 1)
        signed = np.where(np.isnan(values), _HALF, cells - _HALF)
        yield np.where(signed == 0, 0.0, np.sign(signed) * 0.75 * np.exp2(np.abs(signed) - 40.0))
