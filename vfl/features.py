"""Features that an owner makes of its columns, declared in the public job, independently of the records.

A feature is a column of the partition that its party makes of another column, record by record. Each kind here states the range
of its coordinates, which follows from the declaration alone and which no cell can leave. Scaling and sensitivities see this
range, as they see the bounds of a number, so that a feature changes no guarantee.

    partition = FeaturePartition({"bank": ["income", "age", "age_group"]}, label=("bank", "default"))
    columns = {"age_group": Binned((25, 40, 60), of="age")}
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from vfl.columns import (
    UNBOUNDED,
    Boolean,
    Bounds,
    Categorical,
    Category,
    Numeric,
    canonical_category,
    check_missing,
    checked_bounds,
    indicators,
    repeated,
)
from vfl.errors import SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.types import Integers, Vector

FEWEST_BUCKETS, MOST_BUCKETS = 2, 1 << 16


def _ascending(name: str, values: Any, least: int) -> tuple[float, ...]:
    """Return finite numbers in ascending order. Raises SpecificationError."""
    given = isinstance(values, tuple | list) and all(_is_number(x) for x in values)
    if not given or len(values) < least or any(a >= b for a, b in pairwise(map(float, values))):
        raise SpecificationError(f"{name} are at least {least} ascending finite numbers, not {values!r}")
    return tuple(map(float, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)


def _finite(name: str, value: Any) -> float:
    if not _is_number(value):
        raise SpecificationError(f"{name} is a finite number, not {value!r}")
    return float(value)


class Feature:
    """Base of all kinds.

    of : the column that it is made of; None is the column of its own name.
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell. The other coordinates are then 0,
        or the number within their range that is nearest to 0.
    """

    __slots__ = ()
    kind: ClassVar[str]
    content: ClassVar[str] = "number"
    """Form in which the cells are read: 'number', 'text' or 'date'."""
    of: str | None
    missing: str | None
    fill: Any

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the columns of the party's data that it is made of."""
        return (self.of or column,)

    def own(self, column: str) -> tuple[str, ...]:
        """Return the names of its coordinates without the indicator of missing cells."""
        return (column,)

    def features(self, column: str) -> tuple[str, ...]:
        """Return the names of its coordinates."""
        return (*self.own(column), *indicators(column, self.missing))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """The range of each coordinate of `own`."""
        raise NotImplementedError

    @property
    def limits(self) -> Bounds:
        """The least range that holds those of all coordinates; infinite while bounds are not declared."""
        lows, highs = zip(*self.ranges, strict=True)
        return min(lows), max(highs)

    def made(self, values: Any) -> Iterator[Vector]:
        """Yield each coordinate, (m,) float64 within its range. values : (m,) as read, missing ones marked."""
        for vector, (low, high) in zip(self._made(values), self.ranges, strict=True):
            vector[np.isnan(vector)] = min(max(0.0, low), high)
            yield np.clip(vector, low, high, out=vector)

    def _made(self, values: Any) -> Iterator[Vector]:
        """Yield each coordinate, NaN where a cell is missing."""
        raise NotImplementedError

    def _check(self) -> None:
        check_missing(self.missing)
        if self.of is not None and (not isinstance(self.of, str) or not self.of):
            raise SpecificationError(f"of is the name of a column, not {self.of!r}")


class _OfNumbers(Feature):
    """Features of a column of numbers. fill : number for missing cells, before the feature is made."""

    __slots__ = ()

    def _check(self) -> None:
        super()._check()
        if self.fill is not None:
            object.__setattr__(self, "fill", _finite("fill", self.fill))


