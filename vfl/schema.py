"""Public declarations about each column, and the scaling that follows from them. Nothing here is taken from data.

A column becomes one coordinate of the model (numeric, boolean) or one for each declared category (categorical). What a
declaration says of its coordinates (`features`, `limits`) is all that scaling, sensitivities and storage need to know.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from vfl.errors import SpecificationError, entry, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from vfl.types import Vector

Bounds: TypeAlias = tuple[float, float]
Category: TypeAlias = str | int | float | bool

UNBOUNDED: Bounds = (-math.inf, math.inf)
INDICATOR = "indicator"


def nearest_double(value: Any) -> float:
    """Return the float64 of a real number of any type; an infinity for one beyond the largest."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def canonical_category(value: object) -> str:
    """Return the text by which categories and classes are compared, a function of the value alone.

    Numbers of any type are equal where their float64 are: 1, 1.0, Decimal('1.00') and the text '1' are one category. Truth
    values equal the texts 'true' and 'false'. Other text stays as it is: '01' and '1.0' differ from '1'.
    """
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, numbers.Real | Decimal):
        number = nearest_double(value)
        return str(int(number)) if number.is_integer() else str(number)
    return str(value)


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def checked_bounds(bounds: Sequence[float]) -> Bounds:
    """Return (lo, hi) as finite floats, lo < hi. Raises SpecificationError with the remedy."""
    numbers = isinstance(bounds, tuple | list) and [
        float(x) for x in bounds if isinstance(x, int | float | np.integer | np.floating) and not isinstance(x, bool)
    ]
    if not numbers or len(bounds) != 2 or len(numbers) != 2:
        raise SpecificationError(f"bounds are two numbers, low and high, not {bounds!r}")
    lo, hi = numbers
    if not (math.isfinite(lo) and math.isfinite(hi)):
        raise SpecificationError(f"bounds [{lo:g}, {hi:g}] are not finite: declare a range, values outside are clamped")
    if lo > hi:
        raise SpecificationError(f"bounds [{lo:g}, {hi:g}] are reversed: write [{hi:g}, {lo:g}]")
    if lo == hi:
        raise SpecificationError(f"bounds [{lo:g}, {hi:g}] leave a constant: widen the range, or leave the column out")
    if hi / 2 - lo / 2 == 0:
        raise SpecificationError(f"bounds [{lo!r}, {hi!r}] are too close to scale by: change the column's unit")
    return lo, hi


def _check_missing(missing: str | None) -> None:
    if missing not in (None, INDICATOR):
        raise SpecificationError(f"missing is 'indicator' or left out, not {missing!r}; a fill= is a value")


def _indicators(column: str, missing: str | None) -> tuple[str, ...]:
    return () if missing is None else (f"{column}=(missing)",)


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers, one coordinate.

    bounds : (lo, hi); values outside are clamped, infinities too. None declares nothing.
    fill : value for missing cells, within the bounds; None makes a missing cell an error at the owner.
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell and 0 otherwise. Without a fill,
        a missing cell then becomes the number within the bounds that is nearest to 0.
    """

    kind: ClassVar[str] = "numeric"
    bounds: Bounds | None = None
    fill: float | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        _check_missing(self.missing)
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
        return (column, *_indicators(column, self.missing))

    @property
    def limits(self) -> Bounds:
        """The range of the column's values; infinite if no bounds are declared."""
        return self.bounds or UNBOUNDED

    @property
    def instead(self) -> float | None:
        """Replacement for a missing value; None if a missing value is an error."""
        if self.fill is None and self.missing is not None:
            lo, hi = self.limits
            return min(max(0.0, lo), hi)
        return self.fill


@dataclass(frozen=True, slots=True)
class Boolean:
    """A column of true and false (or 1 and 0), which becomes one coordinate, 1 or 0.

    fill : value for missing cells; None makes a missing cell an error at the owner.
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell. Without a fill, the column's
        own coordinate is then 0.
    """

    kind: ClassVar[str] = "boolean"
    fill: bool | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        _check_missing(self.missing)
        if self.fill is not None and self.fill not in (0, 1):
            raise SpecificationError(f"fill of a boolean column is true or false, not {self.fill!r}")

    def features(self, column: str) -> tuple[str, ...]:
        """Return the names of the column's coordinates."""
        return (column, *_indicators(column, self.missing))

    @property
    def limits(self) -> Bounds:
        """The range of the column's values."""
        return 0.0, 1.0

    @property
    def instead(self) -> float | None:
        """Replacement for a missing value; None if a missing value is an error."""
        if self.fill is None:
            return None if self.missing is None else 0.0
        return float(self.fill)


