"""The plan of a run: everything that public facts decide, before any data is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vfl.arguments import require_whole
from vfl.errors import PrivacyError, SpecificationError
from vfl.evaluation import distance as distances
from vfl.evaluation.distance import Distance
from vfl.evaluation.fairness import GroupColumn, GroupFairness
from vfl.evaluation.inquiries import ClassBalance, Diagnosis, HeldOut
from vfl.holdout import Side
from vfl.job.flags import flags_of
from vfl.losses import loss_of
from vfl.messages import Backward, Moments, Query, Unnoised
from vfl.planning import words
from vfl.privacy.accountants import choose_accountant
from vfl.privacy.calibration import split as split_mu
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian, bare, on_part
from vfl.privacy.gaussian_dp import epsilon_of, mu_of
from vfl.privacy.zcdp import rho_of
from vfl.problem import INTERCEPT, Layout, Problem
from vfl.schema import categories_of
from vfl.security import psi
from vfl.solvers.recommend import recommendation

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from vfl.evaluation.estimates import Findings
    from vfl.evaluation.inquiries import Inquiry
    from vfl.job import Job
    from vfl.privacy.events import Event
    from vfl.solvers.protocol import Released, Solver
    from vfl.solvers.recommend import Recommendation
    from vfl.types import Vector

ROUND_TRIP_SECONDS = 0.8e-3
BYTES_A_SECOND = 1.2e9
RELEASE_SECONDS = 0.15e-3
UPDATE_SECONDS = 2e-9
MANY = 10**9
"""Rough costs on one machine: of a message between actors, per byte of it, of charging, noising and logging one release, and
of one record in one coordinate update. MANY : more records than a job has."""
THRESHOLDS = (
    "thresholds per group: predicting with them needs each record's group and treats equal records of two groups "
    "differently, which law may forbid; leave fairness.thresholds out to measure only"
)


def layout_of(job: Job) -> Layout:
    """Return the layout of the coordinates: explicit blocks in their order, the intercept last at the label party."""
    partition = job.partition
    features = job.schema.features
    intercept = {partition.label_party: (INTERCEPT,)} if job.intercept else {}
    columns = {q: features(partition.canonical_columns(q)) + intercept.get(q, ()) for q in partition.parties}
    if partition.blocks is None:
        return Layout(columns)
    blocks = (*((q, features(block)) for q, block in partition.blocks), *intercept.items())
    return Layout(columns, {q: tuple(len(names) for owner, names in blocks if owner == q) for q in partition.parties})


def problem_of(job: Job, n_records: int) -> Problem:
    """Return the public problem for n records, of which some may be held out; δ defaults to 1/n²."""
    require_whole("n_records", n_records)
    if n_records < 1:
        raise SpecificationError(f"n_records must be at least 1, not {n_records!r}")
    split = job.split
    layout = layout_of(job)
    if layout.n_coordinates == 0:
        raise SpecificationError("nothing to train: no party has a column, and there is no intercept")
    loss = loss_of(job.loss)
    scaling = job.scaling_of(job.partition.features)
    reach_of = dict(zip(scaling.features, scaling.reach, strict=True)) | {INTERCEPT: 1.0}
    reach = np.array([reach_of[name] for name in layout.names])
    low, high = job.schema[job.partition.label_column].limits
    label_range = 2.0 if loss.classification else high - low
    centre = np.array([0.0 if loss.classification or not math.isfinite(label_range) else low / 2 + high / 2])
    privacy = job.privacy
    smoothness: str | np.ndarray = "data"
    if privacy is not None:
        declared = privacy.smoothness
        if isinstance(declared, str):
            smoothness = declared
        else:
            smoothness = np.array([loss.curvature if c == INTERCEPT else declared[c] for c in layout.names], float)
    delta = None if privacy is None else privacy.delta if privacy.delta is not None else 1.0 / max(n_records, 2) ** 2
    problem = Problem(
        n_records=n_records if split is None else split.sizes(n_records)[0],
        layout=layout,
        loss=loss,
        penalty=job.penalty,
        reach=reach,
        label_range=label_range,
        # Start from 0 if margins and labels differ in scale, as under Poisson loss, whose margins are logarithms.
        label_centre=float(centre[0]) if loss.response(centre)[0] == centre[0] else 0.0,
        epsilon=None if privacy is None else privacy.epsilon,
        delta=delta,
        mu=None if privacy is None or delta is None else mu_of(privacy.epsilon, delta),
        smoothness=smoothness,
        smoothness_share=0.0 if privacy is None else privacy.smoothness_share,
        one_sided=bool(2 * np.count_nonzero(np.sign(scaling.lo) * np.sign(scaling.hi) >= 0) > scaling.lo.size),
        sparse=frozenset(job.sparse),
        penalise_intercept=getattr(job.solver, "penalises_intercept", False),
    )
    if privacy is None or delta is None:
        return problem
    budgets = _budgets(job, problem)
    if budgets.others:  # solvers that divide ε themselves get the ε of their share
        return replace(problem, mu=budgets.solver, epsilon=epsilon_of(budgets.solver * (1.0 - 1e-12), delta))
    return problem


@dataclass(frozen=True, slots=True)
class _Budgets:
    """μ of the training part's releases: the solver's, and those bought beside it; None for what is not bought."""

    solver: float
    class_balance: float | None = None
    distance: float | None = None

    @property
    def others(self) -> bool:
        """True if anything is bought beside the solver's releases."""
        return self.class_balance is not None or self.distance is not None


