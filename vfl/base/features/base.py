"""Base classes of features, with the checks of their options."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from vfl.base.arguments import check_options, one_of, option
from vfl.base.columns import MISSING_CELLS, UNBOUNDED, Bounds, checked_bounds, indicators
from vfl.base.features.formula import apply, clipped
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfl.base.features.formula import Cell, Formula
    from vfl.base.types import Vector


Steps: TypeAlias = tuple[tuple[str] | tuple[str, float], ...]
"""Names of NumPy functions, in order. A name comes with the function's second argument, if the function takes one."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Terms that a column adds to the objective: ½ wᵀΩw, and bounds low ≤ w ≤ high. w : m coordinates without the indicator.

    low, high : (m,), low ≤ 0 ≤ high. penalty : (m, m) Ω, symmetric and positive semidefinite.
    """

    low: Vector
    high: Vector
    penalty: Vector


class Feature(ABC):
    """Base of all kinds of features."""

    __slots__ = ()
    kind: ClassVar[str]
    content: ClassVar[str] = "number"
    """Type as which the cells are read: 'number', 'text' or 'date'."""
    missing: str | None = None
    fill: Any = None

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the columns of the party's data from which the feature is made."""
        return (column,)

    def own(self, column: str) -> tuple[str, ...]:
        """Return the names of the feature's coordinates, except the indicator of missing cells."""
        return (column,)

    def features(self, column: str) -> tuple[str, ...]:
        """Return the names of all coordinates, including the indicator of missing cells if there is one."""
        return (*self.own(column), *indicators(column, self.missing))

    @property
    @abstractmethod
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the range of each coordinate in `own`."""

    @property
    def terms(self) -> Terms | None:
        """Return the terms that the column adds to the objective; None if it adds no terms."""
        return None

    @property
    def limits(self) -> Bounds:
        """Return the smallest range that includes the ranges of all coordinates; infinite unless bounds are declared."""
        lows, highs = zip(*self.ranges, strict=True)
        return min(lows), max(highs)


def column_name(argument: str, value: Any) -> str:
    """Return the name of a column. Refuse any other value."""
    if not isinstance(value, str) or not value:
        raise SpecificationError(f"{argument} is the name of a column, not {value!r}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCells(Feature, ABC):
    """Base of features that are made from the cells of one column.

    of : source column; None if the source column has the name of the feature.
    fill : value that replaces missing cells before the feature is computed.
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell. All other coordinates are then 0,
        or the number within their range that is nearest to 0.
    """

    of: str | None = option(column_name, None)
    fill: Any = None
    missing: str | None = option(MISSING_CELLS, None)

    def __post_init__(self) -> None:
        """Check each option by itself."""
        check_options(self)

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the column of the party's data from which the feature is made."""
        return (self.of or column,)

    def made(self, values: Any, gaps: Sequence[float] | None = None) -> Iterator[Vector]:
        """Yield each coordinate, (m,) float64, within its range.

        values : (m,) cells as read, in which missing cells are marked. gaps : value of each coordinate at missing cells; None
            for the number in the coordinate's range that is nearest to 0.
        """
        for k, (vector, (low, high)) in enumerate(zip(self._made(values), self.ranges, strict=True)):
            vector[np.isnan(vector)] = min(max(0.0, low), high) if gaps is None else gaps[k]
            yield np.clip(vector, low, high, out=vector)

    @abstractmethod
    def _made(self, values: Any) -> Iterator[Vector]:
        """Yield each coordinate, NaN where a cell is missing."""

    @property
    def form(self) -> str:
        """Return the type of the cells in formulas for SQL and ONNX: 'number', 'text' or 'date' (`Cell.content`)."""
        return self.content

    @abstractmethod
    def formulas(self, cell: Cell) -> list[Formula]:
        """Return the formula of each coordinate, to be written as SQL, ONNX or NumPy code. Only for cells that are present."""

    def undeclared(self, cell: Cell) -> Formula | None:
        """Return a formula that is 1 for an undeclared cell and 0 for a declared one; None if every cell is declared."""
        return None

    def filled_cell(self) -> Any:
        """Return the cell, (1,), that replaces a missing cell, in the form that `made` takes."""
        return np.array([np.nan if self.fill is None else self.fill], dtype=np.float64)


class OfNumbers(OfCells, ABC):
    """Base of features of a numeric column. `fill` is a number."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check each option by itself, and `fill`."""
        super().__post_init__()
        if self.fill is not None:
            object.__setattr__(self, "fill", finite("fill", self.fill))


class OfBounded(OfNumbers, ABC):
    """Base of features whose range follows from the declared bounds of the column."""

    __slots__ = ()
    bounds: Bounds | None

    def __post_init__(self) -> None:
        """Check each option, and the range that follows from the bounds."""
        super().__post_init__()
        if self.bounds is None:
            return
        low, high = checked_bounds(self.bounds)
        object.__setattr__(self, "bounds", (low, high))
        if self.fill is not None and not low <= self.fill <= high:
            raise SpecificationError(f"fill {self.fill:g} lies outside the bounds [{low:g}, {high:g}]")
        ends = self._ends(low, high)
        if not all(map(math.isfinite, ends)) or not ends[1] / 2 - ends[0] / 2 > 0:
            raise SpecificationError(
                f"bounds [{low:g}, {high:g}] give no finite range for a column of kind {self.kind}"
            )

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Return the range of the single coordinate."""
        return (UNBOUNDED,) if self.bounds is None else (self._ends(*self.bounds),)

    @abstractmethod
    def _ends(self, low: float, high: float) -> Bounds:
        """Return the range of the coordinate for cells within [low, high]."""

    def formulas(self, cell: Cell) -> list[Formula]:
        """Return the formula of the single coordinate."""
        x = cell if self.bounds is None else clipped(cell, *self.bounds)
        for name, *argument in self.steps:
            x = apply(name, x, *argument)
        return [clipped(x, *self.ranges[0])]

    def _made(self, values: Vector) -> Iterator[Vector]:
        low, high = self.bounds or UNBOUNDED
        made = np.clip(values, low, high)
        with np.errstate(all="ignore"):
            for name, *argument in self.steps:
                made = np.asarray(getattr(np, name)(made, *argument))
        yield made

    @property
    @abstractmethod
    def steps(self) -> Steps:
        """Return the NumPy functions that compute the coordinate from cells within the bounds.

        Formulas have the same operations.
        """


UNDECLARED = one_of(("refuse", "missing"), "must be 'refuse' or 'missing'")
"""Check of `unknown`, the treatment of undeclared cells."""


def ascending(name: str, values: Any, least: int) -> tuple[float, ...]:
    """Return the values as finite, ascending floats. Raises SpecificationError, also for fewer than `least` values."""
    given = isinstance(values, tuple | list) and all(_is_number(x) for x in values)
    if not given or len(values) < least or any(a >= b for a, b in pairwise(map(float, values))):
        raise SpecificationError(f"{name} are at least {least} ascending finite numbers, not {values!r}")
    return tuple(map(float, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def finite(name: str, value: Any) -> float:
    """Return the value as a finite float. Raises SpecificationError for any other value."""
    if not _is_number(value):
        raise SpecificationError(f"{name} is a finite number, not {value!r}")
    return float(value)
