"""A curve of a number: a line with bends at knots. Knots are declared, or found by the run from counts on a public grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.arguments import flag, number, one_of, option, whole
from vfl.base.columns import UNBOUNDED, Bounds, checked_bounds
from vfl.base.features.base import OfNumbers, Terms, ascending
from vfl.base.features.formula import apply, clipped, polynomial, steps_at
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfl.base.features.formula import Cell, Formula
    from vfl.base.types import Integers, Vector

SHAPES = ("increasing", "decreasing")
PIECES, MOST_PIECES = 4, 32
"""Default and largest number of straight pieces of a curve."""
NUMBER_OF_PIECES = whole(1, MOST_PIECES, f"are a whole number from 1 to {MOST_PIECES}")


@dataclass(frozen=True, slots=True)
class Curve(OfNumbers):
    """Continuous curve of a number, with a straight piece between any two neighbouring knots.

    Coordinate 0 is the number itself, so its coefficient is the slope of a straight line; with `flat`, it is
    stretched so that the first knot lies at the low bound and the last at the high one. Coordinate j is the hat function of
    knot j: 1 at this knot, 0 at the neighbouring knots and beyond. The coefficient of a hat is the distance of the curve from
    the straight line at the hat's knot. Ranges: the bounds for the number, [0, 1] for hats. Cells outside the bounds are
    clamped. For a missing cell, each coordinate is 0, or the number in its range that is nearest to 0.

    pieces : largest number of straight pieces, from 1 to 32; also the number of coordinates. None for 4, or for one more than
        the knots.
    smooth : strength λ of a penalty on bends, (λ/2)Σ_j (b_{j−1} − 2b_j + b_{j+1})², where b are the coefficients of the hats,
        and 0 at both ends. The penalty refers to the scaled features. A straight line has no penalty (a P-spline, Eilers &
        Marx 1996).
    shape : 'increasing' or 'decreasing'. The fitted curve has this shape in spite of noise. The coordinates are then ramps, one
        per piece, that rise from 0 to 1 over the piece. Their coefficients have one sign, and `smooth` penalises differences of
        neighbouring coefficients.
    knots : public points inside the bounds, ascending. If they make fewer than `pieces` pieces, the last coordinates are 0.
        None: the run finds the knots, and the curve is `flat`; a private run first releases a noisy histogram of the column
        (vfl.solvers.releases.knots).
    flat : True makes the curve constant below the first knot and above the last one, which may then lie on the bounds.
    bounds : (low, high) of the column. These bounds are also the job's bounds for this column.
    of, fill, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "curve"
    pieces: int | None = option(NUMBER_OF_PIECES, None)
    smooth: float | None = option(number(lambda λ: 0 <= λ < math.inf, "is a strength of at least 0"), None)
    shape: str | None = option(one_of(SHAPES, f"is {' or '.join(map(repr, SHAPES))}"), None)
    knots: tuple[float, ...] | None = option(partial(ascending, least=0), None)
    flat: bool = option(flag, False)
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        OfNumbers.__post_init__(self)
        if self.bounds is not None:
            object.__setattr__(self, "bounds", checked_bounds(self.bounds))
        low, high = self.bounds or UNBOUNDED
        if self.fill is not None and not low <= self.fill <= high:
            raise SpecificationError(f"fill {self.fill:g} lies outside the bounds [{low:g}, {high:g}]")
        if self.knots is None:
            return
        if len(self.points) - 1 > (self.pieces or MOST_PIECES):
            raise SpecificationError(
                f"{len(self.knots)} knots make more pieces than {self.pieces or MOST_PIECES}: give fewer knots, or raise pieces"
            )
        if self.flat and len(self.knots) == 1:
            raise SpecificationError(
                f"a flat curve with the one knot {self.knots[0]:g} is constant: give two knots or more"
            )
        if self.flat and self.knots and low <= self.knots[0] and self.knots[-1] <= high:
            return
        if self.knots and not low < self.knots[0] <= self.knots[-1] < high:
            raise SpecificationError(
                f"knots {self.knots!r} must lie inside the bounds [{low:g}, {high:g}], which are the ends of the curve"
            )

    @property
    def n_pieces(self) -> int:
        """Return the number of coordinates, except the indicator of missing cells."""
        return self.pieces or (PIECES if self.knots is None else len(self.points) - 1)

    @property
    def points(self) -> tuple[float, ...]:
        """Return the ends of the straight pieces: the bounds and the knots; without the bounds if the curve is `flat`."""
        low, high = self.limits
        return self.knots if self.flat and self.knots else (low, *(self.knots or ()), high)

    def at(self, knots: Sequence[float]) -> Curve:
        """Return this curve with the knots that a run found, and an unchanged number of coordinates."""
        return replace(self, pieces=self.n_pieces, knots=tuple(knots), flat=self.flat or len(knots) > 0)

    def coarser(self, pieces: int) -> Curve:
        """Return a curve with at most this many straight pieces, on some of this curve's knots and without `smooth`."""
        fewer = min(pieces, self.n_pieces)
        knots = None if self.knots is None else thinned(self.knots, fewer - 1, flat=self.flat)
        return replace(self, pieces=fewer, knots=knots, smooth=None)

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column~0', 'column~1', ... for the number and the hats, or for the ramps."""
        return tuple(f"{column}~{j}" for j in range(self.n_pieces))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the bounds, then [0, 1] for each hat. With a shape, return [0, 1] for each ramp."""
        first = (0.0, 1.0) if self.shape else self.limits
        return (first, *((0.0, 1.0),) * (self.n_pieces - 1))

    @property
    def limits(self) -> Bounds:
        """Return the bounds of the column; infinite unless bounds are declared."""
        return UNBOUNDED if self.bounds is None else self.bounds

    @property
    def terms(self) -> Terms | None:
        """Return the bounds of the coefficients, and the matrix of the penalty on bends; None without `smooth` and `shape`."""
        if not self.smooth and self.shape is None:
            return None
        m = self.n_pieces
        low = np.full(m, 0.0 if self.shape == "increasing" else -np.inf)
        high = np.full(m, 0.0 if self.shape == "decreasing" else np.inf)
        penalty = np.zeros((m, m))
        if self.shape:
            bends = np.diff(np.eye(m), axis=0)
            penalty = (self.smooth or 0.0) * bends.T @ bends
        elif m > 1:
            bends = np.diff(np.eye(m + 1)[:, 1:m], n=2, axis=0)
            penalty[1:, 1:] = (self.smooth or 0.0) * bends.T @ bends
        return Terms(low, high, penalty)

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return the formula of the number, then of each hat; with a shape, the formulas of the ramps."""
        points = self.points
        x = clipped(cell, points[0], points[-1])
        if self.shape:
            return [
                steps_at(x, ends, (0.0, apply("divide", apply("subtract", x, ends[0]), ends[1] - ends[0]), 1.0))
                for ends in pairwise(points)
            ] + [0.0] * (self.n_pieces - len(points) + 1)
        low, high = self.limits
        slope = (high - low) / (points[-1] - points[0])
        found: list[Formula] = [polynomial(apply("subtract", x, points[0]), (low, slope)) if self.flat else x]
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
        points = np.array(self.points)
        x = np.clip(values, points[0], points[-1])
        if self.shape:
            for j in range(self.n_pieces):
                yield np.interp(x, points[j : j + 2], (0.0, 1.0)) if j < len(points) - 1 else np.zeros_like(x)
            return
        yield np.interp(x, points[[0, -1]], self.limits) if self.flat else x.copy()
        for j in range(1, self.n_pieces):
            yield np.interp(x, points[j - 1 : j + 2], (0.0, 1.0, 0.0)) if j < len(points) - 1 else np.zeros_like(x)


