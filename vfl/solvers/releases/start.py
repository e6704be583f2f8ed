"""Start of the intercept at the best constant model, which one Gaussian release of a label statistic determines.

The statistic is the share of positive labels, a histogram of counts, or the mean of the labels. The statistic is charged
separately from the solver's passes. A run whose steps learn nothing then ends at the constant model instead of at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import BudgetExceeded, SpecificationError
from vfl.privacy.calibration import noise_multiplier, scaled_to_budget
from vfl.privacy.events import Gaussian
from vfl.privacy.gaussian_dp import epsilon_of
from vfl.solvers.releases import counts
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.releases.labels import (
    balance_of,
    centre_and_spread,
    constant,
    counts_of,
    magnitudes_of,
    mean,
    mean_and_spread,
    mean_of,
    noised,
    seeks_spread,
)
from vfl.solvers.releases.once import OneTime, Phase
from vfl.solvers.rules import record_defaults
from vfl.solvers.rules.defaults import typical_spread

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.privacy.calibration import Charge
    from vfl.queries.parts import Statistic
    from vfl.queries.protocol import Exchange
    from vfl.solvers.releases.once import Run


@dataclass(frozen=True, slots=True)
class ReleasedStart:
    """Release of a label statistic, μ-GDP with μ = Δ/σ under replace-one. `planned` includes the charge of the statistic.

    share : approximate share of μ². With 0 no statistic is released, and the run starts at `Problem.begin`.
    """

    problem: Problem
    share: float

    def planned(self, *charges: Charge, cost: float) -> tuple[Charge, ...]:
        """Return the given charges, with σ scaled to the problem's (ε, δ); first the charge of the label statistic, if any.

        cost : Σ Δ²/σ² of the given charges before scaling, which decides the statistic's share. A release on a batch that is
            sampled at rate q counts q² times.
        """
        problem = self.problem
        if problem.epsilon is None or problem.delta is None:
            return ()
        first: tuple[Charge, ...] = ()
        if self.share:
            z = math.sqrt((1.0 - self.share) / (self.share * cost))
            first = ((noised(statistic_of(problem), z), 1),)
        ε = problem.epsilon
        if problem.mu is not None and problem.besides:
            ε = epsilon_of(problem.mu * (1.0 - 1e-12), problem.delta)
        return scaled_to_budget((*first, *charges), ε, problem.delta)

    def found(self, charges: tuple[Charge, ...]) -> Exchange[tuple[Vector, Loss, Curvature]]:
        """Return the first iterate, (p,), the training loss, and its curvature relative to the declared loss.

        For counts the loss is made linear far from the mean count, near which the curvature is taken.

        If charges for lost attempts leave too little budget for the statistic, the run starts as with a share of 0.
        """
        problem, flat = self.problem, Curvature.flat(self.problem)
        if is_exact(problem):
            known, start, loss = yield from started(problem, flat, None)
            return problem.intercept * start if problem.start is None else problem.start, loss, known
        if not self.share:
            return problem.begin, problem.loss, flat
        event = charges[0][0]
        if not isinstance(event, Gaussian):
            raise TypeError("the first charge is not the statistic's")
        try:
            known, value, loss = yield from started(problem, flat, event)
        except BudgetExceeded:
            return problem.begin, problem.loss, flat
        return problem.intercept * value, loss, known


def is_exact(problem: Problem) -> bool:
    """Return True if a run without privacy starts at an exact statistic of the labels."""
    return not problem.private and (counts.is_exact(problem) or seeks_spread(problem))


def statistic_of(problem: Problem, *, spread: bool = False) -> Statistic:
    """Return the label statistic that determines the constant model; with `spread`, also the spread of numeric labels."""
    if counts.has_counts(problem):
        return counts.histogram(problem)
    if problem.loss.classification:
        return balance_of(problem)
    if seeks_spread(problem):
        return magnitudes_of(problem)
    return counts_of(problem) if spread else mean_of(problem)


def started(
    problem: Problem, known: Curvature, event: Gaussian | None, *, spread: bool = False
) -> Exchange[tuple[Curvature, float | Vector, Loss]]:
    """Release the label statistic. Return centres and curvature, the start of the intercept, and the training loss.

    spread : as in `statistic_of`.
    """
    value: float | Vector
    if seeks_spread(problem):
        found = yield from centre_and_spread(problem, event)
        unit = found.deviation * 1.35 / problem.loss.slope
        return replace(known, unit=unit), found.mean, problem.loss.of_spread(found.deviation)
    if event is None:
        return (yield from counts.at_the_mean(problem, known))
    if counts.has_counts(problem):
        return (yield from counts.near_the_mean(problem, known, event, record_defaults.signal_to_noise(problem)))
    if problem.loss.classification:
        value = yield from constant(problem, event)
    elif spread:
        found = yield from mean_and_spread(problem, event)
        known, value = replace(known, unit=found.deviation / typical_spread(problem)), found.mean
    else:
        value = yield from mean(problem, event)
    return known, value, problem.loss


def row(problem: Problem, share: float, *, by_pass: bool) -> OneTime:
    """Return SkGD's one release of a label statistic, which sets the first intercept and, under squared loss, the cap."""
    mean_alone = by_pass and record_defaults.releases_mean(problem)
    spread = not (counts.has_counts(problem) or problem.loss.classification or mean_alone)

    def make(run: Run, events: tuple[Gaussian, ...]) -> Exchange[None]:
        event = events[0] if events else None
        run.known, run.start, run.loss = yield from started(problem, run.known, event, spread=spread)

    def events(mu: float) -> tuple[Gaussian, ...]:
        return (noised(statistic_of(problem, spread=spread), noise_multiplier(mu, 1)),)

    return OneTime(Phase.START, share, events, make, said=_said(problem, share, spread=spread))


