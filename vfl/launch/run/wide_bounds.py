"""Detection of declared bounds that are far too wide, from released values. Post-processing, which costs no privacy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.columns import Numeric
from vfl.base.losses import MEAN
from vfl.launch.run.execution import counts_among
from vfl.launch.run.importance import LEVEL
from vfl.planning import plan as make_plan
from vfl.planning.certificate.issue import moments_digest
from vfl.solvers.releases.labels import MOST, narrow
from vfl.solvers.releases.smoothness import places, spreads

if TYPE_CHECKING:
    from vfl.base.types import Vector
    from vfl.launch.run.result import Result
    from vfl.planning import Plan

WIDE = 20.0
"""Bounds count as wide from this width on, in released standard deviations. Uniform values need 3.5, normal values about 8."""
NARROW = 0.125
"""A label's bounds count as wide if this share of their width contains most labels. The bounds are then at least 31 standard
deviations wide for normal labels, and 26 for uniform labels.
"""

AT_END = 0.05
"""Largest distance between a released mean, with its noise, and an end of the bounds that is reported as too close.

Then most values lie at that end. The unit is half the bounds' width.
"""
FAR = 16.0
"""A label's bounds count as wide from this width on, in distances from the mean that hold most labels (a power of 2 below the
width). Normal labels end at 2 to 4 standard deviations, so the bounds are then at least 32 standard deviations wide.
"""


def wide_bounds(result: Result) -> tuple[str, ...]:
    """Return a sentence for each numeric column or label whose bounds are far too wide, or exclude most values.

    Only values that the run released are used. A sentence appears only if noise alone does not explain these values.
    """
    plan = make_plan(result.job, result.certificate.n_records)
    return (*_of_columns(result, plan), *_of_label(result, plan), *filter(None, (_at_ends(result),)))


def _deviations(result: Result, plan: Plan) -> Vector | None:
    """Return the upper end of a 95 % interval for each column's standard deviation, (p,); 0 for the intercept.

    The deviations are computed from the moments that training released. None without moments, or with moments that the
    certificate does not name.
    """
    if not result.moments or moments_digest(plan, result.moments) != result.certificate.moments_digest:
        return None
    variance, error = spreads(plan.problem, result.moments)
    return np.where(plan.problem.intercept > 0.0, 0.0, np.sqrt(np.maximum(variance + LEVEL * error, 0.0)))


def _of_columns(result: Result, plan: Plan) -> tuple[str, ...]:
    """Return a sentence per numeric column whose bounds are wide (WIDE), or whose bounds exclude most values.

    Values outside the bounds are clamped, so a released mean near an end says that most values are at or beyond that end.
    """
    job, layout = result.job, plan.problem.layout
    deviations = _deviations(result, plan)
    if deviations is None:
        return ()
    centred = plan.problem.centred_coordinates[:: layout.width]
    place, noise = places(plan.problem, result.moments)
    scaling = job.scaling_of(job.partition.features)
    ends = {name: (low, high) for name, low, high in zip(scaling.features, scaling.lo, scaling.hi, strict=True)}
    names = [name for own in layout.columns.values() for name in own]
    numeric = {c for c in job.partition.features if isinstance(job.schema[c], Numeric)}
    said = []
    for name, spread, known, at in zip(
        names, deviations[:: layout.width], centred, place[:: layout.width], strict=True
    ):
        if name not in numeric or not known:
            continue
        low, high = ends[name]
        end, beyond = (low, "below") if at < 0.0 else (high, "above")
        clamped = f"at {end:.6g} or {beyond} it, where they are clamped"
        outside = 1.0 - abs(at) + LEVEL * noise <= AT_END
        if spread > 0.0 and high - low >= WIDE * spread:
            said.append(
                f"the bounds of {name!r} are at least {(high - low) / spread:.3g} times as wide as the released spread of its "
                "values: declare narrower ones from public knowledge, or release them with vfl.releases.private_bounds"
                + (f" (most values may also be {clamped}: check the unit)" if outside else "")
            )
        elif outside:
            said.append(
                f"the released mean of {name!r} lies at an end of its bounds, so most values are {clamped} and add "
                "nothing to the model: check the unit, and declare bounds that hold the values"
            )
    return tuple(said)


def _of_label(result: Result, plan: Plan) -> tuple[str, ...]:
    """Return a sentence if the bounds of a numeric label are far wider than its released values."""
    problem = plan.problem
    if problem.loss.start != MEAN or not math.isfinite(problem.label_range):
        return ()
    found = _by_counts(result, plan) or _by_errors(result, plan)
    if not found:
        return ()
    low, high = problem.label_low, problem.label_low + problem.label_range
    said = f"the bounds [{low:g}, {high:g}] of the label {result.job.partition.label_column!r} are {found}"
    return (f"{said}: declare narrower ones from public knowledge, unless rare labels far out matter",)


def _by_counts(result: Result, plan: Plan) -> str:
    """Return a sentence if few bins of the released histogram contain most labels; else ''."""
    given = (*((result.moments,) if result.moments else ()), *(() if result.labels is None else ((result.labels,),)))
    found = counts_among(plan, given)
    if found is None:
        return ""
    statistic, noisy, sigma = found
    part = narrow(noisy, statistic, plan.problem.n_records, sigma)
    if part is None or part[1] - part[0] > NARROW * plan.problem.label_range * (1.0 + 1e-9):
        return ""
    times = plan.problem.label_range / (part[1] - part[0])
    return (
        f"{times:.3g} times as wide as the range from {part[0]:.4g} to {part[1]:.4g}, which holds {MOST:.0%} of the labels by "
        "their released histogram"
    )


def _by_errors(result: Result, plan: Plan) -> str:
    """Return a sentence if released counts of held-out errors by size end far below the width of the bounds; else ''.

    The counts give the cap of errors of the model and of the labels' mean, unless the job declares a cap.
    """
    held_out, spec = result.findings.get("held out"), result.job.evaluation
    mae = None if held_out is None else held_out.measures.get("mae")
    if (
        mae is None
        or mae.cap is None
        or (spec is not None and spec.error_cap)
        or mae.cap * FAR > plan.problem.label_range
    ):
        return ""
    return (
        f"{plan.problem.label_range / mae.cap:.3g} times as wide as the distances of most labels from their mean, which end at "
        f"{mae.cap:.3g} by released counts"
    )


def _at_ends(result: Result) -> str:
    """Return a sentence if many held-out labels lie at an end of their bounds; else ''."""
    held_out = result.findings.get("held out")
    share = None if held_out is None else held_out.measures.get("at_bounds")
    if share is None or share.interval[0] < AT_END:
        return ""
    return (
        f"at least {share.interval[0]:.0%} of the labels lie at an end of their bounds. If they are clamped there, model, "
        "measures and intervals are those of clamped labels: declare bounds that hold the labels"
    )