def _budgets(job: Job, problem: Problem) -> _Budgets:
    """Return the budgets of the training part of a private job; `problem` gives δ and decides whether a bound exists."""
    privacy = job.privacy
    if privacy is None or problem.delta is None:
        raise PrivacyError("a job without privacy has no budget to divide")
    left, bought = mu_of(privacy.epsilon, problem.delta), _Budgets(0.0)
    share = privacy.class_balance
    if share is not None:
        balance, left = split_mu(left, share)
        bought = replace(bought, class_balance=balance)
    if job.fairness is not None and _bounds(job, problem) and not hasattr(job.solver, "radius"):
        of_distance = job.fairness.distance_share
        if of_distance + (share or 0.0) >= 1.0:
            raise PrivacyError(
                "fairness.distance_share and privacy.class_balance leave no budget for training: lower one of them"
            )
        distance, left = split_mu(left, of_distance / (1.0 - (share or 0.0)))
        bought = replace(bought, distance=distance)
    return replace(bought, solver=left)


def _bounds(job: Job, problem: Problem) -> bool:
    """Return True if the job asks for a bound of its fairness without noise, and public facts allow one."""
    return job.fairness is not None and job.fairness.bound and not distances.why_none(problem)


def _evaluation_mu(epsilon: float, delta: float, trained: tuple[tuple[Event, int], ...]) -> float:
    """Return the largest μ of a Gaussian release on the held-out part that fits under (ε, δ).

    trained : the solver's releases, which decide the accounting. Gaussian releases are added exactly, a mix by its ρ = μ²/2,
    and plans with secret samples by their privacy loss distribution, which loses less than a thousandth.
    """
    kinds = {type(event) for event, _ in trained}
    if kinds <= {Gaussian}:
        return mu_of(epsilon, delta)
    if PoissonSubsampledGaussian in kinds:
        return 0.999 * mu_of(epsilon, delta)
    return math.sqrt(2.0 * rho_of(epsilon, delta)) * (1.0 - 1e-12)