@dataclass(frozen=True, slots=True)
class Categorical:
    """A column of declared categories, which becomes one coordinate 'column=category' per category, 1 or 0.

    categories : at least two, in the order of the coordinates; compared as text (`canonical_category`).
    fill : category for missing cells; None makes a missing cell an error at the owner.
    unknown : treatment of values that are not declared: 'refuse' (an error at the owner) or 'zero' (no category).
    missing : 'indicator' adds a coordinate 'column=(missing)', which is 1 for a missing cell. Without a fill, a missing cell
        is then in no category.
    """

    kind: ClassVar[str] = "categorical"
    categories: tuple[Category, ...]
    fill: Category | None = None
    unknown: str = "refuse"
    missing: str | None = None

    def __post_init__(self) -> None:
        _check_missing(self.missing)
        if not isinstance(self.categories, tuple | list) or len(self.categories) < 2:
            raise SpecificationError(f"categories are a list of at least two, not {self.categories!r}")
        object.__setattr__(self, "categories", tuple(self.categories))
        texts = self.texts
        if twice := _repeated(texts):
            raise SpecificationError(f"category {twice!r} is declared twice (categories are compared as text)")
        if self.fill is not None and canonical_category(self.fill) not in texts:
            raise SpecificationError(f"fill {self.fill!r} is not a declared category{nearest(str(self.fill), texts)}")
        if self.unknown not in ("refuse", "zero"):
            raise SpecificationError(f"unknown must be 'refuse' or 'zero', not {self.unknown!r}")

    @property
    def texts(self) -> tuple[str, ...]:
        """The categories as text, for comparisons."""
        return tuple(canonical_category(category) for category in self.categories)

    def features(self, column: str) -> tuple[str, ...]:
        """Return the names of the column's coordinates."""
        return (*(f"{column}={text}" for text in self.texts), *_indicators(column, self.missing))

    @property
    def limits(self) -> Bounds:
        """The range of every coordinate of the column."""
        return 0.0, 1.0


@dataclass(frozen=True, slots=True)
class Dropped:
    """A column that its party holds and the model does not use. It is not read; the job equals one that never named it."""

    kind: ClassVar[str] = "dropped"

    def features(self, column: str) -> tuple[str, ...]:
        """Return (): the column has no coordinate."""
        return ()


TRUTHS = ("false", "true")


def categories_of(declared: Declaration | Dropped) -> tuple[str, ...]:
    """Return the categories of a column in order, as text; () for a column of numbers."""
    if isinstance(declared, Boolean):
        return TRUTHS
    return declared.texts if isinstance(declared, Categorical) else ()


Declaration: TypeAlias = Numeric | Boolean | Categorical
"""Declaration of a column that is read."""

_UNDECLARED = Numeric()
KINDS: dict[str, type[Declaration | Dropped]] = {kind.kind: kind for kind in (Numeric, Boolean, Categorical, Dropped)}


