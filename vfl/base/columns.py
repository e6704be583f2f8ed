"""Declarations of columns: numbers, truth values, categories, and columns that are dropped."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from vfl.base.arguments import check_options, one_of, option
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Bounds: TypeAlias = tuple[float, float]
Category: TypeAlias = str | int | float | bool

UNBOUNDED: Bounds = (-math.inf, math.inf)
INDICATOR = "indicator"
MISSING_CELLS = one_of((INDICATOR,), "is 'indicator' or left out (a value for missing cells is given as fill)")
"""Check of the option for missing cells."""


def nearest_double(value: Any) -> float:
    """Return the float64 of a real number of any type; ±inf for a number beyond the largest float64."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def canonical_category(value: object) -> str:
    """Return the text by which categories and classes are compared. The text follows from the value alone.

    Numbers of any type are equal if their float64 values are equal: 1, 1.0, Decimal('1.00') and the text '1' are one
    category. Truth values equal the texts 'true' and 'false'. Other text is kept as it is: '01' and '1.0' differ from '1'.
    """
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, numbers.Real | Decimal):
        number = nearest_double(value)
        return str(int(number)) if number.is_integer() else str(number)
    return str(value)


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs twice; None if no name does."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def checked_bounds(bounds: Sequence[float]) -> Bounds:
    """Return (lo, hi) as finite floats with lo < hi. Raises SpecificationError, whose message names the remedy."""
    numbers = isinstance(bounds, tuple | list) and [
        float(x) for x in bounds if isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)
    ]
    if not numbers or len(bounds) != 2 or len(numbers) != 2:
        raise SpecificationError(f"bounds are two numbers, low and high, not {bounds!r}")
    lo, hi = numbers
    if not (math.isfinite(lo) and math.isfinite(hi)):
        raise SpecificationError(
            f"bounds [{lo:g}, {hi:g}] are not finite: declare a range, to which values are clamped"
        )
    if lo > hi:
        raise SpecificationError(f"bounds [{lo:g}, {hi:g}] are reversed: write [{hi:g}, {lo:g}]")
    if lo == hi:
        raise SpecificationError(
            f"bounds [{lo:g}, {hi:g}] make the column constant: widen the range, or leave the column out"
        )
    if hi / 2 - lo / 2 == 0:
        raise SpecificationError(f"bounds [{lo!r}, {hi!r}] are too close to scale by: change the column's unit")
    return lo, hi


def indicators(column: str, missing: str | None) -> tuple[str, ...]:
    """Return the coordinate that marks missing cells, as a tuple of its name; () without such a coordinate."""
    return () if missing is None else (f"{column}=(missing)",)


@dataclass(frozen=True, slots=True)
class Numeric:
    """Column of numbers, which becomes one coordinate of the model.

    bounds : (lo, hi); values outside are clamped, and so are infinite values. None declares no bounds.
    fill : value for missing cells, within the bounds. None makes a missing cell an error at the column's owner.
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell and 0 otherwise. Without `fill`, a
        missing cell then becomes the number within the bounds that is nearest to 0.
    """

    kind: ClassVar[str] = "numeric"
    bounds: Bounds | None = None
    fill: float | None = None
    missing: str | None = option(MISSING_CELLS, None)

    def __post_init__(self) -> None:
        check_options(self)
        if self.bounds is not None:
            object.__setattr__(self, "bounds", checked_bounds(self.bounds))
        if self.fill is None:
            return
        if isinstance(self.fill, bool | str) or not math.isfinite(self.fill):
            raise SpecificationError(f"fill must be a finite number, not {self.fill!r}")
        lo, hi = self.bounds or UNBOUNDED
        if not lo <= self.fill <= hi:
            raise SpecificationError(f"fill {self.fill:g} lies outside the bounds [{lo:g}, {hi:g}]")
        object.__setattr__(self, "fill", float(self.fill))

    def features(self, column: str) -> tuple[str, ...]:
        """Return the names of the column's coordinates."""
        return (column, *indicators(column, self.missing))

    @property
    def limits(self) -> Bounds:
        """Range of the column's values; infinite if no bounds are declared."""
        return self.bounds or UNBOUNDED

    @property
    def instead(self) -> float | None:
        """Replacement for a missing cell; None if a missing cell is an error."""
        if self.fill is None and self.missing is not None:
            lo, hi = self.limits
            return min(max(0.0, lo), hi)
        return self.fill


