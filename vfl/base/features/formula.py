"""Formulas that compute coordinates from cells, in a form that can be written as SQL, ONNX or NumPy code.

A formula is a number, a cell of one column, an operation, or a choice by conditions. An unknown value is NAN, written as NULL
in SQL. An operation on an unknown value gives an unknown value. A condition on it is false, except for `missing`.
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

    content : 'number'; 'text'; 'boolean', which is 1, 0, or −1 for a cell that is neither; 'date', the seconds since 1970, or
        NO_DATE; 'hash', the MurmurHash3 of text as a signed number; or 'made', for the result of a shared formula of this name.
    """

    column: str
    content: str = "number"


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on the results of other formulas.

    name : 'add', 'subtract', 'multiply', 'divide', 'remainder' (of a number ≥ 0), 'power', 'log', 'floor', 'sin' or 'cos'.
    """

    name: str
    args: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: 'missing' (a is a missing cell), 'less' (a < b), 'equal' (a = b), or 'is' (a is a cell with the text b)."""

    name: str
    a: Formula
    b: Formula | str = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """A choice: the formula of the first condition that holds, or `otherwise` if no condition holds."""

    cases: tuple[tuple[Condition, Formula], ...]
    otherwise: Formula


Formula: TypeAlias = float | Cell | Apply | Case
UNKNOWN = math.nan
BLANK = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""All white space that `str.strip` removes. No exported form may trim other characters than `predict` does."""
NO_DATE = 1e300
"""Value of a 'date' cell that is not a date; −NO_DATE if exported SQL cannot decide whether the cell is a date."""


def apply(name: str, *args: Formula) -> Formula:
    """Return the formula of an operation."""
    return Apply(name, args)


def clipped(x: Formula, low: float, high: float) -> Formula:
    """Return the formula of x clamped to [low, high]."""
    cases = ((Condition("less", x, low), low), (Condition("less", high, x), high))
    return Case(tuple(case for case in cases if math.isfinite(case[1])), x)


def steps_at(x: Formula, edges: tuple[float, ...], values: tuple[Formula, ...]) -> Formula:
    """Return the formula of a step function: values[k] for edges[k − 1] ≤ x < edges[k]. There is one value more than edges."""
    return Case(tuple((Condition("less", x, e), v) for e, v in zip(edges, values[:-1], strict=True)), values[-1])


def polynomial(x: Formula, coefficients: tuple[float, ...]) -> Formula:
    """Return the formula of Σ c_k x^k, by Horner's rule. coefficients : c_0, c_1, ..."""
    found: Formula = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        found = apply("add", apply("multiply", found, x), c)
    return found


def where_missing(cell: Cell, instead: float, x: Formula) -> Formula:
    """Return a formula that is `instead` for a missing cell, else x."""
    return Case(((Condition("missing", cell), instead),), x)


def over_parts(formula: Formula, function: Callable[[Formula], Formula]) -> Formula:
    """Return the formula, with each of its direct parts replaced by function(part)."""
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
    """Return the formulas of which a formula is directly made."""
    found: list[Formula] = []

    def keep(part: Formula) -> Formula:
        found.append(part)
        return part

    over_parts(formula, keep)
    return found


def shared(formulas: Iterable[Formula]) -> tuple[dict[Cell, Formula], list[Formula]]:
    """Return {cell: formula} for parts that occur more than once, and the given formulas rewritten with these cells.

    A part comes after all parts that it uses.
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
