"""A model, or one party's part of it, as a sum of formulas. Exports are written from this sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import SpecificationError
from vfl.features.formula import Cell, parts_of, shared
from vfl.features.formulas import formulas_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.features.formula import Formula
    from vfl.job import Job
    from vfl.launch.run.model import Model
    from vfl.losses import Loss

LARGEST = 1e9
"""A margin at which every loss has reached a constant response."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A margin as a sum: constant + Σ weight·formula.

    terms : pairs (weight, formula). guards : formulas that are 0, or unknown if a cell is refused. made : {name: formula} of
        subformulas that several formulas share.
    """

    constant: float
    terms: tuple[tuple[float, Formula], ...]
    guards: tuple[Formula, ...]
    made: dict[Cell, Formula]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cells of the data that all formulas read, each cell once, in order."""
        formulas = (*self.made.values(), *(formula for _, formula in self.terms), *self.guards)
        found = dict.fromkeys(cell for formula in formulas for cell in cells_of(formula))
        return tuple(cell for cell in found if cell.content != "made")


def sum_of(result: Model, party: str | None = None) -> Sum:
    """Return the margin of the model, or one party's part of the margin without other parties' coefficients.

    The parts of all parties and the intercept on scaled features add up to the margin. Columns have their names in one table
    of all parties; with `party`, the names in the party's own data.

    Raises SpecificationError for multinomial loss and for a column without formulas.
    """
    job = result.applied
    if job.multinomial:
        raise SpecificationError(
            "multinomial loss has K margins, and SQL, ONNX and exports for one party have one: export to scikit-learn"
        )
    owners = job.partition.parties if party is None else (party,)
    by_name = dict(zip(result.coordinates, map(float, result.w), strict=True))
    constant = float(result.intercept_on_scaled) if party is None else 0.0
    terms: list[tuple[float, Formula]] = []
    guards: list[Formula] = []
    for owner in owners:
        made_of, refused = coordinates_of(job, owner, in_one_table=party is None)
        guards += refused
        scaling = job.scaling_of(job.partition.columns(owner))
        position = {name: k for k, name in enumerate(scaling.features)}
        for name, formula in made_of.items():
            weight = by_name[name] / float(scaling.width[position[name]])
            constant -= weight * float(scaling.shift[position[name]])
            terms.append((weight, formula))
    made, formulas = shared([*(formula for _, formula in terms), *guards])
    weights = [weight for weight, _ in terms]
    return Sum(constant, tuple(zip(weights, formulas, strict=False)), tuple(formulas[len(terms) :]), made)


def coordinates_of(job: Job, owner: str, *, in_one_table: bool) -> tuple[dict[str, Formula], list[Formula]]:
    """Return {coordinate: formula} of a party's columns, and the formulas that refuse cells (`formulas_of`).

    in_one_table : True names columns as in one table of all parties, False as in the party's own data.
    """
    found: dict[str, Formula] = {}
    guards: list[Formula] = []
    names = job.table_names[owner]
    for column in job.partition.columns(owner):
        declared, sources = job.schema[column], job.schema.sources(column)
        own, refused = formulas_of(declared, column, [names[one] if in_one_table else one for one in sources])
        found |= zip(declared.features(column), own, strict=True)
        guards += refused
    return found, guards


def reach_of(loss: Loss) -> tuple[float, float]:
    """Return the margins beyond which the response of a loss with a log link is constant."""
    with np.errstate(all="ignore"):
        low, high = np.log(loss.response(np.array([-LARGEST, LARGEST])))
    return float(low), float(high)


def cells_of(formula: Formula) -> Iterator[Cell]:
    """Yield the cells that a formula reads, once per use."""
    if isinstance(formula, Cell):
        yield formula
        return
    for part in parts_of(formula):
        yield from cells_of(part)
