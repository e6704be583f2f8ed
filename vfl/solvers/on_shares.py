"""Solvers on shares: those that trust='secure' offers, and the shape of the sums that they open."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError, SpecificationError
from vfl.privacy.events import Gaussian
from vfl.solvers.gd import GD
from vfl.solvers.noisy_gram import NoisyGram, Row
from vfl.solvers.skgd import SkGD
from vfl.solvers.smoothness import Curvature
from vfl.solvers.visits import Walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages import Backward
    from vfl.problem import Problem
    from vfl.solvers.protocol import Solver

OFFERED = {"logistic": ("SkGD", "CD", "GD"), "squared": ("NoisyGram",)}
"""Solvers that need nothing but sums of residuals times columns, or products of columns, by loss."""
FEW_CUT = 2.0
"""Two thirds of the longest row at least, so that few rows are cut. Chosen on one data set, California housing at ε = 1, among
1, 2 and 3."""
NEEDS = {
    "GCD": "scores of all coordinates",
    "SGD": "secret batches",
    "SVRG": "secret batches",
    "SCD": "a dual state",
    "OutputPerturbation": "an un-noised end",
}
"""What solvers need of margins that shares do not give."""


def why_not(solver: Solver, loss: str) -> str:
    """Return what a solver with a loss needs that shares do not give; '' if trust='secure' offers them."""
    if solver.name in OFFERED.get(loss, ()):
        return ""
    if solver.name in NEEDS:
        return NEEDS[solver.name]
    if solver.name == "NoisyGram":
        return "squared loss"
    return (
        "a residual without a bound" if loss in ("squared", "poisson") else "a residual that is no wave of the margin"
    )


def resolved(solver: Solver, problem: Problem) -> Solver:
    """Return a solver with every option decided for a run on shares.

    A default clip of NoisyGram is FEW_CUT times that of trust='trusted', where all columns of a row are cut by one factor.
    """
    found = solver.resolve(problem)
    if (
        isinstance(solver, NoisyGram)
        and isinstance(found, NoisyGram)
        and solver.clip is None
        and found.clip is not None
    ):
        return replace(found, clip=FEW_CUT * found.clip)
    return found


@dataclass(frozen=True, slots=True)
class Rows:
    """The sums of a run on shares, from public facts.

    squares : {party: its part of the squared cap}: its coordinates where they are scaled by √M_j, else ΣB_j².
    size : of a typical scaled column over C. versions : number of models at which residuals are shared.
    together : True if all parties move at one model, False if one party does.
    """

    squares: Mapping[str, float]
    size: float
    versions: int
    together: bool


def rows_of(solver: Solver, problem: Problem) -> Rows:
    """Return the rows of a resolved solver. Raises SpecificationError for options that need clipped sums of single blocks."""
    whole = problem.layout.whole()
    if isinstance(solver, SkGD):
        if not solver.by_pass:
            raise SpecificationError(
                f"trust='secure' caps whole rows, so that {solver.name} charges whole passes: leave clip out or set it to "
                "'record', with sampling 'shuffled', 'cyclic' or 'full'"
            )
        walk = Walk(solver, problem, Curvature.flat(problem))
        # The mean square of a column divided by √M_j is 4, since M_j is a quarter of its variance.
        size = 2.0 / (float(solver.record_clip or 1.0) * math.sqrt(problem.layout.n_coordinates))
        versions = walk.n_releases if walk.sweeps else walk.n_draws
        return Rows({party: float(block.size) for party, block in whole.items()}, size, versions, not walk.sweeps)
    if isinstance(solver, GD):
        B = {party: problem.reach[block.coordinates] for party, block in whole.items()}
        size = float(problem.reach.max()) / float(solver.clip or 1.0)
        return Rows({party: float(own @ own) for party, own in B.items()}, size, solver.passes or 1, together=True)
    raise SpecificationError(f"trust='secure' does not offer {solver.name}")


@dataclass(frozen=True, slots=True)
class Products:
    """The one release of all products of columns, from public facts.

    clip : C. squares : {party: ΣB_j², with the label's at its party}. label_scale, label_centre : of t(y − c). event : of the
    release. first : the query that it is charged with.
    """

    clip: float
    squares: Mapping[str, float]
    label_scale: float
    label_centre: float
    event: Gaussian
    first: Backward


def products_of(solver: Solver, problem: Problem, label: str) -> Products | None:
    """Return the products that a resolved solver opens; None for a solver that opens sums of residuals.

    label : the label party.
    """
    if not isinstance(solver, NoisyGram):
        return None
    first = solver.piece(problem, 0)
    row = first.weighting
    if not isinstance(row, Row) or not isinstance(first.event, Gaussian):
        raise PrivacyError("products of columns are opened with noise")
    farthest = problem.label_range / 2 + abs(problem.label_centre - row.label_centre)
    squares = {}
    for party, block in problem.layout.whole().items():
        B = problem.reach[block.coordinates]
        squares[party] = float(B @ B) + (row.label_scale * farthest) ** 2 * (party == label)
    return Products(float(solver.clip or math.inf), squares, row.label_scale, row.label_centre, first.event, first)