class _OfBounded(_OfNumbers):
    """Features whose range follows from declared bounds of the column."""

    __slots__ = ()
    bounds: Bounds | None

    def _check(self) -> None:
        super()._check()
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
        """The range of the one coordinate."""
        return (UNBOUNDED,) if self.bounds is None else (self._ends(*self.bounds),)

    def _ends(self, low: float, high: float) -> Bounds:
        """Return the range of the coordinate for cells within [low, high]."""
        raise NotImplementedError

    def _made(self, values: Vector) -> Iterator[Vector]:
        low, high = self.bounds or UNBOUNDED
        yield self._value(np.clip(values, low, high))

    def _value(self, values: Vector) -> Vector:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Binned(_OfNumbers):
    """Intervals of a number: a coordinate per interval, 1 for the record's own and 0 elsewhere. Range: [0, 1].

    The intervals are (−∞, e₁), [e₁, e₂), ..., [e_k, ∞) of the edges e. A missing cell is in none of them.

    edges : public cut points, ascending, at least one.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "binned"
    edges: tuple[float, ...]
    of: str | None = None
    fill: float | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", _ascending("edges", self.edges, 1))
        self._check()

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column=[low, high)' for each interval."""
        ends = ["-inf", *(f"{edge:.12g}" for edge in self.edges), "inf"]
        return tuple(f"{column}={'(' if low == '-inf' else '['}{low}, {high})" for low, high in pairwise(ends))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """[0, 1] for each interval."""
        return ((0.0, 1.0),) * (len(self.edges) + 1)

    def _made(self, values: Vector) -> Iterator[Vector]:
        codes = np.searchsorted(self.edges, values, side="right")
        codes[np.isnan(values)] = -1
        return _one_hot(codes, len(self.edges) + 1)


@dataclass(frozen=True, slots=True)
class Spline(_OfNumbers):
    """B-spline basis of a number, for smooth curves of it. Range: [0, 1], since the basis functions are ≥ 0 and add up to 1.

    Cells outside the knots are clamped to the first and last. Beyond these the knots continue at the distance of the outermost
    two, as in scikit-learn's SplineTransformer(extrapolation="constant"). A missing cell has 0 in every function.

    knots : public, ascending, at least two. degree : of the polynomials between knots, from 0 to 5.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "spline"
    knots: tuple[float, ...]
    degree: int = 3
    of: str | None = None
    fill: float | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "knots", _ascending("knots", self.knots, 2))
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or not 0 <= self.degree <= 5:
            raise SpecificationError(f"degree of a spline is a whole number from 0 to 5, not {self.degree!r}")
        self._check()

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column~0', 'column~1', ... for the basis functions."""
        return tuple(f"{column}~{j}" for j in range(len(self.knots) + self.degree - 1))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """[0, 1] for each basis function."""
        return ((0.0, 1.0),) * (len(self.knots) + self.degree - 1)

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
class Log(_OfBounded):
    """Logarithm of a number, log(x + offset). Range: [log(low + offset), log(high + offset)], since log ascends.

    bounds : (low, high) of the column, low + offset > 0; also the job's bounds for this column. Cells outside are clamped.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "log"
    offset: float = 0.0
    bounds: Bounds | None = None
    of: str | None = None
    fill: float | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", _finite("offset", self.offset))
        self._check()

    def _ends(self, low: float, high: float) -> Bounds:
        if low + self.offset <= 0:
            raise SpecificationError(
                f"log needs bounds above {-self.offset:g}, not from {low:g}: raise the lower bound, or the offset"
            )
        return float(np.log(low + self.offset)), float(np.log(high + self.offset))

    def _value(self, values: Vector) -> Vector:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(values + self.offset))


@dataclass(frozen=True, slots=True)
class Power(_OfBounded):
    """Power of a number, x^exponent. Range: the powers of the bounds; from 0 where an even power has bounds on both sides of 0.

    exponent : finite and not 0. A fraction needs bounds ≥ 0, a negative one bounds that exclude 0.
    bounds : (low, high) of the column; also the job's bounds for this column. Cells outside are clamped.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "power"
    exponent: float
    bounds: Bounds | None = None
    of: str | None = None
    fill: float | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", _finite("exponent", self.exponent))
        if self.exponent == 0:
            raise SpecificationError("exponent 0 makes a constant: leave the column out")
        self._check()

    def _ends(self, low: float, high: float) -> Bounds:
        if low < 0 and not self.exponent.is_integer():
            raise SpecificationError(f"exponent {self.exponent:g} needs bounds of at least 0, not from {low:g}")
        if self.exponent < 0 and low <= 0 <= high:
            raise SpecificationError(f"exponent {self.exponent:g} needs bounds that exclude 0, not [{low:g}, {high:g}]")
        with np.errstate(over="ignore"):
            ends = sorted(float(x) for x in np.power(np.array([low, high]), self.exponent))
        turns = low < 0 < high and self.exponent % 2 == 0
        return (0.0 if turns else ends[0]), ends[1]

    def _value(self, values: Vector) -> Vector:
        with np.errstate(all="ignore"):
            return np.asarray(np.power(values, self.exponent))