def inquiries_of(
    job: Job, problem: Problem, n_records: int, solver: Solver, trained: tuple[tuple[Event, int], ...]
) -> tuple[Inquiry, ...]:
    """Return the evaluation queries planned after training, in order; `trained` are the releases of the resolved solver."""
    asked: list[Inquiry] = []
    privacy, delta = job.privacy, problem.delta
    if job.evaluation is not None:
        mu = None
        if privacy is not None and delta is not None and not job.evaluation.public:
            mu = _evaluation_mu(job.evaluation.epsilon or privacy.epsilon, delta, trained)
        measured = n_records - problem.n_records
        if job.fairness is None:
            asked.append(HeldOut(problem, job.evaluation, measured, mu))
        else:
            compared, mu = (None, None) if mu is None else split_mu(mu, job.fairness.share)
            asked.append(HeldOut(problem, job.evaluation, measured, mu))
            asked += _comparisons(job, problem, solver, measured, compared)
    if privacy is not None and delta is not None and privacy.class_balance is not None:
        asked.append(ClassBalance(problem.n_records, _budgets(job, problem).class_balance))
    if job.diagnostics:
        asked.append(Diagnosis(problem))
    return tuple(asked)


def _comparisons(job: Job, problem: Problem, solver: Solver, n_records: int, mu: float | None) -> list[Inquiry]:
    """Return the inquiries on fairness: the distance if there is a bound, then the groups."""
    spec, partition, asked = job.fairness, job.partition, []
    if spec is None:
        return []
    if _bounds(job, problem):
        public = getattr(solver, "radius", None)
        radius = None if public is None else public(problem, distances.OF_DISTANCE)
        bought = _budgets(job, problem).distance if problem.private else None
        asked.append(Distance(problem, bought, radius))
    columns = tuple(GroupColumn(c, partition.owner(c), categories_of(job.schema[c])) for c in spec.columns)
    why = distances.why_none(problem) if spec.bound else ""
    return [*asked, GroupFairness(problem, spec, columns, n_records, mu, why)]


