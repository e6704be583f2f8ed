"""Histogram of the labels among the first releases of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.messages import Tally
from vfl.solvers.releases.labels import asked_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.planning import Plan
    from vfl.solvers.protocol import Released
    from vfl.solvers.releases.labels import LabelCounts
    from vfl.types import Vector


def counts_among(plan: Plan, released: Sequence[Released]) -> tuple[LabelCounts, Vector, float] | None:
    """Return the histogram of the labels among the first releases of a run; None if the run bought none. Post-processing.

    It is a triple: the statistic, the noisy counts (BINS,), and the standard deviation of their noise.
    """
    if not plan.problem.loss.quadratic or plan.solver.sealed or not getattr(plan.solver, "label_share", None):
        return None
    schedule = plan.solver.schedule(plan.problem)
    query = next(schedule)
    for values in released:
        if isinstance(query, Tally):
            found = asked_by(query)
            return None if found is None else (found[0], values[0], found[1])
        query = schedule.send(values)
    return None