def thinned(knots: Sequence[float], most: int, *, flat: bool = False) -> tuple[float, ...]:
    """Return at most this many of the knots, chosen evenly by position. flat : True also keeps the first and the last."""
    if flat and knots:
        return (knots[0], *thinned(knots[1:-1], most), knots[-1])
    if len(knots) <= most:
        return tuple(knots)
    return tuple(knots[(k + 1) * (len(knots) + 1) // (most + 1) - 1] for k in range(most))


def edges_of(bounds: Bounds, cells: int) -> Vector:
    """Return the ends of the cells, (cells + 1,), ascending. The ends depend only on the bounds.

    Three quarters of the cells have equal width. The other cells divide one equal cell, next to 0 or to the bound nearest to 0,
    by powers of √2. Amounts are dense there, and a value that many records share, such as 0, gets a narrow cell. Cells may have
    width 0 and be empty.
    """
    low, high = bounds
    extra = cells // 4
    equal = np.linspace(low, high, cells - extra + 1)
    zero = min(max(0.0, low), high)
    steps = (equal[1] - equal[0]) * np.exp2(-0.5 * np.arange(1, extra + 1))
    if low < zero < high:
        half = (extra - 1) // 2
        around = np.concatenate([zero - steps[:half], [zero], zero + steps[: extra - 1 - half]])
    else:
        around = zero + steps if zero == low else zero - steps
    return np.sort(np.concatenate([equal, np.clip(around, low, high)]))


def histogram(values: Vector, edges: Vector) -> Integers:
    """Return the number of values per cell, (cells,) int64. Values outside count in the outermost cells, NaN in no cell.

    Replacing a record lowers at most one count by one, and raises at most one count by one.
    """
    known = values[~np.isnan(values)]
    cells = np.clip(np.searchsorted(edges, known, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(cells, minlength=len(edges) - 1).astype(np.int64)
