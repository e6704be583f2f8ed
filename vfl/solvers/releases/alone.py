"""Release of only the constant model, for solvers whose noise would outweigh any gain from learning.

Guarantee: the run is μ-GDP under replace-one, with the μ of the whole budget.

Proof. The run makes one release, T(y) + N(0, σ²I). T is the statistic of the labels that determines the constant model: the
number of positive labels, or the sum of the labels over their declared range. Replacing a record moves T by at most the
statistic's `sensitivity` Δ, and σ ≥ Δ/μ, so the release is a Gaussian mechanism with Δ/σ ≤ μ. The model is post-processing.
The decision to release only this model depends on n, p, ε, δ, the loss, the penalty and declared bounds, never on data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.errors import PrivacyError, SpecificationError
from vfl.privacy.calibration import noise_multiplier
from vfl.solvers import joint
from vfl.solvers.releases import counts
from vfl.solvers.releases.labels import noised
from vfl.solvers.releases.start import ReleasedStart, statistic_of
from vfl.solvers.rules import record_defaults
from vfl.solvers.rules.defaults import signal_to_noise

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Schedule

GEOMETRY = "change of a statistic of the labels when one record is replaced"
"""Description of Δ for the certificate."""


def fits(problem: Problem) -> bool:
    """Return True if the run is private and one statistic of the labels determines the best constant model."""
    known = record_defaults.has_constant(problem) and not counts.has_counts(problem)
    return problem.private and problem.start is None and known


def decided(solver: str, problem: Problem, given: bool | None, *, outweighed: bool) -> bool:
    """Return True if the run releases only the constant model: as the user chose, else as the solver's data-free rule decides.

    given : the solver's option `constant`. outweighed : result of the solver's rule; False if the user gave another option.
    """
    if given and not fits(problem):
        raise SpecificationError(
            f"{solver}: constant=True releases the best constant model, which needs privacy, an intercept, a loss with such a "
            "model, and declared bounds for labels that are numbers: leave constant out"
        )
    return outweighed and fits(problem) if given is None else given


def event(problem: Problem) -> Gaussian:
    """Return the event of releasing the label statistic, which takes the whole budget μ."""
    if problem.mu is None:
        raise PrivacyError("a run without privacy releases no statistic with noise")
    return noised(statistic_of(problem), noise_multiplier(problem.mu, 1))


def schedule(problem: Problem) -> Schedule:
    """Release the statistic. Return the constant model, (p,), moved by one proximal step if the intercept is penalised."""
    w, *_ = yield from ReleasedStart(problem, 1.0).found(((event(problem), 1),))
    return joint.proximal(problem, w, 1.0 / problem.loss.curvature)


def explain(solver: str, problem: Problem, remedy: str, *, outweighed: bool) -> tuple[str, ...]:
    """Return sentences for the plan: the run releases only the constant model, the reason, and the remedies.

    remedy : remedies, in words, besides more records and a larger ε. outweighed : result of the solver's public rule.
    """
    if not outweighed:
        return ("the constant model alone, for the whole budget: constant=True.",)
    ratio = f"a signal-to-noise ratio of {signal_to_noise(problem):.2g}"
    why = f"at {ratio}, the noise of {solver} outweighs what it can learn from these records"
    remedies = f"{remedy}, more records or a larger ε let it learn; constant=False trains anyway."
    return (f"the constant model alone, for the whole budget: {why}.", remedies)