def warnings_of(delta: float, n_records: int) -> tuple[str, ...]:
    """Return the warning about a δ that is too large for n records (Dwork & Roth 2014, section 2.3), if it is."""
    if delta * n_records < 1.0:
        return ()
    warning = (
        f"δ = {delta:.3g} is not below 1/n = {1 / n_records:.3g}: so weak a guarantee lets one record, drawn at random, be "
        f"published; leave privacy.delta out for 1/n² = {1 / n_records**2:.3g}, or give less"
    )
    return (warning,)


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A job with every open option decided.

    problem : of the training records. n_records : n, held-out records included.
    releases : all charges of the run, as (event, count); () without privacy.
    inquiries : evaluation queries after training.
    split : name of the public split of the records, None without a hold-out.
    """

    job: Job
    problem: Problem
    solver: Solver
    releases: tuple[tuple[Event, int], ...]
    n_records: int
    inquiries: tuple[Inquiry, ...] = ()
    split: str | None = None

    def schedule(self) -> Generator[Query, Released, tuple[Vector, Mapping[str, Findings]]]:
        """Train, then run the evaluation queries; return w (p,) and {inquiry: findings}."""
        w = yield from self.solver.schedule(self.problem)
        found: dict[str, Findings] = {}
        for inquiry in self.inquiries:
            found[inquiry.name] = yield from inquiry.schedule(w, found)
        return w, found

    @property
    def committed(self) -> bool:
        """True if the cost holds only for exactly these releases, because the plan samples records secretly."""
        return any(isinstance(bare(event), PoissonSubsampledGaussian) for event, _ in self.releases)

    @property
    def epsilon(self) -> float:
        """ε at the plan's δ of all planned releases together; inf without privacy."""
        if self.problem.delta is None:
            return math.inf
        accountant = choose_accountant(self.releases, committed=self.committed)
        for event, count in self.releases:
            accountant.compose(event, count)
        return accountant.epsilon(self.problem.delta)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of this plan's certificate: data-dependent values that are not charged, in words."""
        return flags_of(self.job)

    @cached_property
    def round_trips(self) -> int:
        """Number of messages that the coordinator waits for. Counting them may take a walk through the solver's whole order."""
        return self.solver.round_trips(self.problem) + sum(inquiry.queries for inquiry in self.inquiries)

    @property
    def n_bytes(self) -> int:
        """Bytes of n-vectors that travel between participants, two vectors per message."""
        return self.round_trips * self.problem.n_records * 8 * 2

    @property
    def alignment_seconds(self) -> float:
        """Expected time of the alignment on one core if all ids are common to all parties; 0.0 without alignment."""
        return psi.seconds([self.n_records] * len(self.job.ids), 1) if self.job.ids else 0.0

    @property
    def seconds(self) -> float:
        """Expected time of the rounds on one idle machine with running actors; a rough guide."""
        releases = sum(count for _, count in self.releases)
        updates = sum(count * getattr(event, "dimension", 1) for event, count in self.releases)
        return (
            self.round_trips * ROUND_TRIP_SECONDS
            + self.n_bytes / BYTES_A_SECOND
            + releases * RELEASE_SECONDS
            + updates * self.problem.n_records * UPDATE_SECONDS
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about suspicious plans, each with its remedy, from public facts alone."""
        fairness = self.job.fairness
        chosen = (THRESHOLDS,) if fairness is not None and fairness.thresholds else ()
        return chosen if self.problem.delta is None else (*warnings_of(self.problem.delta, self.n_records), *chosen)

    def __str__(self) -> str:
        return words.text(words.title(self), words.outline(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return words.html(words.title(self), words.outline(self))

    def explain(self) -> str:
        """Return the whole plan as text: the objective as a formula, every release with its noise, and every choice."""
        return words.text(words.title(self), words.whole(self))


def plan(job: Job, n_records: int) -> Plan:
    """Decide every open option of a job from public facts; SpecificationError if the job cannot run.

    n_records : n, the number of aligned records.
    """
    problem = problem_of(job, n_records)
    solver = job.solver.resolve(problem)
    trained = solver.releases(problem)
    inquiries = inquiries_of(job, problem, n_records, solver, trained)
    name = None if job.split is None else job.split.name
    asked = [(release, Side.TRAINING) for release in trained]
    asked += [(release, inquiry.side) for inquiry in inquiries for release in inquiry.releases()]
    releases = tuple((on_part(event, name, side.value), count) for (event, count), side in asked)
    planned = Plan(job, problem, solver, releases, n_records, inquiries, name)
    privacy = job.privacy
    if privacy is not None and planned.epsilon > privacy.epsilon * (1.0 + 1e-9):
        bought = _budgets(job, problem)
        if bought.others:
            option = "class_balance is" if bought.class_balance is not None else "the bound of fairness is"
            remedy = "leave it out" if bought.class_balance is not None else "set its bound to false"
            raise PrivacyError(
                f"{option} bought with a share of μ², which the accounting of {solver.name} does not divide: {remedy}, or "
                "use SkGD"
            )
    return planned


def check(job: Job) -> Plan:
    """Raise the errors of `plan` that no number of records would avoid, before an alignment finds n.

    Return the plan of the training alone for the largest of the numbers that were tried.
    """
    for n_records in (MANY, 10**6, 10**3):
        try:
            return plan(job.on_all_records(), n_records)
        except SpecificationError as error:
            refused = error
    raise refused


def unnoised(job: Job) -> tuple[type[Query], ...]:
    """Return the kinds of query that may release without noise; coordinator and parties each refuse all others.

    Without privacy, all kinds. For a sealed solver, gradients: its schedule releases only the noised model at its end.
    Otherwise the kinds that the job itself declares, which its certificate flags.
    """
    if job.privacy is None:
        return (Query,)
    smoothness = job.privacy.smoothness
    exact: tuple[type[Query], ...] = (Moments,) if isinstance(smoothness, str) and smoothness == "data" else ()
    exact = (Backward,) if job.solver.sealed else exact
    return (*exact, Unnoised) if job.uncharged else exact


def recommend(job: Job, n_records: int) -> Recommendation:
    """Return the solvers ranked by their expected error on this job, from public facts, whatever solver the job names.

    n_records : n, the number of aligned records.
    """
    return recommendation(replace(problem_of(job, n_records), penalise_intercept=False))
