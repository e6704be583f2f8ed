"""Declared bounds that are far wider than the released spread of their column: post-processing, so it costs no privacy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.certificate.issue import moments_digest
from vfl.launch.run.importance import LEVEL
from vfl.planning import plan as make_plan
from vfl.schema import Numeric
from vfl.solvers.bought.smoothness import spreads

if TYPE_CHECKING:
    from vfl.launch.run.result import Result

WIDE = 20.0
"""Width of bounds, in released spreads, from which they are called wide. Uniform values have 3.5, normal ones about 8."""


def wide_bounds(result: Result) -> tuple[str, ...]:
    """Return a sentence for every numeric column whose bounds are at least WIDE times as wide as its spread.

    The spread is read from the moments that training bought anyway. Its noise counts against a warning: the width is compared
    with the upper end of a 95 % interval. () if the run released no moments, or not those that its certificate names.
    """
    job = result.job
    if not result.moments:
        return ()
    plan = make_plan(job, result.certificate.n_records)
    if moments_digest(plan, (result.moments,)) != result.certificate.moments_digest:
        return ()
    layout = plan.problem.layout
    variance, error = (values[:: layout.width] for values in spreads(plan.problem, result.moments))
    centred = plan.problem.centred_coordinates[:: layout.width]
    scaling = job.scaling_of(job.partition.features)
    width = dict(zip(scaling.features, scaling.hi - scaling.lo, strict=True))
    names = [name for own in layout.columns.values() for name in own]
    numeric = {c for c in job.partition.features if isinstance(job.schema[c], Numeric)}
    said = []
    for name, v, s, known in zip(names, variance, error, centred, strict=True):
        if name not in numeric or not known:
            continue
        spread = math.sqrt(max(v + LEVEL * s, 0.0))
        if spread > 0.0 and width[name] >= WIDE * spread:
            said.append(
                f"the bounds of {name!r} are at least {width[name] / spread:.3g} times as wide as the released spread of its "
                "values: declare narrower ones from public knowledge, or buy them with vfl.private_bounds"
            )
    return tuple(said)