@dataclass(frozen=True, slots=True, init=False)
class Schema:
    """The declarations of all columns. A column that is not named is numeric, without bounds and without a fill.

    columns : {column: Numeric(...), Boolean(...) or Categorical(...)}; Dropped() columns are not part of a schema.
    bounds : {column: (lo, hi)}, short for Numeric(bounds=(lo, hi)).
    fill : {column: value}, for any declaration without a fill of its own.

    Raises SpecificationError that names the column.
    """

    _declared: tuple[tuple[str, Declaration], ...]
    _of: Mapping[str, Declaration] = field(compare=False, repr=False)

    def __init__(
        self,
        columns: Mapping[str, Declaration | Dropped] | None = None,
        *,
        bounds: Mapping[str, Sequence[float]] | None = None,
        fill: Mapping[str, Any] | None = None,
    ) -> None:
        plain = {column: _arguments(column, declaration) for column, declaration in (columns or {}).items()}
        for option, values in (("bounds", bounds or {}), ("fill", fill or {})):
            for column, value in values.items():
                arguments = plain.setdefault(column, {"kind": Numeric.kind})
                if option in arguments:
                    raise SpecificationError(f"column {column!r}: {option} are declared twice")
                arguments[option] = value
        built = [
            (column, _read(column, _declaration(column, arguments))) for column, arguments in sorted(plain.items())
        ]
        self._keep(built)

    def _keep(self, declared: Sequence[tuple[str, Declaration]]) -> None:
        object.__setattr__(self, "_declared", tuple(declared))
        object.__setattr__(self, "_of", dict(declared))

    def __getitem__(self, column: str) -> Declaration:
        return self._of.get(column, _UNDECLARED)

    def bounded(self, columns: Iterable[str], bounds: Sequence[float]) -> Schema:
        """Return a schema with these bounds for the numeric columns among `columns` that have none."""
        plain, declared = Numeric(bounds=checked_bounds(bounds)), dict(self._of)
        for column in columns:
            found = declared.get(column, _UNDECLARED)
            if isinstance(found, Numeric) and found.bounds is None:
                declared[column] = (
                    plain
                    if found == _UNDECLARED
                    else _read(column, _declaration(column, {**_arguments(column, found), "bounds": plain.bounds}))
                )
        whole = Schema()
        whole._keep(sorted(declared.items()))
        return whole

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are declared, sorted."""
        return tuple(column for column, _ in self._declared)

    def check(self, known: Collection[str]) -> None:
        """Check that every declared column exists. Raises SpecificationError with the nearest known names."""
        for column in self.columns:
            if column not in known:
                close = nearest(column, known)
                raise SpecificationError(
                    f"column {column!r} is declared, and no party of the partition holds it{close}"
                    + ("; spell it alike in the partition, the declarations and the data" if close else "")
                )

    def features(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the coordinates of some columns, in order; a categorical column has several."""
        return tuple(name for column in columns for name in self[column].features(column))

    def unbounded(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the columns among `columns` that have no bounds."""
        return tuple(column for column in columns if self[column].limits == UNBOUNDED)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain tables and lists, for TOML: {column: {kind: ..., ...}}."""
        return {
            column: {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in _arguments(column, declaration).items()
            }
            for column, declaration in self._declared
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Mapping[str, Any]]) -> Schema:
        """Build from the output of `to_dict`; `kind` may be left out for numeric columns."""
        return cls({column: _read(column, _declaration(column, arguments)) for column, arguments in plain.items()})


def declarations(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Declaration | Dropped]:
    """Return declarations from plain tables, including dropped columns. Raises SpecificationError that names the column."""
    return {column: _declaration(column, arguments) for column, arguments in plain.items()}


def _read(column: str, declaration: Declaration | Dropped) -> Declaration:
    if isinstance(declaration, Dropped):
        raise SpecificationError(f"column {column!r} is dropped, and is not to be declared here")
    return declaration


def _arguments(column: str, declaration: Declaration | Dropped) -> dict[str, Any]:
    if not isinstance(declaration, Numeric | Boolean | Categorical | Dropped):
        raise SpecificationError(
            f"column {column!r}: declare Numeric, Boolean, Categorical or Dropped, not {declaration!r}"
        )
    given = {field.name: getattr(declaration, field.name) for field in fields(declaration)}
    return {"kind": declaration.kind, **{name: value for name, value in given.items() if value is not None}}


