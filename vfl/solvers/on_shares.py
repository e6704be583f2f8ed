"""Solvers for trust='secure' (training on shares), and public facts about the sums that these solvers open from shares."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError, SpecificationError
from vfl.privacy.events import Gaussian
from vfl.secure.cost import Models
from vfl.solvers.blocks.messages import Walk
from vfl.solvers.blocks.shares import Budget
from vfl.solvers.gd import GD
from vfl.solvers.joint import unscaled
from vfl.solvers.noisy_gram import NoisyGram, Row
from vfl.solvers.releases import correlations, products
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.rules.record_defaults import signal_to_noise
from vfl.solvers.skgd import SkGD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.queries import Gram
    from vfl.queries.protocol import Solver

BY_SUMS, BY_PRODUCTS = ("SkGD", "CD", "GD"), ("NoisyGram",)
"""Solvers that open only sums of logistic residuals times columns, and solvers that open only products of columns."""
FEW_CUT = 2.0
"""Factor on NoisyGram's default clip.

With this factor, the clip is at least two thirds of the largest row norm, so few rows are clipped. Chosen among 1, 2 and 3 on
one data set, California housing at ε = 1.
"""
BLOCK = 3
"""Default number of columns per block of SkGD without joint steps. Every block changes the model, and then residuals are shared
again.

With blocks of three columns this happens less than half as often as with single columns. Any partition into blocks costs one
release per pass, since whole rows are capped. Chosen among 1, 2, 3, 4 and 8 on electricity and default_credit at ε = 1: with
the noise of trust='trusted', errors are not larger than with single columns. Blocks of ten columns send a third of the bytes,
but the excess loss is 2.2 times as large (median of 25 cases, 0.8 to 12: five simulated problems, California housing and
adult, ε = 0.1 to 10), since steps shrink with a block's size. Block sizes were not compared on shares.
"""
STEPS = 40
"""Default number of joint steps.

On shares, 36 steps, the default under trust='trusted', left 1.17 times the error of 40 steps for a tenth fewer bytes (six
problems at ε = 1 and 10, 6 seeds each).
"""
MOMENTUM, CLEAR = 0.25, 1000.0
"""Default momentum of joint steps if ρ < CLEAR.

