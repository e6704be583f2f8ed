"""Products of two columns of one party, and the names, ranges and contents of the coordinates of any column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vfl.columns import UNBOUNDED, Boolean, Bounds, Categorical, Numeric, indicators
from vfl.errors import SpecificationError
from vfl.features.base import Feature

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfl.types import Vector


@dataclass(frozen=True, slots=True)
class Interaction(Feature):
    """Products of the coordinates of two columns of one party. Range: the products of their ranges.

    Two numbers give one coordinate. A column of several coordinates, such as a categorical one, gives a product for each.

    a, b : columns of one party with declared bounds or categories, or its features; they need not be in the partition.
    """

    kind: ClassVar[str] = "interaction"
    a: str
    b: str

    def __post_init__(self) -> None:
        for side in (self.a, self.b):
            if not isinstance(side, str) or not side:
                raise SpecificationError(f"an interaction is of two columns by name, not {side!r}")

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Infinite range, since only a schema knows the two columns."""
        return (UNBOUNDED,)


@dataclass(frozen=True, slots=True)
class Crossed(Feature):
    """An interaction with the declarations of its two columns, resolved by a schema.

    a, b : (name, declaration, source columns in the data) of each side.
    """

    kind: ClassVar[str] = "interaction"
    a: tuple[str, Any, tuple[str, ...]]
    b: tuple[str, Any, tuple[str, ...]]

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the columns of the party's data from which the feature is made: those of `a`, then those of `b`."""
        return (*self.a[2], *self.b[2])

    def own(self, column: str) -> tuple[str, ...]:
        """Return the column's name for two numbers, else 'column=one:other' for each pair of coordinates."""
        left, right = (own_of(declared, name) for name, declared, _ in (self.a, self.b))
        if len(left) == len(right) == 1:
            return (column,)
        return tuple(f"{column}={one}:{other}" for one in left for other in right)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Products of the ranges of the two columns."""
        return tuple(
            (min(ends), max(ends))
            for one in ranges_of(self.a[1])
            for other in ranges_of(self.b[1])
            for ends in [[x * y for x in one for y in other]]
        )

    def product(self, left: Sequence[Vector], right: Sequence[Vector]) -> Iterator[Vector]:
        """Yield the products of the two columns' coordinates, (m,) each, within their ranges."""
        pairs = ((one, other) for one in left for other in right)
        for (one, other), (low, high) in zip(pairs, self.ranges, strict=True):
            yield np.clip(one * other, low, high)


def own_of(declared: Any, column: str) -> tuple[str, ...]:
    """Return the names of a column's coordinates without the indicator of missing cells."""
    if isinstance(declared, Feature):
        return declared.own(column)
    names: tuple[str, ...] = declared.features(column)
    return names[: len(names) - len(indicators(column, declared.missing))]


def ranges_of(declared: Any) -> tuple[Bounds, ...]:
    """Return the range of each coordinate of a column without the indicator of missing cells."""
    if isinstance(declared, Feature):
        return declared.ranges
    limits: Bounds = declared.limits
    return (limits,) * len(own_of(declared, ""))


def content_of(declared: Any) -> str:
    """Return the form in which a column's cells are read: 'number', 'boolean', 'text' or 'date'."""
    if isinstance(declared, Feature):
        return declared.content
    return {Numeric: "number", Boolean: "boolean", Categorical: "text"}[type(declared)]


def contents_of(declared: Any) -> tuple[str, ...]:
    """Return the form of the cells of each source of a column."""
    if isinstance(declared, Crossed):
        return (*contents_of(declared.a[1]), *contents_of(declared.b[1]))
    return (content_of(declared),)
