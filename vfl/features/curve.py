"""A curve of a number: a line with bends at knots, which are declared or found by the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.columns import UNBOUNDED, Bounds, checked_bounds
from vfl.errors import SpecificationError
from vfl.features.base import OfNumbers, ascending
from vfl.features.formula import apply, clipped, steps_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfl.features.formula import Cell, Formula
    from vfl.types import Vector

PIECES, MOST_PIECES = 4, 32
"""Default and largest number of pieces of a curve."""


@dataclass(frozen=True, slots=True)
class Curve(OfNumbers):
    """Continuous curve of a number, with a straight piece between any two neighbouring knots.

    Coordinate 0 is the number itself, so its coefficient is the slope of a straight line. Coordinate j is the hat function of
    knot j, which is 1 there and 0 at its neighbours and beyond; its coefficient is the distance of the curve from the line at
    this knot. Range: the bounds, and [0, 1] for hats. Cells outside the bounds are clamped. A missing cell has 0 in every
    coordinate, or the number within the bounds that is nearest to 0.

    pieces : largest number of pieces, from 1 to 32, and the number of coordinates; None is 4, or one more than the knots.
    smooth, shape : penalty of bends, and 'increasing' or 'decreasing'.
    knots : public points inside the bounds, ascending; fewer than `pieces` leave coordinates that are always 0. None: a private
        run releases a noisy histogram of the column and places the knots by it (vfl.solvers.releases.knots).
    bounds : (low, high) of the column; also the job's bounds for this column.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "curve"
    pieces: int | None = None
    smooth: float | None = None
    shape: str | None = None
    knots: tuple[float, ...] | None = None
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.smooth is not None or self.shape is not None:
            raise SpecificationError("curves have no smooth= and shape= yet: leave them out")
        whole = isinstance(self.pieces, int) and not isinstance(self.pieces, bool)
        if self.pieces is not None and not (whole and 1 <= self.pieces <= MOST_PIECES):
            raise SpecificationError(f"pieces are a whole number from 1 to {MOST_PIECES}, not {self.pieces!r}")
        if self.bounds is not None:
            object.__setattr__(self, "bounds", checked_bounds(self.bounds))
        low, high = self.bounds or UNBOUNDED
        if self.fill is not None and not low <= self.fill <= high:
            raise SpecificationError(f"fill {self.fill:g} lies outside the bounds [{low:g}, {high:g}]")
        if self.knots is None:
            return
        object.__setattr__(self, "knots", ascending("knots", self.knots, 0))
        if len(self.knots) >= (self.pieces or MOST_PIECES + 1):
            raise SpecificationError(
                f"{len(self.knots)} knots make more pieces than {self.pieces or MOST_PIECES}: give fewer knots, or raise pieces"
            )
        if self.knots and not low < self.knots[0] <= self.knots[-1] < high:
            raise SpecificationError(
                f"knots {self.knots!r} must lie inside the bounds [{low:g}, {high:g}], which are the ends of the curve"
            )

    @property
    def n_pieces(self) -> int:
        """Number of coordinates without the indicator of missing cells."""
        return self.pieces or (PIECES if self.knots is None else len(self.knots) + 1)

    def at(self, knots: Sequence[float]) -> Curve:
        """Return the same curve with declared knots and the same number of coordinates."""
        return replace(self, pieces=self.n_pieces, knots=tuple(knots))

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column~0' for the line, then 'column~1', 'column~2', ... for the hats."""
        return tuple(f"{column}~{j}" for j in range(self.n_pieces))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """The bounds, then [0, 1] for each hat."""
        return (UNBOUNDED if self.bounds is None else self.bounds, *((0.0, 1.0),) * (self.n_pieces - 1))

    @property
    def limits(self) -> Bounds:
        """Bounds of the column; infinite while they are not declared."""
        return self.ranges[0]

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return the number, then the pieces of each hat."""
        low, high = self.limits
        x, points = clipped(cell, low, high), (low, *(self.knots or ()), high)
        found: list[Formula] = [x]
        for j in range(1, self.n_pieces):
            if j >= len(points) - 1:
                found.append(0.0)
                continue
            before, at, after = points[j - 1 : j + 2]
            up = apply("divide", apply("subtract", x, before), at - before)
            down = apply("divide", apply("subtract", after, x), after - at)
            found.append(steps_at(x, (before, at, after), (0.0, up, down, 0.0)))
        return found

    def _made(self, values: Vector) -> Iterator[Vector]:
        low, high = self.limits
        x = np.clip(values, low, high)
        points = np.array([low, *(self.knots or ()), high])
        yield x.copy()
        for j in range(1, self.n_pieces):
            yield np.interp(x, points[j - 1 : j + 2], (0.0, 1.0, 0.0)) if j < len(points) - 1 else np.zeros_like(x)
