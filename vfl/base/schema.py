"""Public declarations about each column, and the scaling that follows from the declarations. Nothing is taken from data.

A column becomes one coordinate of the model (numeric, boolean), one coordinate per declared category (categorical), or the
coordinates of a feature that its owner computes (vfl.base.features). Scaling, sensitivities and storage use only the declared
names and ranges of the coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from vfl.base.columns import (
    UNBOUNDED,
    Boolean,
    Bounds,
    Categorical,
    Category,
    Dropped,
    Known,
    Numeric,
    canonical_category,
    checked_bounds,
    indicators,
    repeated,
)
from vfl.base.documents import built
from vfl.base.features import (
    FEATURES,
    Aggregate,
    Crossed,
    Curve,
    Feature,
    FeatureKind,
    Pair,
    Side,
    contents_of,
    ranges_of,
)
from vfl.base.features.products import PIECES
from vfl.errors import SpecificationError, entry, nearest, no_bounds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from vfl.base.types import Vector

Declaration: TypeAlias = Numeric | Boolean | Categorical | FeatureKind | Crossed
"""Declaration of a column that is read from the data."""

_UNDECLARED = Numeric()
KINDS: dict[str, type[Declaration | Dropped]] = {
    kind.kind: kind for kind in (Numeric, Boolean, Categorical, Dropped, *FEATURES, Known)
}
MOST_CLASSES = 100
"""Largest number of classes of multinomial loss. Margins and messages grow with the number of classes."""
MOST_PRODUCTS = 4096
"""Largest number of coordinates of a feature that is a product of two columns."""
CHOSEN = ("categorical", "ordinal")
"""Kinds whose categories may not be taken from the data."""


@dataclass(frozen=True, slots=True, init=False)
class Schema:
    """Declarations of all columns. A column without a declaration is numeric, without bounds and without a fill.

    columns : {column: Numeric(...), Boolean(...), Categorical(...) or a feature (vfl.base.features)}. Columns that are
        Dropped() are not part of a schema.
    bounds : {column: (lo, hi)}, short for Numeric(bounds=(lo, hi)).

    Raises SpecificationError, whose message names the column.
    """

    _declared: tuple[tuple[str, Declaration], ...]
    _of: Mapping[str, Declaration] = field(compare=False, repr=False)
    _local: Mapping[str, str] = field(compare=False, repr=False)

    def __init__(
        self,
        columns: Mapping[str, Declaration | Dropped] | None = None,
        *,
        bounds: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        plain = {column: _arguments(column, declaration) for column, declaration in (columns or {}).items()}
        for column, limits in (bounds or {}).items():
            arguments = plain.setdefault(column, {"kind": Numeric.kind})
            if "bounds" in arguments:
                raise SpecificationError(f"column {column!r}: `bounds` is declared twice")
            arguments["bounds"] = limits
        self._keep([(column, _read(column, _declaration(column, given))) for column, given in sorted(plain.items())])

    def _keep(self, declared: Sequence[tuple[str, Declaration]]) -> None:
        object.__setattr__(self, "_declared", tuple(declared))
        object.__setattr__(self, "_of", dict(declared))
        object.__setattr__(self, "_local", {})

    def __getitem__(self, column: str) -> Declaration:
        return self._of.get(column, _UNDECLARED)

    def bounded(self, columns: Iterable[str], bounds: Sequence[float]) -> Schema:
        """Return a schema with these bounds for the numeric columns among `columns` that have no bounds."""
        plain, declared = Numeric(bounds=checked_bounds(bounds)), dict(self._of)
        for column in columns:
            found = declared.get(column, _UNDECLARED)
            if "bounds" in {f.name for f in fields(found)} and found.limits == UNBOUNDED:
                given = {**_arguments(column, found), "bounds": plain.bounds}
                declared[column] = plain if found == _UNDECLARED else _read(column, _declaration(column, given))
        whole = Schema()
        whole._keep(sorted(declared.items()))
        return whole

    def curved(self, columns: Iterable[str], curve: Curve) -> Schema:
        """Return a schema with this curve for the columns among `columns` that are numbers with bounds.

        Raises SpecificationError, whose message names the column.
        """
        declared = dict(self._of)
        for column in columns:
            found = declared.get(column, _UNDECLARED)
            if isinstance(found, Numeric) and found.bounds is not None:
                given = {**_arguments(column, curve), **_arguments(column, found), "kind": Curve.kind}
                declared[column] = _read(column, _declaration(column, given))
        whole = Schema()
        whole._keep(sorted(declared.items()))
        return whole

    def filled(self, columns: Iterable[str], fill: Mapping[str, Any]) -> Schema:
        """Return a schema with these fills for those of `columns` that declare neither a fill nor an indicator.

        fill : {column of the party's data: value}. Raises SpecificationError, whose message names the column.
        """

        def with_fill(source: str, found: Any) -> Any:
            if source not in fill or found.fill is not None or found.missing is not None:
                return found
            return _read(source, _declaration(source, {**_arguments(source, found), "fill": fill[source]}))

        def of(column: str) -> Any:
            found = self[column]
            if isinstance(found, Crossed):
                return Crossed(*(replace(side, declared=with_fill(side.source, side.declared)) for side in found.sides))
            return with_fill(self.sources(column)[0], found)

        whole = Schema()
        object.__setattr__(whole, "_declared", self._declared)
        object.__setattr__(whole, "_local", self._local)
        object.__setattr__(whole, "_of", {**self._of, **{column: of(column) for column in columns}})
        return whole

    def placed(self, party_of: Mapping[str, str], local: Mapping[str, str]) -> Schema:
        """Return a schema with facts of the partition: the source of each column, and both columns of each product (pair).

        party_of : {column: its party}. local : {column: name in the party's data}, for columns whose two names differ.

        Raises SpecificationError for a pair whose columns are unknown, belong to different parties, or lack a range.
        """
        whole = Schema()
        object.__setattr__(whole, "_declared", self._declared)
        object.__setattr__(whole, "_local", dict(local))
        sides = _Sides(self, party_of, local)
        crossed = {c: sides.crossed(c, found) for c, found in self._declared if isinstance(found, Pair)}
        object.__setattr__(whole, "_of", {**self._of, **crossed})
        whole._check_contents(party_of)
        for column in party_of:
            if isinstance(found := whole[column], Feature) and not np.isfinite(found.limits).all():
                if isinstance(found, Crossed):
                    raise SpecificationError(f"pair {column!r}: its products have no finite range: narrow the bounds")
                raise SpecificationError(
                    f"no bounds for column {column!r}, of kind {found.kind}: declare {entry('bounds', column)}"
                )
        return whole

    def _check_contents(self, party_of: Mapping[str, str]) -> None:
        """Check that all features made of one column read the column's cells in the same form."""
        read: dict[tuple[str, str], tuple[str, str]] = {}
        for column, party in party_of.items():
            for source, content in self.contents(column).items():
                first, form = read.setdefault((party, source), (column, content))
                if form != content:
                    raise SpecificationError(
                        f"column {source!r} of party {party!r} is read as {form} for {first!r} and as {content} for "
                        f"{column!r}: declare both of the same form"
                    )

    def sources(self, column: str) -> tuple[str, ...]:
        """Return the columns in the party's data from which a column of the partition is computed; mostly the column itself."""
        found, own = self[column], self._local.get(column, column)
        return found.sources(own) if isinstance(found, Feature) else (own,)

    def cells(self, column: str) -> tuple[str, ...]:
        """Return the columns in the party's data whose cells are read for a column: its sources, or those of an aggregate."""
        found = self[column]
        return (found.of, *((found.by,) if found.by else ())) if isinstance(found, Aggregate) else self.sources(column)

    def contents(self, column: str) -> dict[str, Any]:
        """Return {source: form of its cells}: 'number', 'boolean', 'text' or 'date'; {} for a column that its party makes."""
        if isinstance(self[column], Known):
            return {}
        return dict(zip(self.sources(column), contents_of(self[column]), strict=True))

    def bases(self) -> tuple[str, ...]:
        """Return the columns that occur in products of two columns."""
        named = [side for _, found in self._declared if isinstance(found, Pair) for side in (found.a, found.b)]
        return tuple(dict.fromkeys(named))

    @property
    def columns(self) -> tuple[str, ...]:
        """Declared columns, sorted."""
        return tuple(column for column, _ in self._declared)

    def check(self, known: Collection[str]) -> None:
        """Check that every declared column exists. SpecificationError names the nearest known columns."""
        for column in self.columns:
            if column not in known:
                if isinstance(self._of[column], Pair):
                    raise SpecificationError(f"pair {column!r} is not in the partition: list it beside its two columns")
                close = nearest(column, known)
                raise SpecificationError(
                    f"column {column!r} is declared, and no party of the partition holds it{close}"
                    + ("; spell it alike in the partition, the declarations and the data" if close else "")
                )

    def features(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the coordinates of these columns, in order; a categorical column has several coordinates."""
        return tuple(name for column in columns for name in self[column].features(column))

    def unbounded(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return those of `columns` that have no bounds."""
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
        """Return the schema that `to_dict` wrote; `kind` may be left out for numeric columns."""
        return cls({column: _read(column, _declaration(column, arguments)) for column, arguments in plain.items()})


def declarations(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Declaration | Dropped]:
    """Return declarations from plain tables, including dropped columns. SpecificationError names the wrong column."""
    return {column: _declaration(column, arguments) for column, arguments in plain.items()}


def _read(column: str, declaration: Declaration | Dropped) -> Declaration:
    if isinstance(declaration, Dropped):
        raise SpecificationError(f"column {column!r} is dropped, and is not to be declared here")
    return declaration


def _arguments(column: str, declaration: Declaration | Dropped) -> dict[str, Any]:
    if not isinstance(declaration, Numeric | Boolean | Categorical | Dropped | Feature):
        raise SpecificationError(
            f"column {column!r}: expected Numeric, Boolean, Categorical, Dropped or a derived feature, not {declaration!r}"
        )
    given = {f.name: getattr(declaration, f.name) for f in fields(declaration)}
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
    if kind in CHOSEN and "categories" not in given:
        raise SpecificationError(f"column {column!r}: declare its categories: they may not be taken from the data")
    declaration: Declaration | Dropped
    try:
        declaration = built(KINDS[kind], given, "")
    except (SpecificationError, TypeError) as error:
        raise SpecificationError(f"column {column!r}: {error}") from None
    return declaration


class _Sides:
    """Lookup of the columns that products of two columns (pairs) name."""

    def __init__(self, schema: Schema, party_of: Mapping[str, str], local: Mapping[str, str]) -> None:
        self._schema, self._party_of, self._local = schema, party_of, local

    def crossed(self, pair: str, found: Pair) -> Crossed:
        """Return a product of two columns (pair) with the declarations of both. Raises SpecificationError."""
        pieces = PIECES if found.pieces is None else found.pieces
        a, b = (self._side(pair, name, pieces) for name in (found.a, found.b))
        if a.column == b.column:
            raise SpecificationError(f"pair {pair!r} is of column {a.column!r} and itself: name two different columns")
        if (products := len(a.ranges) * len(b.ranges)) > MOST_PRODUCTS:
            raise SpecificationError(
                f"pair {pair!r} would have {products:,} coordinates, more than {MOST_PRODUCTS:,}: pair columns with fewer"
            )
        return Crossed(a, b)

    def _side(self, pair: str, name: str, pieces: int) -> Side:
        party = self._party_of.get(pair)
        known = {**{c: c for c in self._schema.columns}, **{c: c for c in self._party_of}}
        # If several parties have a column of this name, take the column of the pair's party.
        known |= {self._local[c]: c for c in self._local if self._party_of.get(c) == party}
        if name not in known:
            raise SpecificationError(
                f"pair {pair!r}: there is no column {name!r}{nearest(name, known)}; declare it, with bounds or categories; "
                "a dropped column makes no pair"
            )
        column = known[name]
        if self._party_of.get(column, party) != party:
            raise SpecificationError(
                f"pair {pair!r} of party {party!r} names column {column!r} of party {self._party_of[column]!r}, but a "
                "product needs both columns at one party. Pair columns of one party"
            )
        declared = self._schema[column]
        if isinstance(declared, Pair):
            raise SpecificationError(f"pair {pair!r}: column {column!r} is a pair itself: name two columns of the data")
        if isinstance(declared, Curve):
            if declared.shape is not None:
                raise SpecificationError(
                    f"pair {pair!r}: column {column!r} has the shape {declared.shape!r}, which a pair would not keep: leave "
                    "the shape or the pair out"
                )
            if declared.knots is None and column not in self._party_of:
                raise SpecificationError(
                    f"pair {pair!r}: the run finds knots for the columns that it trains on: put {column!r} into the "
                    "partition, or declare its knots"
                )
            declared = declared.coarser(pieces)
        if not all(np.isfinite(ends).all() for ends in ranges_of(declared)):
            raise SpecificationError(f"pair {pair!r}: {no_bounds(column)}")
        own = self._local.get(column, column)
        (source,) = declared.sources(own) if isinstance(declared, Feature) else (own,)
        side = Side(name, column, source, declared)
        if isinstance(declared, Numeric) and declared.missing is not None and declared.fill is None:
            return replace(side, declared=replace(declared, fill=side.middles[0]))  # at the middle, a distance is 0
        return side


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """Scaling x' = (x − shift) / width of every coordinate. The scaling follows from declarations alone and costs no privacy.

    features : (p,) names of the coordinates.
    shift, width : (p,) float64, width > 0.
    lo, hi : (p,) float64, ends of the range of x'. Stored values satisfy |x'| ≤ reach exactly (parties.storage.dense).
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
        """Return the scaling of these columns, in order.

        scaling : 'bounds' maps the declared bounds to [−1, 1] with an intercept. Without an intercept, 'bounds' divides by
            max(|lo|, |hi|) and does not shift, since a shift would change the model. 'none' leaves values unchanged.
        unshifted : columns that are scaled as if there were no intercept, so that 0 stays 0.

        Raises SpecificationError if scaling is 'bounds' and a column has no bounds.
        """
        if scaling not in ("bounds", "none"):
            raise SpecificationError(f"scaling must be 'bounds' or 'none', not {scaling!r}")
        if scaling == "bounds" and (missing := schema.unbounded(columns)):
            raise SpecificationError(
                f"{no_bounds(*missing)}, release them with vfl.releases.private_bounds, or use scaling='none'"
            )
        declared = {column: schema[column] for column in columns}
        limits = [
            limits
            for column, found in declared.items()
            for limits in (*ranges_of(found), *(((0.0, 1.0),) * len(indicators(column, found.missing))))
        ]
        lo, hi = np.array(limits, dtype=np.float64).reshape(-1, 2).T
        names = schema.features(columns)
        if twice := repeated(names):
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
        """Bounds B_j ≥ |x'_j|, (p,); inf without declared bounds."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def original_units(self, w: Vector, intercept: float = 0.0) -> tuple[Vector, float]:
        """Return coefficients (p,) and intercept for x, given those for x': w/width and b − Σ w·shift/width."""
        coef = np.asarray(w, dtype=np.float64) / self.width
        return coef, float(intercept - coef @ self.shift)

    def scaled_units(self, coef: Vector, intercept: float = 0.0) -> tuple[Vector, float]:
        """Return coefficients (p,) and intercept for x', given those for x. This is the inverse of `original_units`."""
        coef = np.asarray(coef, dtype=np.float64)
        return coef * self.width, float(intercept + coef @ self.shift)


@dataclass(frozen=True, slots=True)
class BinaryLabel:
    """Label with two classes, which become −1 and +1.

    classes : (negative, positive), compared as text; None accepts 0/1 and false/true. The negative class may be a
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
        """All declared labels; the positive label comes last."""
        if self.classes is None:
            return ()
        negative, positive = self.classes
        return (*(negative if isinstance(negative, tuple) else (negative,)), positive)


@dataclass(frozen=True, slots=True)
class ClassLabel:
    """Label with K classes, which become 0, ..., K − 1.

    classes : all labels that may occur, at least two; compared as text.
    """

    classes: tuple[Category, ...]

    def __post_init__(self) -> None:
        given: Any = self.classes
        flat = isinstance(given, tuple) and not any(isinstance(c, tuple | list | dict) for c in given)
        if not flat or len(given) < 2 or len({canonical_category(c) for c in given}) != len(given):
            raise SpecificationError(f"classes of multinomial loss are two or more different labels, not {given!r}")
        if len(given) > MOST_CLASSES:
            raise SpecificationError(f"multinomial loss has at most {MOST_CLASSES} classes, not {len(given)}")


@dataclass(frozen=True, slots=True)
class RealLabel:
    """Label that is a number.

    bounds : (lo, hi); values outside are clamped. None declares no bounds.
    refuse_negative : True for counts and amounts: a value below 0 is an error, since it would be clamped to a wrong label.
    """

    bounds: Bounds | None = None
    refuse_negative: bool = False

    def __post_init__(self) -> None:
        if self.bounds is not None:
            object.__setattr__(self, "bounds", checked_bounds(self.bounds))


@dataclass(frozen=True, slots=True)
class Factor:
    """Number per record, besides the label, that the label's owner holds. Values outside the bounds are clamped.

    role : 'exposure', which becomes the offset log(exposure) of the record's margin, or 'weight', which becomes the weight
        s/hi ≤ 1 of the record's loss.
    column : column of the owner's data. bounds : declared (lo, hi).
    refuse_negative : True if weights below 0, and exposures that are not above 0, are an error.
    """

    role: str
    column: str
    bounds: Bounds
    refuse_negative: bool = True

    def of(self, values: Vector) -> Vector:
        """Return the factors (n,) for values that lie within the bounds."""
        return np.log(values) if self.role == "exposure" else values / self.bounds[1]


Label: TypeAlias = BinaryLabel | ClassLabel | RealLabel