@dataclass(frozen=True, slots=True)
class Scaled(_OfBounded):
    """Distance of a number from a public center in units of a public spread, (x − center)/spread.

    Range: that of the bounds; without bounds [−reach, reach], so that cells farther than reach·spread are clamped.

    center, spread : a usual value and a usual deviation, publicly known; spread > 0. reach : in spreads.
    bounds : (low, high) of the column, instead of the reach; also the job's bounds for this column.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "scaled"
    center: float
    spread: float
    reach: float = 3.0
    bounds: Bounds | None = None
    of: str | None = None
    fill: float | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        for name in ("center", "spread", "reach"):
            object.__setattr__(self, name, _finite(name, getattr(self, name)))
        if self.spread <= 0 or self.reach <= 0:
            raise SpecificationError(f"spread and reach must be positive, not {self.spread:g} and {self.reach:g}")
        checked_bounds((self.center - self.reach * self.spread, self.center + self.reach * self.spread))
        self._check()

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """The range of the one coordinate."""
        return ((-self.reach, self.reach),) if self.bounds is None else (self._ends(*self.bounds),)

    def _ends(self, low: float, high: float) -> Bounds:
        return (low - self.center) / self.spread, (high - self.center) / self.spread

    def _value(self, values: Vector) -> Vector:
        return (values - self.center) / self.spread


@dataclass(frozen=True, slots=True)
class Cyclic(_OfNumbers):
    """Position of a number on a circle, as an hour of the day: sin and cos of 2π·(x − start)/period. Range: [−1, 1].

    A missing cell has 0 in both; an infinite one is taken for the start.

    period : length of the circle, positive. start : where the angle is 0.
    of, fill, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "cyclic"
    period: float
    start: float = 0.0
    of: str | None = None
    fill: float | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        for name in ("period", "start"):
            object.__setattr__(self, name, _finite(name, getattr(self, name)))
        if self.period <= 0:
            raise SpecificationError(f"period must be positive, not {self.period:g}")
        self._check()

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column.sin' and 'column.cos'."""
        return _on_circle(column)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """[−1, 1] for both."""
        return ((-1.0, 1.0),) * 2

    def _made(self, values: Vector) -> Iterator[Vector]:
        with np.errstate(over="ignore"):
            turns = (np.where(np.isinf(values), self.start, values) - self.start) * (2 * math.pi / self.period)
        return _circle(np.where(np.isinf(turns), 0.0, turns))


