"""Public problem of a job: objective, layout and budget for a number of records. All of them follow without reading data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.arguments import require_count
from vfl.base.columns import repeated
from vfl.base.features import Crossed, Curve, Feature, own_of
from vfl.base.holdout import COUNT
from vfl.base.penalties import ColumnTerms
from vfl.base.problem import INTERCEPT, Layout, Problem, coordinates_of
from vfl.errors import PrivacyError, SpecificationError
from vfl.job.job import require_job
from vfl.measures import distance as distances
from vfl.privacy.calibration import split as split_mu
from vfl.privacy.gaussian_dp import mu_of
from vfl.solvers.releases.knots import SHARE, Knots, event_for

if TYPE_CHECKING:
    from vfl.base.types import Vector
    from vfl.job import Job


def layout_of(job: Job) -> Layout:
    """Return the layout of the coordinates. Explicit blocks keep their order; the label party's intercept comes last."""
    partition = job.partition
    features = job.schema.features
    intercept = {partition.label_party: (INTERCEPT,)} if job.intercept else {}
    columns = {q: features(partition.canonical_columns(q)) + intercept.get(q, ()) for q in partition.parties}
    if partition.blocks is None:
        return Layout(columns, classes=job.class_names)
    blocks = (*((q, features(block)) for q, block in partition.blocks), *intercept.items())
    sizes = {q: tuple(len(names) for owner, names in blocks if owner == q) for q in partition.parties}
    return Layout(columns, sizes, job.class_names)


def problem_of(job: Job, n_records: int) -> Problem:
    """Return the public problem for n records, including held-out records. The default of δ is 1/n²."""
    require_job(job)
    require_count("n_records", n_records)
    layout = layout_of(job)
    if layout.n_coordinates == 0:
        raise SpecificationError("nothing to train: no party has a column, and there is no intercept")
    if twice := repeated(layout.names):
        raise SpecificationError(f"two coordinates of the model would be named {twice!r}: rename a column")
    if job.multinomial and not job.solver.multinomial:
        raise SpecificationError(
            f"{job.solver.name} moves one linear predictor per record, and multinomial loss has one per class: use SkGD, "
            "CD or GD, or logistic loss for a one-vs-rest model, classes=((A, B), C)"
        )
    if job.privacy is not None and job.intervals and not job.solver.infers:
        raise SpecificationError(
            f"{job.solver.name} releases nothing that standard errors could follow from: use SkGD, or leave "
            "intervals out"
        )
    subsamples = job.subsamples(n_records)
    if subsamples is not None:
        _require_subsampled(job)
        n_trained = subsamples.size
    else:
        n_trained = n_records if job.split is None else job.split.sizes(n_records)[0]
    loss = job.declared_loss
    scaling = job.scaling_of(job.partition.features)
    reach_of = dict(zip(scaling.features, scaling.reach, strict=True)) | {INTERCEPT: 1.0}
    columns = [name for names in layout.columns.values() for name in names]
    reach = layout.of_columns([reach_of[name] for name in columns])
    low, high = job.schema[job.partition.label_column].limits
    label_range = 2.0 if loss.classification else high - low
    if 0.0 < label_range < math.inf:
        loss = loss.of_spread(label_range / 7.2)  # `typical_spread`
    centre = np.array([0.0 if loss.classification or not math.isfinite(label_range) else low / 2 + high / 2])
    privacy = job.privacy
    smoothness: Any = "data" if privacy is None else privacy.smoothness
    if not isinstance(smoothness, str):
        declared = {**smoothness, INTERCEPT: loss.curvature}
        smoothness = layout.of_columns([declared[c] for c in columns])
    delta = None if privacy is None else privacy.delta if privacy.delta is not None else 1.0 / max(n_records, 2) ** 2
    problem = Problem(
        n_records=n_trained,
        layout=layout,
        loss=loss,
        penalty=job.penalty,
        reach=reach,
        label_range=label_range,
        # Start from 0 if margins and labels differ in scale, as under Poisson loss, whose margins are logarithms.
        label_centre=float(centre[0]) if loss.response(centre)[0] == centre[0] else 0.0,
        label_low=low,
        epsilon=None if privacy is None else privacy.epsilon,
        delta=delta,
        mu=None if privacy is None or delta is None else mu_of(privacy.epsilon, delta),
        smoothness=smoothness,
        smoothness_share=0.0 if privacy is None else privacy.smoothness_share,
        one_sided=bool(2 * np.count_nonzero(np.sign(scaling.lo) * np.sign(scaling.hi) >= 0) > scaling.lo.size),
        sparse=frozenset(job.partition.sparse),
        penalise_intercept=job.solver.penalises_intercept,
        start=_start(job, layout),
        exposure=None if job.partition.exposure is None else job.schema[job.partition.exposure].limits,
        weighted=job.partition.weight is not None,
        inference=job.intervals_share,
        subsamples=1 if subsamples is None else COUNT,
        terms=_terms(job, layout),
    )
    if (knots := _knots(job, problem)) is not None:
        problem = replace(problem, layout=replace(layout, unused=knots.unused))
    if privacy is None or delta is None:
        return problem
    budgets = budgets_of(job, problem)
    return replace(problem, mu=budgets.solver, besides=budgets.besides)


