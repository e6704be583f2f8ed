"""Features of a number: its logarithm, a power, its distance from a public center, bins, splines and cycles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.arguments import check_options, option, require_positive, whole
from vfl.base.columns import Bounds, checked_bounds
from vfl.base.features.base import OfBounded, OfNumbers, Steps, ascending, finite
from vfl.base.features.formula import Case, Condition, apply, clipped, polynomial, steps_at
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.features.formula import Cell, Formula
    from vfl.base.types import Vector


@dataclass(frozen=True, slots=True)
class Log(OfBounded):
    """Logarithm of a number, log(x + offset). Range: [log(low + offset), log(high + offset)].

    bounds : (low, high) of the column, with low + offset > 0; also the job's bounds for it. Cells outside are clamped.
    of, fill, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "log"
    offset: float = option(finite, 0.0)
    bounds: Bounds | None = None

    def _ends(self, low: float, high: float) -> Bounds:
        if low + self.offset <= 0:
            raise SpecificationError(
                f"log needs bounds above {0.0 - self.offset:g}, not from {low:g}: raise the lower bound, or the offset"
            )
        return float(np.log(low + self.offset)), float(np.log(high + self.offset))

    @property
    def steps(self) -> Steps:
        """Return two operations: add the offset, then take the logarithm."""
        return (("add", self.offset), ("log",))


@dataclass(frozen=True, slots=True)
class Power(OfBounded):
    """Power of a number, x^exponent. Range: the powers of the bounds; from 0 for an even power if they include 0.

    exponent : finite and not 0. A fraction needs bounds ≥ 0; a negative exponent needs bounds that exclude 0.
    bounds : (low, high) of the column; also the job's bounds for this column. Cells outside are clamped.
    of, fill, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "power"
    exponent: float = option(finite)
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        if self.exponent == 0:
            raise SpecificationError("exponent 0 makes a constant: leave the column out")
        OfBounded.__post_init__(self)

    def _ends(self, low: float, high: float) -> Bounds:
        if low < 0 and not self.exponent.is_integer():
            raise SpecificationError(f"exponent {self.exponent:g} needs bounds of at least 0, not from {low:g}")
        if self.exponent < 0 and low <= 0 <= high:
            raise SpecificationError(f"exponent {self.exponent:g} needs bounds that exclude 0, not [{low:g}, {high:g}]")
        with np.errstate(over="ignore"):
            ends = sorted(float(x) for x in np.power(np.array([low, high]), self.exponent))
        turns = low < 0 < high and self.exponent % 2 == 0
        return (0.0 if turns else ends[0]), ends[1]

    @property
    def steps(self) -> Steps:
        """Return one operation, the power."""
        return (("power", self.exponent),)


@dataclass(frozen=True, slots=True)
class Scaled(OfBounded):
    """Distance of a number from a public center in units of a public spread, (x − center)/spread.

    Range: the bounds, converted in the same way. Without bounds it is [−reach, reach], and cells beyond it are clamped.

    center, spread : a typical value and a typical deviation, publicly known; spread > 0. reach : largest distance from the
        center, in units of the spread.
    bounds : (low, high) of the column, which replace the reach; also the job's bounds for this column.
    of, fill, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "scaled"
    center: float = option(finite)
    spread: float = option(finite)
    reach: float = option(finite, 3.0)
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.spread <= 0 or self.reach <= 0:
            raise SpecificationError(f"spread and reach must be positive, not {self.spread:g} and {self.reach:g}")
        checked_bounds((self.center - self.reach * self.spread, self.center + self.reach * self.spread))
        OfBounded.__post_init__(self)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the range of the single coordinate."""
        return ((-self.reach, self.reach),) if self.bounds is None else (self._ends(*self.bounds),)

    def _ends(self, low: float, high: float) -> Bounds:
        return (low - self.center) / self.spread, (high - self.center) / self.spread

    @property
    def steps(self) -> Steps:
        """Return two operations: subtract the center, then divide by the spread."""
        return (("subtract", self.center), ("divide", self.spread))


LARGEST = 1.79e308


@dataclass(frozen=True, slots=True)
class Binned(OfNumbers):
    """Intervals of a number, with one coordinate per interval: 1 if the number is in the interval, else 0. Range: [0, 1].

    The intervals between edges e are (−∞, e₁), [e₁, e₂), ..., [e_k, ∞). A missing cell is in no interval.

    edges : public cut points, ascending, at least one.
    of, fill, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "binned"
    edges: tuple[float, ...] = option(partial(ascending, least=1))

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column=[low, high)' for each interval."""
        ends = ["-inf", *(f"{edge:.12g}" for edge in self.edges), "inf"]
        return tuple(f"{column}={'(' if low == '-inf' else '['}{low}, {high})" for low, high in pairwise(ends))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return [0, 1] for each interval."""
        return ((0.0, 1.0),) * (len(self.edges) + 1)

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return formulas that are 1 within an interval and 0 elsewhere, one per interval."""
        inner = [steps_at(cell, ends, (0.0, 1.0, 0.0)) for ends in pairwise(self.edges)]
        return [steps_at(cell, self.edges[:1], (1.0, 0.0)), *inner, steps_at(cell, self.edges[-1:], (0.0, 1.0))]

    def _made(self, values: Vector) -> Iterator[Vector]:
        codes = np.searchsorted(self.edges, values, side="right")
        codes[np.isnan(values)] = -1
        return ((codes == code).astype(np.float64) for code in range(len(self.edges) + 1))