@dataclass(frozen=True, slots=True)
class Ordinal(Feature):
    """Position of a category in a public order, one coordinate. Range: [0, k − 1] for k categories.

    categories : at least two, in order; compared as text (vfl.columns.canonical_category).
    unknown : treatment of cells that are not declared: 'refuse' (an error at the owner) or 'missing'.
    fill : category for missing cells. of, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "ordinal"
    content: ClassVar[str] = "text"
    categories: tuple[Category, ...]
    unknown: str = "refuse"
    of: str | None = None
    fill: Category | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        Categorical(self.categories, fill=self.fill)
        object.__setattr__(self, "categories", tuple(self.categories))
        if self.unknown not in ("refuse", "missing"):
            raise SpecificationError(f"unknown must be 'refuse' or 'missing', not {self.unknown!r}")
        self._check()

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """[0, k − 1]."""
        return ((0.0, len(self.categories) - 1.0),)

    def _made(self, values: Integers) -> Iterator[Vector]:
        yield np.where(values < 0, np.nan, values.astype(np.float64))


@dataclass(frozen=True, slots=True)
class Hashed(Feature):
    """Text with many different values, hashed into a fixed number of buckets with one coordinate per bucket.

    Range: [0, 1]; signed: [−1, 1].

    A public hash (MurmurHash3 of the text in UTF-8, as in scikit-learn's FeatureHasher) draws the bucket and, if signed,
    −1 or 1 as the value. A missing cell is in no bucket.

    buckets : from 2 to 65,536. Texts that share a bucket share a coefficient.
    fill : text for missing cells. of, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "hashed"
    content: ClassVar[str] = "text"
    buckets: int
    signed: bool = False
    of: str | None = None
    fill: Category | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        whole = isinstance(self.buckets, int) and not isinstance(self.buckets, bool)
        if not whole or not FEWEST_BUCKETS <= self.buckets <= MOST_BUCKETS:
            raise SpecificationError(
                f"buckets are a whole number from {FEWEST_BUCKETS} to {MOST_BUCKETS:,}, not {self.buckets!r}"
            )
        if not isinstance(self.signed, bool):
            raise SpecificationError(f"signed is true or false, not {self.signed!r}")
        self._check()

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column#0', 'column#1', ... for the buckets."""
        return tuple(f"{column}#{j}" for j in range(self.buckets))

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """[0, 1], or [−1, 1], for each bucket."""
        return ((-1.0 if self.signed else 0.0, 1.0),) * self.buckets

    def code(self, cell: object) -> int:
        """Return 2·bucket, + 1 for a negative sign."""
        hashed = murmur(canonical_category(cell).encode(errors="surrogatepass"))
        # The least number of 32 bits has no positive counterpart; scikit-learn gives it this bucket.
        bucket = (2**31 - self.buckets if hashed == -(2**31) else abs(hashed)) % self.buckets
        return 2 * bucket + (self.signed and hashed < 0)

    def _made(self, values: Integers) -> Iterator[Vector]:
        for bucket in range(self.buckets):
            vector = (values == 2 * bucket).astype(np.float64)
            vector[values == 2 * bucket + 1] = -1.0
            yield vector


PARTS: Mapping[str, tuple[float, float]] = {
    "year": (1.0, 9999.0),
    "quarter": (1.0, 4.0),
    "month": (1.0, 12.0),
    "day": (1.0, 31.0),
    "weekday": (0.0, 6.0),
    "yearday": (1.0, 366.0),
    "hour": (0.0, 23.0),
    "minute": (0.0, 59.0),
    "days": (0.0, math.inf),
}
"""Parts of a date with their ranges; those of the year and of the days since the first date follow from the bounds."""
PERIODIC = ("quarter", "month", "day", "weekday", "yearday", "hour", "minute")


@dataclass(frozen=True, slots=True)
class DateParts(Feature):
    """Parts of a date, one coordinate per part. The range is that of the part, for instance [1, 12] for the month.

    The year lies within the years of the bounds; 'days' counts from the first date, within [0, the length of the bounds].
    Times are taken as they are written, in their own time zone.

    parts : of 'year', 'quarter', 'month', 'day', 'weekday' (Monday is 0), 'yearday', 'hour', 'minute', 'days'.
    bounds : (first, last) date, as ISO text or dates; earlier and later ones are clamped.
    cyclic : whether parts that repeat become two coordinates, sin and cos of their position in the cycle, within [−1, 1].
    fill : date for missing cells. of, missing : as for all features (vfl.features.Feature).
    """

    kind: ClassVar[str] = "date"
    content: ClassVar[str] = "date"
    parts: tuple[str, ...]
    bounds: tuple[str, str] = ("1900-01-01", "2100-01-01")
    cyclic: bool = False
    of: str | None = None
    fill: str | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple | list) or not self.parts:
            raise SpecificationError(f"parts are a list of at least one of {', '.join(PARTS)}, not {self.parts!r}")
        for part in self.parts:
            if part not in PARTS:
                raise SpecificationError(
                    f"unknown part {part!r} of a date{nearest(str(part), PARTS)}; known: {', '.join(PARTS)}"
                )
        if twice := repeated(self.parts):
            raise SpecificationError(f"part {twice!r} is named twice")
        object.__setattr__(self, "parts", tuple(self.parts))
        if not isinstance(self.bounds, tuple | list) or len(self.bounds) != 2:
            raise SpecificationError(f"bounds of a date are its first and last, not {self.bounds!r}")
        object.__setattr__(self, "bounds", tuple(_date_text(date) for date in self.bounds))
        first, last = self._ends
        if first >= last:
            raise SpecificationError(f"bounds of a date are its first and last, not {self.bounds!r}")
        if "year" in self.parts and first.astype("M8[Y]") == last.astype("M8[Y]"):
            raise SpecificationError("bounds within one year leave its number constant: leave the part 'year' out")
        if not isinstance(self.cyclic, bool):
            raise SpecificationError(f"cyclic is true or false, not {self.cyclic!r}")
        if self.fill is not None:
            object.__setattr__(self, "fill", _date_text(self.fill))
        self._check()

    def _turns(self, part: str) -> bool:
        return self.cyclic and part in PERIODIC

    def own(self, column: str) -> tuple[str, ...]:
        """Return 'column.part', or 'column.part.sin' and 'column.part.cos'."""
        names = [_on_circle(f"{column}.{p}") if self._turns(p) else (f"{column}.{p}",) for p in self.parts]
        return tuple(name for pair in names for name in pair)

    @property
    def _ends(self) -> tuple[np.datetime64, np.datetime64]:
        first, last = (np.datetime64(text, "s") for text in self.bounds)
        return first, last

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """The range of each part."""
        first, last = self._ends
        years = tuple(float(end.astype("M8[Y]").astype(int) + 1970) for end in (first, last))
        own: dict[str, Bounds] = {
            **PARTS,
            "year": (years[0], years[1]),
            "days": (0.0, float((last - first) / np.timedelta64(1, "D"))),
        }
        found = [((-1.0, 1.0),) * 2 if self._turns(part) else (own[part],) for part in self.parts]
        return tuple(limits for pair in found for limits in pair)

    def _made(self, values: Any) -> Iterator[Vector]:
        """Yield the parts of (m,) datetime64[s]."""
        first, last = self._ends
        missing = np.isnat(values)
        dates = np.clip(np.where(missing, first, values), first, last)
        for part in self.parts:
            vector = _part(dates, part, first)
            vector[missing] = np.nan
            if self._turns(part):
                low, high = PARTS[part]
                yield from _circle((vector - low) * (2 * math.pi / (high - low + 1)))
            else:
                yield vector