def _require_subsampled(job: Job) -> None:
    """Raise SpecificationError if a job on subsamples also asks for releases on all records."""
    curved = any(isinstance(own, Curve) and own.knots is None for own in job.columns.values())
    for asked, what, remedy in (
        (
            job.holdout is not None,
            "divides all records",
            "leave holdout out, and measure on other records (vfl evaluate)",
        ),
        (
            job.class_balance is not None,
            "releases no joint count",
            "leave class_balance out",
        ),
        (job.diagnostics, "has no objective over all records", "leave diagnostics out"),
        (curved, "would place the knots of each subsample elsewhere", "declare the knots of curves"),
    ):
        if asked:
            raise SpecificationError(f"intervals='subsamples' {what}: {remedy}, or leave intervals out")


def _terms(job: Job, layout: Layout) -> ColumnTerms | None:
    """Return penalties and limits that columns add to the objective; None if no column adds one."""
    at = {name: j for j, name in enumerate(layout.names)}
    low, high, penalties = np.full(layout.n_coordinates, -np.inf), np.full(layout.n_coordinates, np.inf), []
    for column in job.partition.features:
        declared = job.schema[column]
        if not isinstance(declared, Feature) or (terms := declared.terms) is None:
            continue
        if (why := _why_no_terms(job)) is not None:
            raise SpecificationError(f"column {column!r} has a smoothness or a shape: {why}")
        own = [at[name] for name in own_of(declared, column)]
        low[own], high[own] = terms.low, terms.high
        penalties.append((tuple(own), terms.penalty))
    return ColumnTerms(low, high, tuple(penalties)) if penalties else None


def _why_no_terms(job: Job) -> str | None:
    """Return the reason why a job cannot have curves with a smoothness or a shape; None if the job can have them."""
    if not job.solver.takes_terms:
        return f"{job.solver.name} has no steps by coordinates: use SkGD or CD, or leave them out"
    if job.multinomial:
        return "multinomial loss has several coefficients per coordinate, and they need a single one: leave them out"
    if job.secure is not None:
        return "trust='secure' does not support them: leave them out, or use trust='trusted'"
    if job.privacy is not None and job.intervals:
        return "standard errors are derived for steps without them: leave them or intervals out"
    return None


def _start(job: Job, layout: Layout) -> Vector | None:
    """Return the scaled coefficients (p,) from which training starts, in the layout's order; None if the job names no start."""
    if job.start is None:
        return None
    given, classes = job.start.coefficients, job.class_names
    scaling, by_name = job.scaling_of(job.partition.features), dict[str, float]()
    for k in range(job.n_outputs):
        names = [coordinates_of(name, classes)[k] for name in scaling.features]
        intercept = coordinates_of(INTERCEPT, classes)[k]
        w, b = scaling.scaled_units(np.array([given[name] for name in names]), given.get(intercept, 0.0))
        by_name |= dict(zip(names, map(float, w), strict=True)) | {intercept: b}
    return np.array([by_name[name] for name in layout.names])


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets μ on the training records, of the solver's releases and of each other release; None for a release not made."""

    solver: float
    knots: float | None = None
    class_balance: float | None = None
    distance: float | None = None

    @property
    def besides(self) -> Fraction:
        """Exact sum of μ² over the releases that are not the solver's."""
        return sum((Fraction(mu) ** 2 for mu in (self.knots, self.class_balance, self.distance) if mu), Fraction(0))


def budgets_of(job: Job, problem: Problem) -> Budgets:
    """Return the budgets of a private job. `problem` has the job's δ and decides if the unfairness can be bounded."""
    privacy = job.privacy
    if privacy is None or problem.delta is None:
        raise PrivacyError("a job without privacy has no budget to divide")
    left, knots, balance, distance = mu_of(privacy.epsilon, problem.delta), None, None, None
    if (found := _knots(job, problem)) is not None and found.bent:
        knots, left = split_mu(left, SHARE)
    share = job.class_balance
    if share is not None:
        balance, left = split_mu(left, share)
    if job.fairness is not None and bounds_fairness(job, problem) and not hasattr(job.solver, "radius"):
        of_distance = job.fairness.distance_share
        if of_distance + (share or 0.0) >= 1.0:
            raise PrivacyError(
                "fairness.distance_share and class_balance leave no budget for training: lower one of them"
            )
        distance, left = split_mu(left, of_distance / (1.0 - (share or 0.0)))
    return Budgets(left, knots, balance, distance)


def knots_of(job: Job, problem: Problem) -> Knots | None:
    """Return the release that chooses the knots of a job's curves; None if all curves have declared knots."""
    found = _knots(job, problem)
    if found is None or job.privacy is None or not found.bent:
        return found
    columns, mu = sum(map(len, found.bent.values())), budgets_of(job, problem).knots or 0.0
    return replace(found, event=event_for(columns, mu, problem.n_records))


def _knots(job: Job, problem: Problem) -> Knots | None:
    """Return the curves whose knots the run chooses, with numbers of pieces, but without the event to charge."""
    partition, privacy, curves = job.partition, job.privacy, {}
    for party in partition.parties:
        named = ((column, job.schema[column]) for column in partition.canonical_columns(party))
        curves[party] = tuple(
            (c, declared) for c, declared in named if isinstance(declared, Curve) and declared.knots is None
        )
    curves = {party: own for party, own in curves.items() if own}
    if not curves:
        return None
    columns = len(partition.features)
    mu = math.inf if privacy is None or problem.delta is None else mu_of(privacy.epsilon, problem.delta)
    pairs = tuple(own for own in map(job.schema.__getitem__, partition.features) if isinstance(own, Crossed))
    return Knots(curves, problem.n_records, mu * problem.n_records / columns, None, pairs)


def bounds_fairness(job: Job, problem: Problem) -> bool:
    """Return True if the job asks to bound the unfairness of the noise-free model and public facts allow a bound."""
    return job.fairness is not None and job.fairness.bound and not distances.why_none(problem)