def _declaration(column: str, arguments: Mapping[str, Any]) -> Declaration | Dropped:
    if not isinstance(arguments, Mapping):
        raise SpecificationError(f"column {column!r}: a declaration is a table, not {arguments!r}")
    kind = arguments.get("kind", Numeric.kind)
    if kind not in KINDS:
        raise SpecificationError(
            f"column {column!r}: unknown kind {kind!r}{nearest(str(kind), KINDS)}; known: {', '.join(KINDS)}"
        )
    given = {name: value for name, value in arguments.items() if name != "kind"}
    known = [field.name for field in fields(KINDS[kind])]
    for name in given:
        if name not in known:
            raise SpecificationError(
                f"column {column!r}: a {kind} column has no {name!r}{nearest(name, known)}; known: {', '.join(known)}"
            )
    if kind == Categorical.kind and "categories" not in given:
        raise SpecificationError(f"column {column!r}: declare its categories: they may not be taken from the data")
    try:
        return KINDS[kind](**given)
    except (SpecificationError, TypeError) as error:
        raise SpecificationError(f"column {column!r}: {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """Scaling x' = (x − shift) / width of every coordinate. It is derived from declarations alone and costs no privacy.

    features : (p,) names of the coordinates.
    shift, width : (p,) float64, width > 0.
    lo, hi : (p,) float64, the range of x'. Stored values satisfy |x'| ≤ reach exactly (parties.storage.dense).
    """

    features: tuple[str, ...]
    shift: Vector
    width: Vector
    lo: Vector
    hi: Vector

    @classmethod
    def of(
        cls,
        schema: Schema,
        columns: Sequence[str],
        *,
        scaling: str,
        intercept: bool,
        unshifted: Collection[str] = frozenset(),
    ) -> Scaling:
        """Derive the scaling of some columns, in order.

        scaling : 'bounds' maps the declared bounds to [−1, 1] with an intercept; without one it divides by
            max(|lo|, |hi|) and does not shift, since a shift would change the model. 'none' leaves values unchanged.
        unshifted : columns that are scaled as without an intercept, so that 0 stays 0.

        Raises SpecificationError if scaling is 'bounds' and a column has none.
        """
        if scaling not in ("bounds", "none"):
            raise SpecificationError(f"scaling must be 'bounds' or 'none', not {scaling!r}")
        if scaling == "bounds" and (missing := schema.unbounded(columns)):
            raise SpecificationError(
                f"no bounds for column {missing[0]!r}: declare {entry('bounds', missing[0], '(low, high)', '[LOW, HIGH]')}, "
                "buy them with vfl.private_bounds, or use scaling='none'"
            )
        declared = {column: schema[column] for column in columns}
        limits = [
            (0.0, 1.0) if name in _indicators(column, found.missing) else found.limits
            for column, found in declared.items()
            for name in found.features(column)
        ]
        lo, hi = np.array(limits, dtype=np.float64).reshape(-1, 2).T
        names = schema.features(columns)
        if twice := _repeated(names):
            raise SpecificationError(f"two columns yield a coordinate {twice!r}: rename one")
        shift, width = np.zeros(len(names)), np.ones(len(names))
        if scaling == "none":
            return cls(names, shift, width, lo, hi)
        width = np.maximum(np.abs(lo), np.abs(hi))
        if not intercept:
            return cls(names, shift, width, lo / width, hi / width)
        free = np.array([c not in unshifted for c, found in declared.items() for _ in found.features(c)], dtype=bool)
        # Halves first: hi − lo overflows for bounds near the largest float.
        shift, width = np.where(free, hi / 2 + lo / 2, 0.0), np.where(free, hi / 2 - lo / 2, width)
        return cls(names, shift, width, np.where(free, -1.0, lo / width), np.where(free, 1.0, hi / width))

    @property
    def reach(self) -> Vector:
        """(p,) bounds B_j ≥ |x'_j|; inf without declared bounds."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def original_units(self, w: Vector, intercept: float = 0.0) -> tuple[Vector, float]:
        """Return coefficients (p,) and intercept for x from those for x': w/width and b − Σ w·shift/width."""
        coef = np.asarray(w, dtype=np.float64) / self.width
        return coef, float(intercept - coef @ self.shift)

    def scaled_units(self, coef: Vector, intercept: float = 0.0) -> tuple[Vector, float]:
        """Return coefficients (p,) and intercept for x' from those for x: the inverse of `original_units`."""
        coef = np.asarray(coef, dtype=np.float64)
        return coef * self.width, float(intercept + coef @ self.shift)


@dataclass(frozen=True, slots=True)
class BinaryLabel:
    """A label of two classes, which become −1 and +1.

    classes : (negative, positive), compared as text; None accepts 0/1, −1/1 and false/true. The negative class may be a
        tuple of labels.
    """

    classes: tuple[Category | tuple[Category, ...], Category] | None = None

    def __post_init__(self) -> None:
        if self.classes is None:
            return
        given: Any = self.classes
        several = isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], tuple | list)
        listed = (*given[0], given[1]) if several else given
        enough = isinstance(listed, tuple | list) and (len(listed) >= 2 if several else len(listed) == 2)
        if not enough or len({canonical_category(c) for c in listed}) != len(listed):
            raise SpecificationError(f"classes are two different labels, the negative one first, not {self.classes!r}")
        object.__setattr__(self, "classes", (tuple(given[0]), given[1]) if several else tuple(given))

    @property
    def listed(self) -> tuple[Category, ...]:
        """All declared labels, the positive one last."""
        if self.classes is None:
            return ()
        negative, positive = self.classes
        return (*(negative if isinstance(negative, tuple) else (negative,)), positive)


@dataclass(frozen=True, slots=True)
class RealLabel:
    """A label of numbers.

    bounds : (lo, hi); values outside are clamped. None declares nothing.
    """

    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        if self.bounds is not None:
            object.__setattr__(self, "bounds", checked_bounds(self.bounds))


Label: TypeAlias = BinaryLabel | RealLabel