@dataclass(frozen=True, slots=True)
class Boolean:
    """Column of true and false (or 1 and 0), which becomes one coordinate of the model, 1 or 0.

    fill : value for missing cells. None makes a missing cell an error at the column's owner.
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell. Without `fill`, the column's own
        coordinate is then 0.
    """

    kind: ClassVar[str] = "boolean"
    fill: bool | None = option(one_of((0, 1), "of a boolean column is true or false"), None)
    missing: str | None = option(MISSING_CELLS, None)

    def __post_init__(self) -> None:
        check_options(self)

    def features(self, column: str) -> tuple[str, ...]:
        """Return the names of the column's coordinates."""
        return (column, *indicators(column, self.missing))

    @property
    def limits(self) -> Bounds:
        """Range of the column's values."""
        return 0.0, 1.0

    @property
    def instead(self) -> float | None:
        """Replacement for a missing cell; None if a missing cell is an error."""
        if self.fill is None:
            return None if self.missing is None else 0.0
        return float(self.fill)


@dataclass(frozen=True, slots=True)
class Known(Boolean):
    """Column of a left join that its party makes: true for a record that the party has, false for a record that it lacks.

    A job adds the column to each party but the label party, so that presence is a cell of the record like others.
    """

    kind: ClassVar[str] = "known"
    fill: bool | None = False


@dataclass(frozen=True, slots=True)
class Categorical:
    """Column of declared categories. Each category becomes one coordinate of the model, 'column=category', 1 or 0.

    categories : at least two, in the order of the coordinates; compared as text (`canonical_category`).
    fill : category for missing cells. None makes a missing cell an error at the column's owner.
    unknown : treatment of cells with an undeclared category: 'refuse' (an error at the owner) or 'zero' (no category).
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell. Without `fill`, a missing cell is
        then in no category.
    """

    kind: ClassVar[str] = "categorical"
    categories: tuple[Category, ...]
    fill: Category | None = None
    unknown: str = option(one_of(("refuse", "zero"), "must be 'refuse' or 'zero'"), "refuse")
    missing: str | None = option(MISSING_CELLS, None)

    def __post_init__(self) -> None:
        check_options(self)
        if not isinstance(self.categories, tuple | list) or len(self.categories) < 2:
            raise SpecificationError(f"categories are a list of at least two, not {self.categories!r}")
        object.__setattr__(self, "categories", tuple(self.categories))
        texts = self.texts
        if twice := repeated(texts):
            raise SpecificationError(f"category {twice!r} is declared twice (categories are compared as text)")
        if self.fill is not None and canonical_category(self.fill) not in texts:
            raise SpecificationError(f"fill {self.fill!r} is not a declared category{nearest(str(self.fill), texts)}")

    @property
    def texts(self) -> tuple[str, ...]:
        """Categories as text, for comparisons."""
        return tuple(canonical_category(category) for category in self.categories)

    def features(self, column: str) -> tuple[str, ...]:
        """Return the names of the column's coordinates."""
        return (*(f"{column}={text}" for text in self.texts), *indicators(column, self.missing))

    @property
    def limits(self) -> Bounds:
        """Range of every coordinate of the column."""
        return 0.0, 1.0


@dataclass(frozen=True, slots=True)
class Dropped:
    """Column that a party holds but the model does not use. The column is not read: the job equals a job without the column."""

    kind: ClassVar[str] = "dropped"

    def features(self, column: str) -> tuple[str, ...]:
        """Return (), since the column has no coordinate."""
        return ()


TRUTHS = ("false", "true")


def categories_of(declared: object) -> tuple[str, ...]:
    """Return the categories of a column in order, as text; () for a column of numbers."""
    if isinstance(declared, Boolean):
        return TRUTHS
    return declared.texts if isinstance(declared, Categorical) else ()
