"""Formulas of coordinates: their computation from cells, in a form that exports write as SQL, ONNX or NumPy.

A formula is a number, a cell of one column, an operation, or a choice by conditions. An unknown value is NAN, written as NULL
in SQL; every operation with it is unknown. A condition on an unknown value is false, except for `missing`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a column.

    content : 'number'; 'text'; 'boolean', which is 1, 0, or −1 for a cell that is neither; 'date', the seconds since 1970 as
        written, or NO_DATE; 'hash', the MurmurHash3 of text as a signed number; or 'made', the name of a shared formula.
    """

    column: str
    content: str = "number"


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on formulas.

    name : 'add', 'subtract', 'multiply', 'divide', 'remainder' (of a number ≥ 0), 'power', 'log', 'floor', 'sin' or 'cos'.
    """

    name: str
    args: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: 'missing' (cell), 'less' (a < b), 'equal' (a = b), or 'is' (a cell of text, and the text)."""

    name: str
    a: Formula
    b: Formula | str = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """Choice: the formula of the first condition that holds, else `otherwise`."""

    cases: tuple[tuple[Condition, Formula], ...]
    otherwise: Formula


Formula: TypeAlias = float | Cell | Apply | Case
UNKNOWN = math.nan
NO_DATE = 1e300
"""The 'date' of a cell that is not a date; −NO_DATE if an export cannot decide."""


def apply(name: str, *args: Formula) -> Formula:
    """Return an operation."""
    return Apply(name, args)


def clipped(x: Formula, low: float, high: float) -> Formula:
    """Return x, clamped to [low, high]."""
    cases = ((Condition("less", x, low), low), (Condition("less", high, x), high))
    return Case(tuple(case for case in cases if math.isfinite(case[1])), x)


def steps_at(x: Formula, edges: tuple[float, ...], values: tuple[Formula, ...]) -> Formula:
    """Return values[k] for edges[k − 1] ≤ x < edges[k]; one value more than edges."""
    return Case(tuple((Condition("less", x, e), v) for e, v in zip(edges, values[:-1], strict=True)), values[-1])


def polynomial(x: Formula, coefficients: tuple[float, ...]) -> Formula:
    """Return Σ c_k x^k by Horner's rule. coefficients : c_0, c_1, ..."""
    found: Formula = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        found = apply("add", apply("multiply", found, x), c)
    return found


def where_missing(cell: Cell, instead: float, x: Formula) -> Formula:
    """Return x, or `instead` for a missing cell."""
    return Case(((Condition("missing", cell), instead),), x)


def over_parts(formula: Formula, function: Callable[[Formula], Formula]) -> Formula:
    """Return the formula with each of its direct parts replaced by function(part)."""
    if isinstance(formula, Apply):
        return Apply(formula.name, tuple(map(function, formula.args)))
    if isinstance(formula, Case):
        cases = [
            (Condition(c.name, function(c.a), c.b if isinstance(c.b, str) else function(c.b)), function(one))
            for c, one in formula.cases
        ]
        return Case(tuple(cases), function(formula.otherwise))
    return formula


def parts_of(formula: Formula) -> list[Formula]:
    """Return the direct parts of a formula."""
    found: list[Formula] = []

    def keep(part: Formula) -> Formula:
        found.append(part)
        return part

    over_parts(formula, keep)
    return found


def shared(formulas: Iterable[Formula]) -> tuple[dict[Cell, Formula], list[Formula]]:
    """Return parts that occur more than once, as {cell: formula}, and the formulas written with these cells.

    A part comes after the parts that it uses.
    """
    given = list(formulas)
    seen: Counter[Formula] = Counter()
    found: dict[Cell, Formula] = {}
    made: dict[Formula, Formula] = {}

    def count(formula: Formula) -> None:
        seen[formula] += 1
        if seen[formula] == 1:
            for part in parts_of(formula):
                count(part)

    def named(formula: Formula) -> Formula:
        if not isinstance(formula, Apply | Case):
            return formula
        if formula not in made:
            made[formula] = over_parts(formula, named)
            if seen[formula] > 1:
                cell = Cell(f"vfl_made_{len(found)}", "made")
                found[cell], made[formula] = made[formula], cell
        return made[formula]

    for formula in given:
        count(formula)
    return found, [named(formula) for formula in given]
