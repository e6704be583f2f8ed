"""Formulas of any declared column, for exports: those of its coordinates, and those that refuse cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl.columns import Boolean, Categorical, Numeric, canonical_category
from vfl.errors import SpecificationError
from vfl.features.base import Feature, OfCells
from vfl.features.formula import UNKNOWN, Case, Cell, Condition, Formula, apply, clipped, where_missing
from vfl.features.products import Crossed

if TYPE_CHECKING:
    from collections.abc import Sequence


def formulas_of(declared: Any, column: str, sources: Sequence[str]) -> tuple[list[Formula], list[Formula]]:
    """Return the formulas of all coordinates of a column, and formulas that are 0, or unknown for a cell that is refused.

    sources : columns of the data from which the column is made.

    Raises SpecificationError for a kind of column without formulas.
    """
    if isinstance(declared, Crossed):
        (one, a, first), (other, b, _) = declared.a, declared.b
        (left, guards), (right, more) = (
            formulas_of(side, name, own)
            for name, side, own in ((one, a, sources[: len(first)]), (other, b, sources[len(first) :]))
        )
        left, right = (own[: len(own) - (side.missing is not None)] for own, side in ((left, a), (right, b)))
        products = [apply("multiply", x, y) for x in left for y in right]
        return [clipped(x, *ends) for x, ends in zip(products, declared.ranges, strict=True)], guards + more
    cell = Cell(sources[0], _content(declared))
    indicator: list[Formula] = [] if declared.missing is None else [Case(((Condition("missing", cell), 1.0),), 0.0)]
    if isinstance(declared, Categorical):
        return _categories(declared, cell, indicator)
    if isinstance(declared, Feature):
        own = declared.formulas(cell) if isinstance(declared, OfCells) else None
        if own is None or not isinstance(declared, OfCells):
            raise _none(declared, column)
        if declared.fill is None and declared.missing is None:
            at_missing = [UNKNOWN] * len(own)
        else:
            at_missing = [float(vector[0]) for vector in declared.made(declared.filled_cell())]
        match own:
            case [Case(cases=known)] if getattr(declared, "unknown", "") == "missing":  # as each cell of no case is
                indicator = [Case(tuple((condition, 0.0) for condition, _ in known), 1.0) for _ in indicator]
                return [Case(known, at_missing[0]), *indicator], []
        return [where_missing(cell, m, x) for m, x in zip(at_missing, own, strict=True)] + indicator, []
    instead = UNKNOWN if declared.instead is None else declared.instead
    if isinstance(declared, Boolean):
        return [where_missing(cell, instead, cell), *indicator], [Case(((Condition("less", cell, 0.0), UNKNOWN),), 0.0)]
    return [where_missing(cell, instead, clipped(cell, *declared.limits)), *indicator], []


def _content(declared: Any) -> str:
    categories = getattr(declared, "categories", None)
    if categories is not None:
        numeric = all(isinstance(c, int | float) and not isinstance(c, bool) for c in categories)
        return "number" if numeric else "text"
    if isinstance(declared, Numeric | Boolean):
        return declared.kind.replace("numeric", "number")
    return str(declared.content)


def is_category(cell: Cell, category: Any) -> Condition:
    """Return the condition that a cell is a declared category."""
    if cell.content == "number":
        return Condition("equal", cell, float(category))
    return Condition("is", cell, canonical_category(category))


def _categories(declared: Categorical, cell: Cell, indicator: list[Formula]) -> tuple[list[Formula], list[Formula]]:
    fill = None if declared.fill is None else canonical_category(declared.fill)
    missing = Condition("missing", cell)
    found: list[Formula] = [
        Case(((missing, float(text == fill)), (is_category(cell, category), 1.0)), 0.0)
        for category, text in zip(declared.categories, declared.texts, strict=True)
    ]
    at_missing: Formula = UNKNOWN if fill is None and declared.missing is None else 0.0
    known = tuple((is_category(cell, category), 0.0) for category in declared.categories)
    at_others: Formula = UNKNOWN if declared.unknown == "refuse" else 0.0
    return found + indicator, [Case(((missing, at_missing), *known), at_others)]


_WHY = {
    "date": "which read dates and their time zones in their own ways",
    "hashed": "which have no MurmurHash3",
}


def _none(declared: Any, column: str) -> SpecificationError:
    why = _WHY.get(declared.kind, "as its owner declares none")
    return SpecificationError(
        f"column {column!r} of kind {declared.kind!r} has no formula for SQL or ONNX, {why}: export to scikit-learn, keep "
        "vfl's own model, or train on columns of numbers or categories that the table itself holds"
    )
