"""Covariance of a run's coefficients, from its releases alone: noise of privacy by the recursion, sampling by the sandwich.

V = noise_covariance + H⁻¹ J H⁻¹, with H = Σ h_i z_i z_iᵀ and J = Σ ρ_i² z_i z_iᵀ of vfl.solvers.releases.products: the
covariance of an M-estimator (Huber 1967; White 1980), which holds for misspecified models too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.inference.inference import Inference
from vfl.inference.matrices import Noisy
from vfl.inference.recursion import Update, noise_covariance
from vfl.messages import Backward, Descend
from vfl.problem import INTERCEPT
from vfl.solvers.blocks.prox import ProxStep
from vfl.solvers.noisy_gram import OFF_DIAGONAL
from vfl.solvers.releases.products import Products
from vfl.solvers.rules.intervals import CLEAR, clearness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.planning import Plan
    from vfl.problem import Problem
    from vfl.solvers.protocol import Released
    from vfl.types import Vector

DRAWS = 16
"""Draws of H and J over which covariances are averaged, from a public seed."""
TARGET = (
    "intervals are for the coefficients of the capped regression, which are the usual ones if the model is right, or if errors "
    "are symmetric given the columns"
)
CONSERVATIVE = "the released curvature is noisy, so intervals are wider than their level needs"
SINGULAR = "levels of {columns} add up to the intercept: only differences between levels have a meaning"


@dataclass(eq=False, slots=True)
class Trail:
    """Releases of a run, sorted by their part in the covariance.

    scale, centre : (p,) of the columns. products : {of_curvature: {column: its products with later ones}}.
    noises : {of_curvature: (σ of a release, bound R)}.
    """

    updates: list[Update] = field(default_factory=list)
    centre: Vector = field(default_factory=lambda: np.zeros(0))
    scale: Vector = field(default_factory=lambda: np.zeros(0))
    products: dict[bool, dict[int, Vector]] = field(default_factory=lambda: {True: {}, False: {}})
    noises: dict[bool, tuple[float, float]] = field(default_factory=dict)

    def note(self, query: Any, released: Released) -> None:
        """Record a query of the run with its releases."""
        if isinstance(query, Descend):
            for step in query.ordered():
                if type(step.rule) is not ProxStep or step.event is None:
                    raise ValueError("a step is not linear in its release")
                # A penalty λ/2 w² has prox w/(1 + sλ).
                kept = 1.0 / (1.0 + step.rule.steps * step.rule.penalty.convexity)
                gain = step.rule.gain / step.scale
                self.updates.append(Update(step.block.coordinates, gain, kept, step.event.sigma))
        elif isinstance(query, Backward) and isinstance(query.weighting, Products) and query.fold is not None:
            kind, number = query.weighting.of_curvature, query.fold.number
            if not number:  # the first piece has all columns
                once = np.where(np.arange(query.fold.of) == 0, 1.0, OFF_DIAGONAL)
                self.centre, self.scale = np.concatenate(query.centres), np.concatenate(query.scales) / once
            self.products[kind][number] = np.concatenate(released)
            self.noises[kind] = (0.0 if query.event is None else query.event.sigma, query.weighting.bound)

    def matrix(self, of_curvature: bool) -> Noisy | None:
        """Return a released matrix in units of the sum over records; None if pieces are missing."""
        pieces, p = self.products[of_curvature], len(self.scale)
        if not p or len(pieces) < p:
            return None
        sigma, bound = self.noises[of_curvature]
        M = np.zeros((p, p))
        for j, u in pieces.items():
            M[j:, j] = u
            M[j + 1 :, j] /= OFF_DIAGONAL
        return Noisy(bound * (np.tril(M) + np.tril(M, -1).T), bound * sigma)


def trail_of(plan: Plan, released: Sequence[Released | None]) -> Trail | None:
    """Return the releases of a run by repeating its schedule with them; None for a run that lost some.

    released : of all queries, in order; None for a query that was refused.
    """
    schedule, trail = plan.solver.schedule(plan.problem), Trail()
    try:
        query = next(schedule)
        for values in released:
            if values is None:
                return None
            trail.note(query, values)
            query = schedule.send(values)
    except StopIteration:
        return trail
    return None


def inference_of(plan: Plan, released: Sequence[Released | None], original: dict[str, float]) -> Inference | None:
    """Return estimates and covariance of a finished run; None if it released nothing for them, or lost a party.

    original : coefficients in original units, as in `Result.original`.
    """
    problem = plan.problem
    if problem.inference is None or (trail := trail_of(plan, released)) is None:
        return None
    H, J = trail.matrix(True), trail.matrix(False)
    solver: Any = plan.solver
    if H is None or J is None:
        return None
    noise, both = covariances(problem, trail, solver.skipped(problem), H, J)
    to_original = _to_original(plan, trail)
    conservative = H.clearness < CLEAR or clearness(solver, problem) < CLEAR
    notes = (TARGET, *((CONSERVATIVE,) if conservative else ()), *_singular(plan))
    return Inference(
        tuple(original),
        np.array(list(original.values())),
        to_original @ both @ to_original.T,
        to_original @ noise @ to_original.T,
        conservative,
        notes,
    )


def covariances(problem: Problem, trail: Trail, skipped: int, H: Noisy, J: Noisy) -> tuple[Vector, Vector]:
    """Return the covariance by noise and the whole one, (p, p), in units of the scaled columns."""
    rng, draws = np.random.default_rng(0), DRAWS if H.sigma or J.sigma else 1
    Hs, Js = H.drawn(draws, rng), J.drawn(draws, rng)
    noise = noise_covariance(trail.updates, skipped, Hs).mean(axis=0)
    ridge = problem.n_records * problem.penalty.convexity * problem.penalised * trail.scale**2
    inverse = np.linalg.inv(Hs + np.diag(ridge))
    sampling: Vector = (inverse @ Js @ inverse).mean(axis=0)
    return noise, noise + sampling


def _to_original(plan: Plan, trail: Trail) -> Vector:
    """Return the matrix (k, p) from scaled and centred coordinates of the layout to `Result.original`."""
    job, names = plan.job, plan.problem.layout.names
    scaling = job.scaling_of(job.partition.features)
    features = job.schema.features(job.partition.features)
    found = np.zeros((len(features) + job.intercept, len(names)))
    for column, (name, s, c) in enumerate(zip(names, trail.scale, trail.centre, strict=True)):
        w = np.array([s if own == name else 0.0 for own in features])
        coefficients, constant = scaling.original_units(w, s if name == INTERCEPT else -s * c if job.intercept else 0.0)
        found[: len(features), column] = coefficients
        if job.intercept:
            found[-1, column] = constant
    return found


def _singular(plan: Plan) -> tuple[str, ...]:
    """Return a note on categorical columns whose levels add up to the intercept."""
    job = plan.job
    full = [c for c in job.partition.features if job.intercept and job.schema[c].kind == "categorical"]
    return (SINGULAR.format(columns=", ".join(full)),) if full else ()