@dataclass(frozen=True, slots=True)
class Interaction(Feature):
    """Products of the coordinates of two columns of one party. Range: the products of their ranges.

    Two numbers give one coordinate. A column of several coordinates, as a categorical one, gives a product for each of them.

    a, b : columns of the same party with declared bounds or categories, or features of it; they need not be in the partition.
    """

    kind: ClassVar[str] = "interaction"
    of: ClassVar[None] = None  # type: ignore[misc]
    fill: ClassVar[None] = None  # type: ignore[misc]
    missing: ClassVar[None] = None  # type: ignore[misc]
    a: str
    b: str

    def __post_init__(self) -> None:
        for side in (self.a, self.b):
            if not isinstance(side, str) or not side:
                raise SpecificationError(f"an interaction is of two columns by name, not {side!r}")

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """Infinite: only a schema knows the two columns."""
        return (UNBOUNDED,)


@dataclass(frozen=True, slots=True)
class Crossed(Feature):
    """An interaction with the declarations of its two columns, which a schema looked up.

    a, b : (name, declaration, columns of the data that it is read from) of either side.
    """

    kind: ClassVar[str] = "interaction"
    of: ClassVar[None] = None  # type: ignore[misc]
    fill: ClassVar[None] = None  # type: ignore[misc]
    missing: ClassVar[None] = None  # type: ignore[misc]
    a: tuple[str, Any, tuple[str, ...]]
    b: tuple[str, Any, tuple[str, ...]]

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the columns of the party's data that it is made of; a side's own follow each other."""
        return (*self.a[2], *self.b[2])

    def own(self, column: str) -> tuple[str, ...]:
        """Return the column for two numbers, else 'column=one:other' for each pair of coordinates."""
        left, right = (own_of(declared, name) for name, declared, _ in (self.a, self.b))
        if len(left) == len(right) == 1:
            return (column,)
        return tuple(f"{column}={one}:{other}" for one in left for other in right)

    @property
    def ranges(self) -> tuple[Bounds, ...]:
        """The products of the ranges of its columns."""
        return tuple(
            (min(ends), max(ends))
            for one in ranges_of(self.a[1])
            for other in ranges_of(self.b[1])
            for ends in [[x * y for x in one for y in other]]
        )

    def product(self, left: Sequence[Vector], right: Sequence[Vector]) -> Iterator[Vector]:
        """Yield the products of the coordinates of its columns, (m,) each, within their ranges."""
        pairs = ((one, other) for one in left for other in right)
        for (one, other), (low, high) in zip(pairs, self.ranges, strict=True):
            yield np.clip(one * other, low, high)


GRID = 160
"""Cells of the grid of a `GridCell`."""
_HALF = 80


@dataclass(frozen=True, slots=True)
class GridCell(_OfNumbers):
    """Cell of a number in a grid of 160 equal cells between its bounds, for `private_quantiles` alone.

    The coordinate is a number whose magnitude names the cell, so that the histogram of vfl.privacy.magnitudes counts the
    records of each: its cells −80, ..., 79 are those of the grid, and a missing value lies in the last, 80. Range: ±0.75·2⁴⁰.
    """

    kind: ClassVar[str] = "grid_cell"
    bounds: Bounds
    of: str | None = None
    fill: float | None = None
    missing: str | None = None

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


def _one_hot(codes: Integers, count: int) -> Iterator[Vector]:
    return ((codes == code).astype(np.float64) for code in range(count))


def _on_circle(name: str) -> tuple[str, str]:
    return f"{name}.sin", f"{name}.cos"


def _circle(turns: Vector) -> Iterator[Vector]:
    yield np.sin(turns)
    yield np.cos(turns)


def _part(dates: Any, part: str, first: np.datetime64) -> Vector:
    """Return one part of (m,) datetime64[s], float64."""
    years, months, days = (dates.astype(f"M8[{unit}]") for unit in "YMD")
    seconds = (dates - days).astype(np.int64)
    numbers: dict[str, Any] = {
        "year": lambda: years.astype(int) + 1970,
        "month": lambda: months.astype(int) % 12 + 1,
        "quarter": lambda: months.astype(int) % 12 // 3 + 1,
        "day": lambda: (days - months.astype("M8[D]")).astype(int) + 1,
        "weekday": lambda: (days.astype(int) + 3) % 7,
        "yearday": lambda: (days - years.astype("M8[D]")).astype(int) + 1,
        "hour": lambda: seconds // 3600,
        "minute": lambda: seconds // 60 % 60,
        "days": lambda: (dates - first) / np.timedelta64(1, "D"),
    }
    return np.asarray(numbers[part](), dtype=np.float64)


def _date_text(date: Any) -> str:
    """Return a date as ISO text. Raises SpecificationError."""
    try:
        found = dt.datetime.fromisoformat(date) if isinstance(date, str) else date
        if not isinstance(found, dt.date):
            raise ValueError  # noqa: TRY301, TRY004 - one error for all that is no date
        return (
            found.replace(tzinfo=None, microsecond=0).isoformat()
            if isinstance(found, dt.datetime)
            else found.isoformat()
        )
    except ValueError:
        raise SpecificationError(f"a date is ISO text such as '2026-01-31', not {date!r}") from None


def murmur(data: bytes) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of bytes, as a signed number (Appleby, 2011)."""
    whole, mask = 0, 0xFFFFFFFF
    end = len(data) // 4 * 4
    for start in range(0, end, 4):
        whole ^= _mixed(int.from_bytes(data[start : start + 4], "little"))
        whole = (whole << 13 | whole >> 19) & mask
        whole = (whole * 5 + 0xE6546B64) & mask
    if end < len(data):
        whole ^= _mixed(int.from_bytes(data[end:], "little"))
    whole ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        whole = ((whole ^ whole >> shift) * factor) & mask
    return whole - (1 << 32) if whole >> 31 else whole


def _mixed(word: int) -> int:
    mask = 0xFFFFFFFF
    word = word * 0xCC9E2D51 & mask
    return (word << 15 | word >> 17) * 0x1B873593 & mask


FeatureKind: TypeAlias = (
    Binned | Spline | Log | Power | Scaled | Cyclic | Ordinal | Hashed | DateParts | Interaction | GridCell
)
FEATURES: tuple[type[FeatureKind], ...] = (
    Binned,
    Spline,
    Log,
    Power,
    Scaled,
    Cyclic,
    Ordinal,
    Hashed,
    DateParts,
    Interaction,
    GridCell,
)
