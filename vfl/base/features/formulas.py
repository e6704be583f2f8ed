"""Formulas of any declared column, for SQL, ONNX and NumPy: of its coordinates, and of the refusal of undeclared cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfl.base.columns import Boolean, Categorical, Numeric, canonical_category
from vfl.base.features.base import OfCells
from vfl.base.features.formula import UNKNOWN, Case, Cell, Condition, Formula, apply, clipped, where_missing
from vfl.base.features.products import Crossed, Side
from vfl.base.features.text import form_of, is_category
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from collections.abc import Sequence


def formulas_of(declared: Any, column: str, sources: Sequence[str]) -> tuple[list[Formula], list[Formula]]:
    """Return two lists: formulas of a column's coordinates; guards, which are 0, or unknown for a cell to refuse.

    sources : columns of the data from which the column is made.

    Raises SpecificationError for a kind of column without formulas.
    """
    if isinstance(declared, Crossed):
        left, right = (_of_side(side, source) for side, source in zip(declared.sides, sources, strict=True))
        products = [apply("multiply", x, y) for x in left[0] for y in right[0]]
        return [clipped(x, *ends) for x, ends in zip(products, declared.ranges, strict=True)], left[1] + right[1]
    return _of_cells(declared, column, sources[0], None)


def _of_side(side: Side, source: str) -> tuple[list[Formula], list[Formula]]:
    """Return formulas and guards for one column of a pair. Each coordinate is taken minus the middle of its range."""
    own, guards = _of_cells(side.declared, side.name, source, side.middles)
    return [apply("subtract", x, m) if m else x for x, m in zip(own, side.middles, strict=False)], guards


def _of_cells(
    declared: Any, column: str, source: str, gaps: Sequence[float] | None
) -> tuple[list[Formula], list[Formula]]:
    """Return formulas and guards of a column that is not a pair. gaps : as for `OfCells.made`."""
    if isinstance(declared, OfCells):
        return _of_feature(declared, Cell(source, declared.form), gaps), []
    if isinstance(declared, Categorical):
        return _categories(declared, Cell(source, form_of(declared.categories)))
    if not isinstance(declared, Numeric | Boolean):
        raise SpecificationError(
            f"column {column!r} of kind {declared.kind!r} cannot be exported as formulas: use vfl's own model"
        )
    cell = Cell(source, "number" if isinstance(declared, Numeric) else "boolean")
    instead = UNKNOWN if declared.instead is None else declared.instead
    neither = Case(((Condition("less", cell, 0.0), UNKNOWN),), cell)
    x = clipped(cell, *declared.limits) if isinstance(declared, Numeric) else neither
    return [where_missing(cell, instead, x), *_indicator(declared, [Condition("missing", cell)])], []


def _indicator(declared: Any, absent: list[Condition]) -> list[Formula]:
    return [] if declared.missing is None else [Case(tuple((one, 1.0) for one in absent), 0.0)]


def _of_feature(declared: OfCells, cell: Cell, gaps: Sequence[float] | None) -> list[Formula]:
    absent, undeclared = [Condition("missing", cell)], declared.undeclared(cell)
    if undeclared is not None and getattr(declared, "unknown", "") == "missing":
        absent.append(Condition("equal", undeclared, 1.0))
    known = declared.fill is not None or declared.missing is not None
    at_missing = [float(vector[0]) if known else UNKNOWN for vector in declared.made(declared.filled_cell(), gaps)]
    own = [Case(tuple((one, m) for one in absent), x) for m, x in zip(at_missing, declared.formulas(cell), strict=True)]
    return [*own, *_indicator(declared, absent)]


def _categories(declared: Categorical, cell: Cell) -> tuple[list[Formula], list[Formula]]:
    fill = None if declared.fill is None else canonical_category(declared.fill)
    missing = Condition("missing", cell)
    found: list[Formula] = [
        Case(((missing, float(text == fill)), (is_category(cell, category), 1.0)), 0.0)
        for category, text in zip(declared.categories, declared.texts, strict=True)
    ]
    at_missing: Formula = UNKNOWN if fill is None and declared.missing is None else 0.0
    known = tuple((is_category(cell, category), 0.0) for category in declared.categories)
    at_others: Formula = UNKNOWN if declared.unknown == "refuse" else 0.0
    return found + _indicator(declared, [missing]), [Case(((missing, at_missing), *known), at_others)]
