"""The model, or one party's part of it, as a sum of formulas, from which exports are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import SpecificationError
from vfl.features.formula import Apply, Case, Cell, Condition
from vfl.features.formulas import formulas_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.features.formula import Formula
    from vfl.launch.run.result import Result
    from vfl.losses import Loss

LARGEST = 1e9
"""A margin beyond the reach of every loss."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A margin: constant + Σ weight·formula.

    terms : (weight, formula), without weights of 0. guards : formulas that are 0, or unknown for cells that are refused.
    """

    constant: float
    terms: tuple[tuple[float, Formula], ...]
    guards: tuple[Formula, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Return the cells of all formulas, each once, in order."""
        formulas = (*(formula for _, formula in self.terms), *self.guards)
        return tuple(dict.fromkeys(cell for formula in formulas for cell in _cells(formula)))


def sum_of(result: Result, party: str | None = None) -> Sum:
    """Return the margin of the model, or one party's part of it, which holds no other party's coefficients.

    The parts of all parties and the intercept on scaled features add up to the margin. Columns have their names in one table of
    all parties, or with `party` those in its own data.

    Raises SpecificationError for multinomial loss and for a column without formulas.
    """
    job = result.applied
    if job.multinomial:
        raise SpecificationError("SQL and ONNX have one margin, and multinomial loss has K: export to scikit-learn")
    owners = job.partition.parties if party is None else (party,)
    by_name = dict(zip(result.coordinates, map(float, result.w), strict=True))
    constant = float(result.intercept_on_scaled) if party is None else 0.0
    terms: list[tuple[float, Formula]] = []
    guards: list[Formula] = []
    for owner in owners:
        columns = job.partition.columns(owner)
        scaling = job.scaling_of(columns)
        position = {name: k for k, name in enumerate(scaling.features)}
        names = job.table_names[owner]
        for column in columns:
            declared, sources = job.schema[column], job.schema.sources(column)
            sources = tuple(names[source] if party is None else source for source in sources)
            made, refused = formulas_of(declared, column, sources)
            guards += refused
            for name, formula in zip(declared.features(column), made, strict=True):
                k = position[name]
                weight = by_name[name] / float(scaling.width[k])
                constant -= weight * float(scaling.shift[k])
                terms.append((weight, formula))
    return Sum(constant, tuple(terms), tuple(guards))


def reach_of(loss: Loss) -> tuple[float, float]:
    """Return the margins beyond which the response of a loss with a log link is constant."""
    with np.errstate(all="ignore"):
        low, high = np.log(loss.response(np.array([-LARGEST, LARGEST])))
    return float(low), float(high)


def _cells(formula: Formula) -> Iterator[Cell]:
    if isinstance(formula, Cell):
        yield formula
    elif isinstance(formula, Apply):
        for one in formula.args:
            yield from _cells(one)
    elif isinstance(formula, Case):
        for condition, one in formula.cases:
            yield from _of_condition(condition)
            yield from _cells(one)
        yield from _cells(formula.otherwise)


def _of_condition(condition: Condition) -> Iterator[Cell]:
    for one in (condition.a, condition.b):
        if not isinstance(one, str):
            yield from _cells(one)
