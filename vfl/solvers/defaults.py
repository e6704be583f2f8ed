"""Public rules for what the user leaves open: functions of n, p, ε, loss and declared ranges only, never of data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.problem import Problem
    from vfl.solvers.skgd import SkGD

REBUILD_EVERY = 10
"""Passes after which Xw is rebuilt at the most: a resumed run repeats less than that."""


def clip(problem: Problem) -> float:
    """Return κ: three typical scaled gradients, or inf without privacy.

    A typical residual is ½ for logistic loss and a third of the declared label range for squared loss; in units of √M_j,
    with L the curvature, a typical |r x_j|/√M_j is the typical residual over √L.
    """
    if not problem.private:
        return math.inf
    typical = problem.loss.slope / 2 if math.isfinite(problem.loss.slope) else problem.label_range / 3
    return 3.0 * typical / math.sqrt(problem.loss.curvature)


def block_size(problem: Problem) -> int:
    """Return |S|."""
    return 1 if problem.layout.n_coordinates <= 16 else 8


def passes(problem: Problem) -> int:
    """Return the number of passes."""
    return 10 if problem.private else 100


def outer_rounds(n_passes: int) -> int:
    """Return T: the passes in equal parts of at most REBUILD_EVERY."""
    part = next(d for d in range(min(REBUILD_EVERY, n_passes), 0, -1) if n_passes % d == 0)
    return n_passes // part


def explain(problem: Problem, solver: SkGD) -> tuple[str, ...]:
    """Return a sentence for every option that was decided."""
    return (
        f"clip κ = {solver.clip:g}: three typical scaled gradients of {problem.loss.name} loss.",
        f"blocks of {solver.block_size or 'the sizes that the partition names'}, {solver.sampling} order.",
        f"{solver.outer_rounds} outer rounds of {solver.inner_rounds} block updates.",
    )
