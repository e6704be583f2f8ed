"""Options of SkGD: checks of options, and the public rules that decide options left at None."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from vfl.errors import SpecificationError
from vfl.samplers import sampler_of
from vfl.solvers.blocks.options import BOUNDS, COORDINATE, RECORD
from vfl.solvers.blocks.visits import Walk
from vfl.solvers.iterates.convergence import tolerance
from vfl.solvers.protocol import require_clip, require_groups
from vfl.solvers.releases import correlations, counts, products
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.releases.smoothness import require_curvature, require_representable
from vfl.solvers.rules import defaults, intervals, record_defaults

if TYPE_CHECKING:
    from vfl.problem import Problem
    from vfl.solvers.blocks.options import BlockOptions

Solver = TypeVar("Solver", bound="BlockOptions")

ONCE_A_PASS = ("shuffled", "cyclic", "full")
OF_RECORD = ("record_clip", "early_share", "excess_share")
"""Fields of `Shares` that apply only under a record cap."""


def require_options(solver: BlockOptions) -> None:
    """Raise SpecificationError for an option that contradicts another option."""
    if solver.momentum is not None:
        most = 1.0 - (solver.step_size or 1.0) / 2.0
        if not 0.0 <= solver.momentum <= max(0.0, most):
            raise SpecificationError(
                f"{solver.name}: momentum={solver.momentum!r} must lie between 0 and 1 − γ/2 = {max(0.0, most):.3g}, "
                "where runs with steps of γ are sure not to diverge: lower it, or step_size"
            )
    if solver.passes is not None and solver.inner_rounds is not None:
        raise SpecificationError(f"{solver.name}: give passes, or outer_rounds and inner_rounds, not both")
    if solver.parallel > 1 and solver.sampling in ("nice", "full"):
        raise SpecificationError(
            f"{solver.name}: sampling={solver.sampling!r} draws several blocks by itself: leave parallel at 1"
        )
    _require_record_options(solver)
    _require_joint_options(solver)
    sampler_of(solver.sampling, solver.tau)


def _require_record_options(solver: BlockOptions) -> None:
    if solver.clip == RECORD and solver.sampling not in ONCE_A_PASS:
        raise SpecificationError(
            f"{solver.name}: clip='record' needs a sampling that visits every block once per pass: "
            f"{', '.join(ONCE_A_PASS)}, not {solver.sampling!r}. Change sampling, or leave clip out"
        )
    asked = [f"shares.{name}" for name in OF_RECORD if getattr(solver.decided, name) is not None]
    if solver.clip not in (None, RECORD) and (asked or solver.reserve_passes):
        option = (asked or ["reserve_passes"])[0]
        raise SpecificationError(f"{solver.name}: {option} has an effect only with clip='record': leave {option} out")


def resolved(given: Solver, problem: Problem) -> Solver:
    """Return a copy of the solver with every option decided from public facts (rules.defaults, rules.record_defaults)."""
    shares = replace(given.decided, label_share=_label_share(given, problem))
    if given.joint is None or (given.joint and declined(given, problem)):
        given = replace(given, joint=False)
    solver = replace(given, clip=_clip(given, problem), shares=shares)
    if solver.joint:
        given = solver = _with_joint_steps(solver)
    if given.block_size is None and problem.layout.explicit is None:
        solver = replace(solver, block_size=1 if solver.by_pass else defaults.block_size(problem))
    solver = replace(solver, momentum=_momentum(solver, problem))
    if given.inner_rounds is None:
        passes = given.passes or _default_passes(solver, problem)
        outer = given.outer_rounds or defaults.outer_rounds(passes)
        inner = -(-passes * Walk(solver, problem, Curvature.flat(problem)).draws_a_pass // outer)
        solver = replace(solver, passes=None, outer_rounds=outer, inner_rounds=inner)
    else:
        solver = replace(solver, outer_rounds=given.outer_rounds or 1)
    solver = replace(
        solver,
        iterate=given.iterate or defaults.iterate(problem),
        tol=tolerance(given.name, problem, given.tol, limited=(given.passes or given.inner_rounds) is not None),
    )
    if not solver.by_pass:
        if problem.inferred:
            intervals.require(solver, problem)
        return replace(
            solver, step_size=given.step_size if given.step_size is not None else defaults.step_size(problem)
        )
    passes = Walk(solver, problem, Curvature.flat(problem)).n_passes
    shares = replace(
        shares,
        record_clip=shares.record_clip or record_defaults.record_clip(problem),
        early_share=record_defaults.early_share(problem) if shares.early_share is None else shares.early_share,
        excess_share=_excess_share(solver, problem, passes),
    )
    β = solver.momentum or 0.0
    size = given.step_size
    if size is None:
        # Steps of up to 2(1 − β) are proved not to diverge with momentum β (vfl.solvers.iterates.trail).
        size = min(record_defaults.step_size(problem, passes, β), 2.0 * (1.0 - β))
    solver = replace(solver, shares=shares, step_size=size)
    if problem.inferred:
        intervals.require(solver, problem)
    return solver


def _clip(solver: BlockOptions, problem: Problem) -> float | str:
    """Return the clip: a number (cap per coordinate), 'record' or 'bounds'."""
    asked = solver.reserve_passes or any(getattr(solver.decided, name) is not None for name in OF_RECORD)
    clip = solver.clip
    if clip is None and problem.private:
        serves = record_defaults.serves(problem) or counts.has_counts(problem)
        clip = RECORD if asked or (serves and solver.sampling in ONCE_A_PASS) else COORDINATE
    if clip is None or (clip == RECORD and not problem.private and solver.decided.record_clip is None):
        return math.inf
    return defaults.clip(problem) if clip == COORDINATE else clip


def _momentum(solver: BlockOptions, problem: Problem) -> float:
    """Return β: the user's value, else the rule's. The rule applies under a record cap if the number of passes is left open."""
    if solver.momentum is not None:
        return solver.momentum
    open_ = solver.passes is None and solver.inner_rounds is None
    averaged = solver.iterate in (None, "tail")  # a last iterate has more noise with momentum
    if not (open_ and averaged and solver.by_pass and solver.sequential) or problem.inference:
        return 0.0
    return record_defaults.momentum(problem, solver.step_size)


def declined(solver: BlockOptions, problem: Problem) -> str:
    """Return, as a clause, why the public rule takes no joint steps; '' if joint steps pay."""
    if _clip(solver, problem) != RECORD:
        return "each column has a clip of its own, whose charge is not one per pass"
    noise = correlations.radius(problem.layout.n_coordinates, record_defaults.signal_to_noise(problem))
    return record_defaults.declines_joint_steps(problem, noise, products.messages_of(problem, 1)["messages"])


def _with_joint_steps(solver: Solver) -> Solver:
    return replace(
        solver,
        sampling="full",
        block_size=solver.block_size or 1,
        passes=None,
        outer_rounds=solver.passes or solver.outer_rounds or record_defaults.FEW,
        inner_rounds=1,
        momentum=record_defaults.MOMENTUM if solver.momentum is None else solver.momentum,
        step_size=1.0,
    )


def _require_joint_options(solver: BlockOptions) -> None:
    usual = {
        "clip": (None, RECORD),
        "sampling": ("shuffled", "full"),
        "parallel": (1,),
        "inner_rounds": (None, 1),
        "step_size": (None, 1.0),
        "iterate": (None, "tail"),
        "noise_geometry": ("scaled",),
        "tol": (None,),
    }
    for option, values in usual.items():
        if solver.joint and getattr(solver, option) not in values:
            raise SpecificationError(
                f"{solver.name}: joint=True moves all columns at once and decides {option} itself: leave {option} out"
            )


def _require_joint_fit(solver: BlockOptions, problem: Problem) -> None:
    several = problem.subsamples > 1 or problem.inference is not None
    for fits, what in (
        (
            (problem.loss.log_odds or problem.loss.quadratic) and not counts.has_counts(problem),
            "logistic or squared loss",
        ),
        (not problem.layout.classes, "one margin per record"),
        (problem.terms is None, "columns without terms of their own"),
        (problem.layout.explicit is None and not problem.penalty.grouped, "single columns: no blocks, no groups"),
        (not several, "a run without standard errors, whose covariance assumes steps column by column"),
    ):
        if not fits:
            raise SpecificationError(f"{solver.name}: joint=True needs {what}: leave joint out")


def _default_passes(solver: BlockOptions, problem: Problem) -> int:
    if not solver.by_pass:
        return defaults.passes(problem)
    return defaults.in_equal_parts(record_defaults.passes(problem, solver.step_size, solver.momentum or 0.0))


def _excess_share(solver: BlockOptions, problem: Problem, passes: int) -> float:
    fits = (
        problem.private
        and (problem.loss.log_odds or problem.loss.quadratic)
        and record_defaults.early_passes(passes) > 0
    )
    given = solver.decided.excess_share
    if given is None:
        # The noise of a last iterate is not averaged, so the rule would underestimate it.
        chosen_here = fits and solver.decided.record_clip is None and solver.iterate == "tail"
        return record_defaults.excess_share(problem) if chosen_here else 0.0
    if given and not fits:
        raise SpecificationError(
            f"{solver.name}: shares.excess_share={given!r} spends budget on sums of the parts that the record cap cuts, which "
            "needs logistic or squared loss, privacy and at least 3 passes: leave excess_share out"
        )
    return given


def _label_share(solver: BlockOptions, problem: Problem) -> float:
    record, given = _clip(solver, problem) == RECORD, solver.decided.label_share
    starts = problem.start is not None and (
        record_defaults.has_balance(problem) or record_defaults.releases_mean(problem)
    )
    if starts and given:
        raise SpecificationError(
            f"{solver.name}: shares.label_share={given!r} pays for the start of the intercept, and the job starts from a "
            "model: leave it out"
        )
    if starts:
        return 0.0
    if given is None:
        if record:
            return record_defaults.label_share(problem) if solver.decided.record_clip is None else 0.0
        return defaults.label_share(problem) if solver.clip in (None, COORDINATE) else 0.0
    starts = (
        record_defaults.has_balance(problem) or counts.has_counts(problem) or record_defaults.releases_mean(problem)
    )
    fits = defaults.has_spread(problem) or (record and starts)
    if given and not (problem.private and fits):
        raise SpecificationError(
            f"{solver.name}: shares.label_share={given!r} spends budget on the spread of labels, which needs "
            "squared loss, an intercept, declared bounds for the label, and privacy: leave label_share out"
        )
    return given


def require_fit(solver: BlockOptions, problem: Problem) -> None:
    """Raise SpecificationError or PrivacyError if the solver's options do not fit the problem."""
    require_representable(problem)
    require_curvature(solver.name, problem)
    require_clip(solver.name, problem, solver.clip)
    if solver.clip == BOUNDS and not (math.isfinite(problem.loss.slope) and np.isfinite(problem.reach).all()):
        raise SpecificationError(
            f"{solver.name}: clip='bounds' needs bounds for every column and a loss with a bounded derivative; "
            f"{problem.loss.name} loss has slope {problem.loss.slope:g}. Give a clip"
        )
    require_groups(problem)
    if solver.joint:
        _require_joint_fit(solver, problem)
