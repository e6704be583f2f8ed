"""Features of a number that give one coordinate per interval, basis function or axis: bins, splines and cycles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.errors import SpecificationError
from vfl.features.base import OfNumbers, ascending, finite
from vfl.features.formula import Case, Condition, apply, clipped, polynomial, steps_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.columns import Bounds
    from vfl.features.formula import Cell, Formula
    from vfl.types import Integers, Vector

LARGEST = 1.79e308


@dataclass(frozen=True, slots=True)
class Binned(OfNumbers):
    """Intervals of a number, with one coordinate per interval: 1 if the number is in the interval, else 0. Range: [0, 1].

    The intervals between edges e are (−∞, e₁), [e₁, e₂), ..., [e_k, ∞). A missing cell is in no interval.

    edges : public cut points, ascending, at least one.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "binned"
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", ascending("edges", self.edges, 1))
        self._check()

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
        return _one_hot(codes, len(self.edges) + 1)


@dataclass(frozen=True, slots=True)
class Spline(OfNumbers):
    """B-spline basis of a number, for smooth curves. Range: [0, 1], since the basis functions are ≥ 0 and add up to 1.

    Cells outside the knots are clamped to the first or last knot. Further knots are added beyond these two, spaced like the
    outermost two knots, as in scikit-learn's SplineTransformer(extrapolation="constant"). At a missing cell, every function is
    0.

    knots : public points, ascending, at least two. degree : degree of the polynomials between knots, from 0 to 5.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "spline"
    knots: tuple[float, ...]
    degree: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "knots", ascending("knots", self.knots, 2))
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or not 0 <= self.degree <= 5:
            raise SpecificationError(f"degree of a spline is a whole number from 0 to 5, not {self.degree!r}")
        self._check()

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
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "cyclic"
    period: float
    start: float = 0.0

    def __post_init__(self) -> None:
        for name in ("period", "start"):
            object.__setattr__(self, name, finite(name, getattr(self, name)))
        if self.period <= 0:
            raise SpecificationError(f"period must be positive, not {self.period:g}")
        self._check()

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column.sin' and 'column.cos'."""
        return on_circle(column)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return [−1, 1] for both coordinates."""
        return ((-1.0, 1.0),) * 2

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return formulas of the sine and cosine of the angle. They give 0 and 1 if the angle overflows."""
        most = LARGEST / max(1.0, 2 * math.pi / self.period) - abs(self.start)  # beyond it the angle overflows
        far = (Condition("less", cell, -most), Condition("less", most, cell))
        x = Case(tuple((condition, self.start) for condition in far), cell)
        turns = apply("multiply", apply("subtract", x, self.start), 2 * math.pi / self.period)
        return [apply("sin", turns), apply("cos", turns)]

    def _made(self, values: Vector) -> Iterator[Vector]:
        with np.errstate(over="ignore"):
            turns = (np.where(np.isinf(values), self.start, values) - self.start) * (2 * math.pi / self.period)
        return circle(np.where(np.isinf(turns), 0.0, turns))


def _one_hot(codes: Integers, count: int) -> Iterator[Vector]:
    return ((codes == code).astype(np.float64) for code in range(count))


def on_circle(name: str) -> tuple[str, str]:
    """Return the names of the two coordinates of an angle."""
    return f"{name}.sin", f"{name}.cos"


def circle(turns: Vector) -> Iterator[Vector]:
    """Yield the sines, then the cosines, of angles (m,)."""
    yield np.sin(turns)
    yield np.cos(turns)
