"""Covariance of a run's coefficients, computed from its releases alone.

V = noise_covariance + H⁻¹ J H⁻¹. The released H = Σ h_i z_i z_iᵀ and J = Σ ρ_i² z_i z_iᵀ are those of
vfl.solvers.releases.products. The first term is due to the noise of privacy (vfl.inference.recursion). The second term is due
to sampling: the sandwich covariance of an M-estimator (Huber 1967; White 1980), which is valid for misspecified models too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.inference.inference import Inference
from vfl.inference.matrices import Noisy
from vfl.inference.recursion import iterate_covariance, noise_bias, noise_covariance
from vfl.problem import INTERCEPT
from vfl.solvers.blocks.observed import Observed
from vfl.solvers.rules.intervals import CLEAR, clearness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.planning import Plan
    from vfl.problem import Problem
    from vfl.solvers.protocol import Released
    from vfl.types import Vector

DRAWS = 16
"""Number of draws of the matrices H and J, from a public seed. Covariances are averages over the draws."""


def observed(plan: Plan, released: Sequence[Released | None]) -> Observed | None:
    """Replay a run's schedule on the run's releases; return the updates and the released matrices. None if a release was lost.

    released : released values of all queries, in order; None in place of a query that was refused.
    """
    schedule, seen = plan.solver.schedule(plan.problem), Observed()
    try:
        query = next(schedule)
        for values in released:
            if values is None:
                return None
            seen.note(query, values)
            query = schedule.send(values)
    except StopIteration:
        return seen
    return None


def inference_of(plan: Plan, released: Sequence[Released | None], original: dict[str, float]) -> Inference | None:
    """Return estimates and covariance of a finished run. None if the run lost a party or released no curvature.

    original : coefficients in original units, as in `Result.original`.
    """
    problem = plan.problem
    if problem.inference is None or (seen := observed(plan, released)) is None:
        return None
    H, J = (_noisy(seen.matrix(of_curvature=kind)) for kind in (True, False))
    solver: Any = plan.solver
    if H is None or J is None:
        return None
    noise, both = covariances(problem, seen, solver.skipped(problem), H, J)
    to_original = _to_original(plan, seen)
    conservative = H.clearness < CLEAR or clearness(solver, problem) < CLEAR
    return Inference(
        tuple(original),
        np.array(list(original.values())),
        to_original @ both @ to_original.T,
        to_original @ noise @ to_original.T,
        conservative,
    )


def covariances(problem: Problem, seen: Observed, skipped: int, H: Noisy, J: Noisy) -> tuple[Vector, Vector]:
    """Return two covariances, (p, p) in units of the scaled columns: the part due to privacy noise, and the total.

    Under a log link, noise gives the coefficients a bias b. Both covariances then contain b bᵀ, so that intervals cover the
    coefficients in spite of the bias.
    """
    rng, draws = np.random.default_rng(0), DRAWS if H.sigma or J.sigma else 1
    Hs, Js = H.drawn(draws, rng), J.drawn(draws, rng)
    noise = noise_covariance(seen.updates, skipped, Hs).mean(axis=0)
    if problem.loss.power is not None:
        mean, at = Hs.mean(axis=0), problem.layout.names.index(INTERCEPT)
        spread = iterate_covariance(seen.updates, skipped, mean)
        b = noise_bias(spread, mean, problem.loss.power, at, seen.scale[at])
        noise += np.outer(b, b)
    ridge = problem.n_records * problem.penalty.convexity * problem.penalised * seen.scale**2
    inverse = np.linalg.inv(Hs + np.diag(ridge))
    sampling: Vector = (inverse @ Js @ inverse).mean(axis=0)
    return noise, noise + sampling


def _to_original(plan: Plan, seen: Observed) -> Vector:
    """Return the matrix (k, p) that maps scaled and centred coordinates to the original units of `Result.original`."""
    job, names = plan.job, plan.problem.layout.names
    scaling = job.scaling_of(job.partition.features)
    features = job.schema.features(job.partition.features)
    found = np.zeros((len(features) + job.intercept, len(names)))
    for column, (name, s, c) in enumerate(zip(names, seen.scale, seen.centre, strict=True)):
        w = np.array([s if own == name else 0.0 for own in features])
        coefficients, constant = scaling.original_units(w, s if name == INTERCEPT else -s * c if job.intercept else 0.0)
        found[: len(features), column] = coefficients
        if job.intercept:
            found[-1, column] = constant
    return found


def _noisy(released: tuple[Vector, float] | None) -> Noisy | None:
    return None if released is None else Noisy(*released)