@dataclass(frozen=True, slots=True)
class Spline(OfNumbers):
    """B-spline basis of a number, for smooth curves. Range: [0, 1], since the basis functions are ≥ 0 and add up to 1.

    Cells outside the knots are clamped to the first or last knot. Further knots are added beyond these two, spaced like the
    outermost two knots, as in scikit-learn's SplineTransformer(extrapolation="constant"). At a missing cell, every function is
    0.

    knots : public points, ascending, at least two. degree : degree of the polynomials between knots, from 0 to 5.
    of, fill, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "spline"
    knots: tuple[float, ...] = option(partial(ascending, least=2))
    degree: int = option(whole(0, 5, "of a spline is a whole number from 0 to 5"), 3)

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column~0', 'column~1', ... for the basis functions."""
        return tuple(f"{column}~{j}" for j in range(len(self.knots) + self.degree - 1))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return [0, 1] for each basis function."""
        return ((0.0, 1.0),) * (len(self.knots) + self.degree - 1)

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return formulas of the basis functions: one polynomial per interval, in the distance from the interval's start."""
        d, x = self.degree, clipped(cell, self.knots[0], self.knots[-1])
        inside = np.arange(d + 1) / (d + 1.0)  # d + 1 points determine a polynomial of degree d
        powers, pieces = np.vander(inside, d + 1, increasing=True), []
        for low, high in pairwise(self.knots):
            values = np.array([*self._made(np.asarray(low + (high - low) * inside, dtype=np.float64))])
            pieces.append((low, high - low, np.linalg.solve(powers, values.T)))
        return [
            steps_at(
                x,
                self.knots[1:-1],
                tuple(
                    polynomial(apply("divide", apply("subtract", x, at), h), tuple(map(float, c[:, j])))
                    for at, h, c in pieces
                ),
            )
            for j in range(len(self.ranges))
        ]

    def _made(self, values: Vector) -> Iterator[Vector]:
        """Evaluate the basis by the recursion of Cox and de Boor.

        B_{j,0} = 1 on [t_j, t_{j+1})
        B_{j,d} = (x − t_j)/(t_{j+d} − t_j)·B_{j,d−1} + (t_{j+d+1} − x)/(t_{j+d+1} − t_{j+1})·B_{j+1,d−1}
        """
        inner, d = np.array(self.knots), self.degree
        first, last = inner[1] - inner[0], inner[-1] - inner[-2]
        steps = np.arange(1, d + 1)
        t = np.concatenate([inner[0] - first * steps[::-1], inner, inner[-1] + last * steps])
        x = np.clip(values, inner[0], inner[-1])
        # The last knot belongs to the interval before it.
        interval = np.clip(np.searchsorted(t, x, side="right") - 1, d, len(inner) + d - 2)
        missing = np.isnan(values)
        basis = [(interval == j).astype(np.float64) for j in range(len(t) - 1)]
        for degree in range(1, d + 1):
            basis = [
                (x - t[j]) / (t[j + degree] - t[j]) * basis[j]
                + (t[j + degree + 1] - x) / (t[j + degree + 1] - t[j + 1]) * basis[j + 1]
                for j in range(len(basis) - 1)
            ]
        for vector in basis:
            vector[missing] = 0.0
            yield vector


@dataclass(frozen=True, slots=True)
class Cyclic(OfNumbers):
    """Position of a number on a circle, such as the hour of a day: sin and cos of 2π·(x − start)/period. Range: [−1, 1].

    For a missing cell, both coordinates are 0. An infinite cell counts as `start`.

    period : length of the circle, positive. start : number at which the angle is 0.
    of, fill, missing : as for all features (vfl.base.features.Feature).
    """

    kind: ClassVar[str] = "cyclic"
    period: float = option(require_positive)
    start: float = option(finite, 0.0)

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column.sin' and 'column.cos'."""
        return on_circle(column)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return [−1, 1] for both coordinates."""
        return ((-1.0, 1.0),) * 2

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return formulas of the sine and cosine of the angle. The formulas give 0 and 1 if the angle overflows."""
        most = LARGEST / max(1.0, 2 * math.pi / self.period) - abs(self.start)  # for larger cells the angle overflows
        far = (Condition("less", cell, -most), Condition("less", most, cell))
        x = Case(tuple((condition, self.start) for condition in far), cell)
        turns = apply("multiply", apply("subtract", x, self.start), 2 * math.pi / self.period)
        return [apply("sin", turns), apply("cos", turns)]

    def _made(self, values: Vector) -> Iterator[Vector]:
        with np.errstate(over="ignore"):
            turns = (np.where(np.isinf(values), self.start, values) - self.start) * (2 * math.pi / self.period)
        return circle(np.where(np.isinf(turns), 0.0, turns))


def on_circle(name: str) -> tuple[str, str]:
    """Return the names of the two coordinates of an angle."""
    return f"{name}.sin", f"{name}.cos"


def circle(turns: Vector) -> Iterator[Vector]:
    """Yield the sines, then the cosines, of angles (m,)."""
    yield np.sin(turns)
    yield np.cos(turns)