Gradients on shares have more noise than under trust='trusted', because whole rows are cut as if every residual were the
largest. At ε = 1, momentum ¼ left 0.89 times the error of momentum ½ on the four problems with which it was chosen, and 0.82
times on six other problems.
"""
NEEDS = {
    "GCD": "scores of all coordinates",
    "SGD": "secret batches",
    "SVRG": "secret batches",
    "SCD": "a dual state",
    "OutputPerturbation": "steps without noise",
}
"""{solver: feature that the solver needs and that training on shares lacks}."""


def why_not(solver: Solver, loss: Loss) -> str:
    """Return the reason why a solver cannot run on shares with this loss; '' if it can."""
    if solver.name in ((BY_SUMS if loss.log_odds else ()) + (BY_PRODUCTS if loss.quadratic else ())):
        return ""
    if solver.name in NEEDS:
        return NEEDS[solver.name]
    if solver.name == "NoisyGram":
        return "squared loss"
    return (
        "a residual that is not a Fourier term of the linear predictor"
        if math.isfinite(loss.slope)
        else "a residual without a bound"
    )


def resolved(solver: Solver, problem: Problem) -> Solver:
    """Return a solver with every option decided for a run on shares.

    SkGD takes joint steps if options and the public rule allow them (`skgd.declined`). On shares nobody sees columns,
    and all columns of a party are opened at once, so residuals are shared only once per joint step.

    The default clip of NoisyGram is FEW_CUT times the default under trust='trusted', where one factor shrinks all columns of
    a row. On shares NoisyGram always releases products. SkGD has blocks of BLOCK columns, and releases nothing for the cap.
    """
    if isinstance(solver, NoisyGram):
        if solver.constant:
            raise SpecificationError(
                "trust='secure' cannot release the constant model alone: leave constant out of NoisyGram"
            )
        solver = replace(solver, constant=False)
    if isinstance(solver, SkGD) and _leaves_steps_open(solver):
        with contextlib.suppress(SpecificationError):  # an option or the problem does not fit joint steps
            found = resolved(replace(solver, joint=True), problem)
            if isinstance(found, SkGD) and found.joint:
                return found
    if isinstance(solver, SkGD) and solver.local_passes is None:
        solver = solver.changed(local_passes=1)
    found = solver.resolve(problem)
    if isinstance(solver, SkGD) and isinstance(found, SkGD) and found.by_pass:
        if solver.block_size is None and problem.layout.explicit is None:
            size = problem.layout.n_coordinates if found.joint else BLOCK
            found = replace(solver, joint=found.joint, block_size=size).resolve(problem)
        if found.joint and solver.passes is None and solver.outer_rounds is None:
            found = found.changed(outer_rounds=STEPS)
        if found.joint and solver.momentum is None and signal_to_noise(problem) < CLEAR:
            found = found.changed(momentum=MOMENTUM)
        none = {name: 0.0 for name in ("residual_share", "excess_share") if not getattr(solver, name)}
        return found.changed(**none)
    if (
        isinstance(solver, NoisyGram)
        and isinstance(found, NoisyGram)
        and solver.clip is None
        and found.clip is not None
    ):
        return replace(found, clip=FEW_CUT * found.clip)
    return found


def may_open_products(solver: Solver) -> bool:
    """Return True if a run of an unresolved solver may open products of columns, for some number of records."""
    return isinstance(solver, NoisyGram) or (
        isinstance(solver, SkGD) and (bool(solver.joint) or _leaves_steps_open(solver))
    )


def _leaves_steps_open(solver: SkGD) -> bool:
    """Return True if the job leaves open both joint steps and the passes, blocks and order that would replace them."""
    decided = (solver.joint, solver.passes, solver.outer_rounds, solver.inner_rounds, solver.block_size)
    return all(option is None for option in decided) and solver.sampling == "shuffled"


@dataclass(frozen=True, slots=True)
class Rows:
    """Public facts about the opened sums of a run on shares.

    squares : {party: its part of the squared cap}. The part is the party's number of coordinates if √M_j scales the
        coordinates, else ΣB_j² over the party's columns.
    size : typical length of a scaled column, divided by C. models : numbers of models in the run, and of openings of sums.
    """

    squares: Mapping[str, float]
    size: float
    models: Models


def rows_of(solver: Solver, problem: Problem) -> Rows:
    """Return the facts for a resolved solver. Raise SpecificationError for options that need single blocks to be clipped."""
    whole = problem.layout.whole()
    if isinstance(solver, SkGD):
        if not solver.by_pass:
            raise SpecificationError(
                f"trust='secure' caps whole rows, so that {solver.name} charges whole passes: leave clip out or set it to "
                "'record', with sampling 'shuffled', 'cyclic' or 'full'"
            )
        if solver.turns > 1:
            raise SpecificationError("trust='secure' opens every column once per pass: leave local_passes out")
        for share in ("residual_share", "excess_share"):
            if getattr(solver.decided, share):
                raise SpecificationError(
                    f"trust='secure' opens neither residuals nor sums of clipped parts: leave shares.{share} out"
                )
        walk = Walk(solver, problem, Curvature.flat(problem))
        # The mean square of a column divided by √M_j is 4, since M_j is a quarter of its variance.
        size = 2.0 / (float(solver.decided.record_clip or 1.0) * math.sqrt(problem.layout.n_coordinates))
        return Rows({party: float(block.size) for party, block in whole.items()}, size, _models(walk))
    if isinstance(solver, GD):
        B = {party: problem.reach[block.coordinates] for party, block in whole.items()}
        size = float(problem.reach.max()) / float(solver.clip or 1.0)
        passes = solver.passes or 1
        models = Models(passes, dict.fromkeys(whole, passes), passes, passes * problem.layout.n_coordinates)
        return Rows({party: float(own @ own) for party, own in B.items()}, size, models)
    raise SpecificationError(f"trust='secure' does not offer {solver.name}")


def _models(walk: Walk) -> Models:
    """Return the number of models and the number of openings, for updates that draw every block once per pass.

    Which blocks an incomplete last pass will draw is not known yet, so the largest blocks are counted.
    """
    count, blocks = walk.n_draws, walk.blocks
    if walk.solver.sampling == "full":  # all blocks use one model, and are opened together
        owners = dict.fromkeys(block.party for block in blocks)
        return Models(count, dict.fromkeys(owners, count), count, count * walk.problem.layout.n_coordinates)
    passes, more = divmod(count, walk.draws_a_pass)
    own = Counter(block.party for block in blocks)
    opened = {party: passes * drawn + min(more, drawn) for party, drawn in own.items()}
    largest = sorted((block.size for block in blocks), reverse=True)
    sums = passes * sum(largest) + sum(largest[:more])
    if walk.solver.parallel > 1:  # draws of one message share one model
        count = walk.messages()[0]
    return Models(count, opened, walk.n_releases, sums)


@dataclass(frozen=True, slots=True)
class Products:
    """Public facts about the one joint release of all products of columns, for a run on shares.

    clip : C. squares : {party: ΣB_j², plus the label's term at its party}; for joint steps the party's number of columns.
    label_scale, label_centre : t and c of t(y − c); None and 0 for products without the label.
    first : query under which the release is charged. event : event of the release. unit : C² if the query counts in units of
        C², else 1.
    """

    clip: float
    squares: Mapping[str, float]
    label_scale: float | None
    label_centre: float
    event: Gaussian
    first: Gram
    unit: float = 1.0


def products_of(solver: Solver, problem: Problem, label: str) -> Products | None:
    """Return the facts about the products that a resolved solver opens; None if the solver opens no products.

    label : name of the party that holds the labels.
    """
    if isinstance(solver, SkGD) and solver.joint:
        return _correlations(solver, problem)
    if not isinstance(solver, NoisyGram):
        return None
    first = solver.pieces(problem)[0]
    row = first.weighting
    if not isinstance(row, Row) or not isinstance(first.event, Gaussian):
        raise PrivacyError("products of columns are opened only with noise: give the job an epsilon")
    farthest = problem.label_range / 2 + abs(problem.label_centre - row.label_centre)
    squares = {}
    for party, block in problem.layout.whole().items():
        B = problem.reach[block.coordinates]
        squares[party] = float(B @ B) + (row.label_scale * farthest) ** 2 * (party == label)
    return Products(float(solver.clip or math.inf), squares, row.label_scale, row.label_centre, first.event, first)


def _correlations(solver: SkGD, problem: Problem) -> Products:
    """Return the facts for joint steps: records have weights t_i = L/R, rows of scaled columns norm at most √(R/L)."""
    ((event,),) = (events for row, events in Budget(solver, problem).once if row.make is correlations.release)
    weighting, whole = correlations.weighting_of(problem, problem.loss, math.inf), problem.layout.whole()
    square = weighting.bound / problem.loss.curvature
    squares = {party: float(block.size) for party, block in whole.items()}
    first = products.pieces_of(problem, unscaled(problem), weighting, event)[0]
    return Products(math.sqrt(square), squares, None, 0.0, event, first, square)