def _said(problem: Problem, share: float, *, spread: bool) -> str:
    what, there = "mean of the labels", "the intercept starts there"
    if seeks_spread(problem):
        what = "median and spread of the labels"
        there = "the intercept starts there, and the width of the loss and the cap follow from the spread"
    if spread:
        what = "mean and spread of the labels"
        there += f"; the cap assumes a spread of {typical_spread(problem):.3g} until the released one replaces it"
    elif counts.has_counts(problem):
        what, there = "histogram of the labels", "the intercept starts at their mean"
    elif problem.loss.classification:
        what = "shares of the classes" if problem.layout.classes else "share of positive labels"
    if not problem.private:
        return (
            f"the intercept starts at {'the median' if seeks_spread(problem) else 'the log of the mean'} of the labels."
        )
    return f"{what} for {100 * share:.2g} % of the privacy budget: {there}."


def share_of(solver: str, problem: Problem, given: float | None, clip: float | None) -> float:
    """Return the budget share for the start of the intercept: the user's, else the rule's; 0 if a clip is given."""
    fits = problem.private and problem.start is None and record_defaults.has_constant(problem)
    if given and not fits:
        raise SpecificationError(
            f"{solver}: label_share={given!r} spends budget on the starting intercept, which this job cannot release. "
            "Leave label_share out; it needs privacy, an intercept, a loss with a best constant model, bounds of "
            "numeric labels, and no model to start from"
        )
    if given is not None:
        return given
    return record_defaults.start_share(problem) if fits and clip is None else 0.0


def explain(share: float) -> tuple[str, ...]:
    """Return a sentence about the value at which the intercept starts; () if no release determines that value."""
    said = f"the constant model for {100 * share:.2g} % of the privacy budget: the intercept starts there."
    return (said,) if share else ()


def begins(problem: Problem, share: float) -> bool:
    """Return True if, by public facts, the first step may begin at a nonzero model."""
    return bool(share) or is_exact(problem) or bool(np.any(problem.begin))
