"""Formulas of coordinates: how they follow from a cell, in a form that exports write as SQL or ONNX.

A formula is a number, a cell of one column, an operation, or a choice by conditions. An unknown value is NAN, written as NULL
in SQL; every operation with it is unknown. Conditions that involve an unknown value do not hold, except `missing`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a column. content : 'number', 'text', or 'boolean', which is 1, 0, or −1 for a cell that is neither."""

    column: str
    content: str = "number"


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation on formulas: 'add', 'subtract', 'multiply', 'divide', 'power', 'log', 'sin' or 'cos'."""

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
    """The formula of the first condition that holds, else `otherwise`."""

    cases: tuple[tuple[Condition, Formula], ...]
    otherwise: Formula


Formula: TypeAlias = float | Cell | Apply | Case
UNKNOWN = math.nan


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
