"""Products of two columns of one party. Also the names, ranges and contents of the coordinates of any column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from vfl.base.arguments import check_options, option
from vfl.base.columns import UNBOUNDED, Boolean, Bounds, Categorical, Numeric, indicators
from vfl.base.features.base import Feature, column_name
from vfl.base.features.curve import NUMBER_OF_PIECES, Curve, thinned
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.types import Vector

PIECES = 2
"""Default number of straight pieces of each of the two curves whose product is a feature."""
Knots: TypeAlias = Mapping[str, Sequence[float]]
"""{column: knots of the curve in that column}."""


@dataclass(frozen=True, slots=True)
class Pair(Feature):
    """Products of the coordinates of two columns of one party: their interaction, in addition to the effect of each column.

    A column has these factors: a number its distance from the middle of its range, a curve also its hats, a category its
    indicators. Each product of a factor of `a` and a factor of `b` is a coordinate of the pair. The range of the product
    follows from the ranges of the two factors. If a cell is missing without a fill, all products of the record are 0.

    a, b : columns of one party with declared bounds or categories, or features of it. A curve whose knots the run finds must
        also be in the partition; other columns need not be.
    pieces : largest number of straight pieces of each curve within the products, from 1 to 32, on some of the curve's knots.
        None for 2. Two curves of k pieces give k² coordinates.
    """

    kind: ClassVar[str] = "pair"
    a: str = option(column_name)
    b: str = option(column_name)
    pieces: int | None = option(NUMBER_OF_PIECES, None)

    def __post_init__(self) -> None:
        check_options(self)
        if self.a == self.b:
            raise SpecificationError(
                f"a pair is of two different columns, not of {self.a!r} and itself: declare a Curve or a Power for it"
            )

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return infinite ranges, since a pair does not know its two columns. A schema replaces the pair by a `Crossed`."""
        return (UNBOUNDED,)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two columns whose product is a feature (a pair).

    name : name of the column in the pair. column : name of the column in the schema. source : name of the column in the data.
    """

    name: str
    column: str
    source: str
    declared: Any

    def placed(self, knots: Knots) -> Side:
        """Return this column with declared knots. A curve without knots gets some of the found knots, chosen evenly."""
        curve = self.declared
        if not isinstance(curve, Curve) or curve.knots is not None:
            return self
        return replace(self, declared=curve.at(thinned(knots[self.column], curve.n_pieces - 1, flat=True)))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the range of each coordinate minus its middle."""
        return tuple(
            (low - middle, high - middle)
            for (low, high), middle in zip(ranges_of(self.declared), self.middles, strict=True)
        )

    @property
    def middles(self) -> tuple[float, ...]:
        """Return the middle of the range of each coordinate; 0 for coordinates in [0, 1], such as indicators and hats.

        The product of distances from the middles is hardly correlated with the two columns, which the model also contains.
        """
        return tuple(0.0 if ends == (0.0, 1.0) else ends[0] / 2 + ends[1] / 2 for ends in ranges_of(self.declared))


@dataclass(frozen=True, slots=True)
class Crossed(Feature):
    """A pair together with the declarations of its two columns, which a schema has looked up."""

    kind: ClassVar[str] = "pair"
    a: Side
    b: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return both columns."""
        return self.a, self.b

    def placed(self, knots: Knots) -> Crossed:
        """Return the pair with declared knots. knots : found knots of all curves without declared knots."""
        return Crossed(self.a.placed(knots), self.b.placed(knots))

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the two columns of the party's data from which the feature is made: the one of `a`, then the one of `b`."""
        return (self.a.source, self.b.source)

    def own(self, column: str) -> tuple[str, ...]:
        """Return the column's name for two numbers; else 'column=one:other' for each pair of coordinates."""
        left, right = (own_of(side.declared, side.name) for side in self.sides)
        if len(left) == len(right) == 1:
            return (column,)
        return tuple(f"{column}={one}:{other}" for one in left for other in right)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the ranges of all products."""
        return tuple(
            (min(ends), max(ends))
            for one in self.a.ranges
            for other in self.b.ranges
            for ends in [[x * y for x in one for y in other]]
        )

    def product(self, left: Sequence[Vector], right: Sequence[Vector]) -> Iterator[Vector]:
        """Yield the products of the two columns' coordinates, (m,) each, clamped to their ranges."""
        one, other = (
            [vector - middle for vector, middle in zip(vectors, side.middles, strict=True)]
            for vectors, side in ((left, self.a), (right, self.b))
        )
        pairs = ((x, y) for x in one for y in other)
        for (x, y), (low, high) in zip(pairs, self.ranges, strict=True):
            yield np.clip(x * y, low, high)


def curves_in(declared: Any) -> tuple[Curve, ...]:
    """Return the declared curves of a column: the curve itself, or all curves among the two columns of a pair."""
    sides = [side.declared for side in declared.sides] if isinstance(declared, Crossed) else [declared]
    return tuple(side for side in sides if isinstance(side, Curve))


def placed(column: str, declared: Any, knots: Knots) -> Any:
    """Return the declaration, in which all curves have declared knots."""
    if isinstance(declared, Crossed):
        return declared.placed(knots)
    return declared.at(knots[column]) if isinstance(declared, Curve) and declared.knots is None else declared


def own_of(declared: Any, column: str) -> tuple[str, ...]:
    """Return the names of a column's coordinates, except the indicator of missing cells."""
    if isinstance(declared, Feature):
        return declared.own(column)
    names: tuple[str, ...] = declared.features(column)
    return names[: len(names) - len(indicators(column, declared.missing))]


def ranges_of(declared: Any) -> tuple[Bounds, ...]:
    """Return the range of each coordinate of a column, except the indicator of missing cells."""
    if isinstance(declared, Feature):
        return declared.ranges
    limits: Bounds = declared.limits
    return (limits,) * len(own_of(declared, ""))


def content_of(declared: Any) -> str:
    """Return the type as which a column's cells are read: 'number', 'boolean', 'text' or 'date'."""
    if isinstance(declared, Feature):
        return declared.content
    return {Numeric: "number", Boolean: "boolean", Categorical: "text"}[type(declared)]


def contents_of(declared: Any) -> tuple[str, ...]:
    """Return, for each source of a column, the type as which the source's cells are read ('number', 'text', ...)."""
    sides = [side.declared for side in declared.sides] if isinstance(declared, Crossed) else [declared]
    return tuple(map(content_of, sides))
