"""Start of the intercept at the best constant model, released by solvers of joint gradients with a share of the budget.

One Gaussian release of label statistics, charged beside the solver's own releases: the share of positive labels, a histogram
of counts, or the mean of the labels. A run whose steps learn nothing then ends at the constant model instead of at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.arguments import require_number
from vfl.errors import SpecificationError
from vfl.privacy.calibration import scaled_to_budget
from vfl.privacy.events import Gaussian
from vfl.solvers.releases import counts
from vfl.solvers.releases.labels import balance_of, constant, mean, mean_of, noised
from vfl.solvers.releases.smoothness import Curvature
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfl.losses import Loss
    from vfl.messages import Query
    from vfl.messages.query import Statistic
    from vfl.privacy.calibration import Charge
    from vfl.problem import Problem
    from vfl.solvers.protocol import Released
    from vfl.types import Vector


@dataclass(frozen=True, slots=True)
class ReleasedStart:
    """Release of the labels' statistic. It is μ-GDP with μ = Δ/σ under replace-one, and part of the charges of `planned`.

    share : of μ², about; 0 releases nothing, and the intercept starts at the middle of the declared labels.
    """

    problem: Problem
    share: float

    def planned(self, *charges: Charge, cost: float) -> tuple[Charge, ...]:
        """Return the charges with σ scaled to the problem's (ε, δ), the statistic's first if it is released.

        cost : Σ Δ²/σ² of the given charges as they stand, of which the statistic's share follows; a batch that is sampled
            at rate q counts q² times.
        """
        problem = self.problem
        if problem.epsilon is None or problem.delta is None:
            return ()
        first: tuple[Charge, ...] = ()
        if self.share:
            z = math.sqrt((1.0 - self.share) / (self.share * cost))
            first = ((noised(statistic_of(problem), z), 1),)
        return scaled_to_budget((*first, *charges), problem.epsilon, problem.delta)

    def found(self, charges: tuple[Charge, ...]) -> Generator[Query, Released, tuple[Vector, Loss]]:
        """Return the first iterate, (p,), and the loss that is descended, which for counts is straight far from their mean."""
        problem = self.problem
        if not self.share:
            return problem.begin, problem.loss
        event, loss = charges[0][0], problem.loss
        value: float | Vector
        if not isinstance(event, Gaussian):
            raise TypeError("the first charge is not the statistic's")
        if counts.has_counts(problem):
            _, value, loss = yield from counts.near_the_mean(problem, Curvature.flat(problem), event, 1.0)
        elif problem.loss.classification:
            value = yield from constant(problem, event)
        else:
            value = yield from mean(problem, event)
        return problem.intercept * value, loss


def statistic_of(problem: Problem) -> Statistic:
    """Return the statistic of the labels from which the constant model follows."""
    if counts.has_counts(problem):
        return counts.histogram(problem)
    return balance_of(problem) if problem.loss.classification else mean_of(problem)


def require_share(solver: str, share: float | None) -> None:
    """Raise SpecificationError for a share that is no number from 0 to 1, without 1."""
    if share is None:
        return
    require_number(f"{solver}: label_share", share)
    if not 0.0 <= share < 1.0:
        raise SpecificationError(f"{solver}: label_share must lie between 0 and 1, without 1, not {share!r}")


def share_of(solver: str, problem: Problem, given: float | None, clip: float | None) -> float:
    """Return the share to spend on the start: as given, else by the rule, which releases nothing where the clip is given."""
    fits = problem.private and problem.start is None and record_defaults.has_constant(problem)
    if given and not fits:
        raise SpecificationError(
            f"{solver}: label_share={given!r} pays for the start of the intercept, which needs privacy, an intercept, a loss "
            "with a best constant model, declared bounds for labels that are numbers, and no model to start from: leave "
            "label_share out"
        )
    if given is not None:
        return given
    return record_defaults.start_share(problem) if fits and clip is None else 0.0


def explain(share: float) -> tuple[str, ...]:
    """Return the sentence about the start, if it is released."""
    return (f"the constant model for {share:.2g} of μ²: the intercept starts there.",) if share else ()


def begins(problem: Problem, share: float) -> bool:
    """Return True if margins may differ from 0 before the first step: a public fact."""
    return bool(share) or bool(np.any(problem.begin))
