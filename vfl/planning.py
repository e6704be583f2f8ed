"""The plan of a run: everything that public facts decide, before any data is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from vfl.alignment import reveals
from vfl.errors import SpecificationError
from vfl.losses import loss_of
from vfl.messages import Moments, Query
from vfl.privacy.accountants import choose_accountant
from vfl.privacy.events import PoissonSubsampledGaussian
from vfl.privacy.gaussian_dp import mu_of
from vfl.problem import INTERCEPT, Layout, Problem
from vfl.security import psi
from vfl.solvers.recommend import recommendation

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.privacy.events import Event
    from vfl.solvers.protocol import Solver
    from vfl.solvers.recommend import Recommendation

ROUND_TRIP_SECONDS = 0.8e-3
BYTES_A_SECOND = 1.2e9
UPDATE_SECONDS = 1.5e-9
"""Rough costs of a message between actors on one machine, of its bytes, and of one record in one coordinate update."""


def layout_of(job: Job) -> Layout:
    """Return where each coordinate lives: explicit blocks in their order, the intercept last at the label party."""
    partition = job.partition
    features = job.schema.features
    intercept = {partition.label_party: (INTERCEPT,)} if job.intercept else {}
    columns = {q: features(partition.canonical_columns(q)) + intercept.get(q, ()) for q in partition.parties}
    if partition.blocks is None:
        return Layout(columns)
    blocks = (*((q, features(block)) for q, block in partition.blocks), *intercept.items())
    return Layout(columns, {q: tuple(len(names) for owner, names in blocks if owner == q) for q in partition.parties})


def problem_of(job: Job, n_records: int) -> Problem:
    """Return the public problem for n records; δ defaults to 1/n²."""
    if n_records < 1:
        raise SpecificationError(f"n_records must be at least 1, not {n_records!r}")
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
    return Problem(
        n_records=n_records,
        layout=layout,
        loss=loss,
        penalty=job.penalty,
        reach=reach,
        label_range=label_range,
        # Where margins are on another scale than labels (Poisson's logarithm), its middle is no margin to start from.
        label_centre=float(centre[0]) if loss.response(centre)[0] == centre[0] else 0.0,
        epsilon=None if privacy is None else privacy.epsilon,
        delta=delta,
        mu=None if privacy is None or delta is None else mu_of(privacy.epsilon, delta),
        smoothness=smoothness,
        smoothness_share=0.0 if privacy is None else privacy.smoothness_share,
        penalise_intercept=getattr(job.solver, "penalises_intercept", False),
    )


def described(event: Event) -> str:
    """Return an event in words: its kind, and its numbers by name."""
    numbers = {f.name: getattr(event, f.name) for f in fields(event) if f.name != "adjacency"}
    return f"{type(event).__name__} ({', '.join(f'{name} {value:.6g}' for name, value in numbers.items())})"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A job with every open option decided.

    releases : all that the run will charge, as (event, count), empty without privacy.
    """

    job: Job
    problem: Problem
    solver: Solver
    releases: tuple[tuple[Event, int], ...]

    @property
    def committed(self) -> bool:
        """Whether what it costs holds for exactly these releases only: it samples records secretly."""
        return any(isinstance(event, PoissonSubsampledGaussian) for event, _ in self.releases)

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
        """What a certificate of this plan would say is not charged, in words."""
        from vfl.certificate import flags_of

        return flags_of(self)

    @property
    def round_trips(self) -> int:
        """Messages that the coordinator waits for."""
        return self.solver.round_trips(self.problem)

    @property
    def n_bytes(self) -> int:
        """Bytes of n-vectors between participants: two or three per message."""
        return self.round_trips * self.problem.n_records * 8 * 2

    @property
    def alignment_seconds(self) -> float:
        """Expected time of aligning parties with n ids each, on one core; 0.0 when the job aligns nothing."""
        return psi.seconds([self.problem.n_records] * len(self.job.ids), 1) if self.job.ids else 0.0

    @property
    def seconds(self) -> float:
        """Expected time of the rounds on one machine; a rough guide."""
        updates = sum(count * getattr(event, "dimension", 1) for event, count in self.releases)
        return (
            self.round_trips * ROUND_TRIP_SECONDS
            + self.n_bytes / BYTES_A_SECOND
            + updates * self.problem.n_records * UPDATE_SECONDS
        )

    def __str__(self) -> str:
        problem, job = self.problem, self.job
        lines = [
            f"plan of job {job.name!r}: {self.solver.name}, n = {problem.n_records}, p = {problem.layout.n_coordinates}"
        ]
        lines.append("  minimise   " + problem.describe())
        if job.privacy is None:
            lines.append("  privacy    NONE: the model is not differentially private")
        else:
            lines.append(
                f"  privacy    ε = {self.epsilon:.4g} at δ = {problem.delta:.3g} for every record (replace one), "
                f"of ε = {job.privacy.epsilon:g} allowed"
            )
            if job.privacy.noise is not None:
                lines.append(
                    "             NOT PRIVATE as run: seeded noise can be computed by anybody who has the seed"
                )
            lines.extend(f"  releases   {count} × {described(event)}" for event, count in self.releases)
            lines.extend("  flag       " + flag for flag in self.flags)
        lines.append(
            f"  cost       {self.round_trips} round trips, {self.n_bytes / 1e6:.3g} MB between participants, "
            f"about {self.seconds:.2g} s"
        )
        lines.extend(self._alignment_lines())
        lines.extend("  choice     " + sentence for sentence in self.solver.explain(problem))
        if problem.private:
            advice = recommendation(problem)
            lines.append(f"  advice     {advice.solver} is expected to win: {advice.reason} (vfl.recommend compares)")
        return "\n".join(lines)

    def _alignment_lines(self) -> list[str]:
        job = self.job
        if not job.ids:
            return []
        columns = job.id if isinstance(job.id, str) else ", ".join(f"{party}: {c}" for party, c in job.ids.items())
        n = self.problem.n_records
        cost = f"about {self.alignment_seconds:.2g} s on one core for {n} ids a party; more ids or parties take longer"
        shown = reveals(len(job.ids)).items()
        return [f"  align      by {columns}, {cost}", *(f"  shows      {who}: {what}" for who, what in shown)]


def plan(job: Job, n_records: int) -> Plan:
    """Decide everything that public facts decide; raises SpecificationError for what cannot be run.

    n_records : n, the number of aligned records.
    """
    problem = problem_of(job, n_records)
    solver = job.solver.resolve(problem)
    return Plan(job, problem, solver, solver.releases(problem))


def unnoised(job: Job) -> tuple[type[Query], ...]:
    """Return the kinds of query that may release without noise; coordinator and parties each refuse all others.

    All without privacy, and in a sealed solver, whose schedule gives away nothing but its noised end; else what the job
    itself declares, and its certificate flags.
    """
    if job.privacy is None or job.solver.sealed:
        return (Query,)
    smoothness = job.privacy.smoothness
    return (Moments,) if isinstance(smoothness, str) and smoothness == "data" else ()


def recommend(job: Job, n_records: int) -> Recommendation:
    """Return which solver is expected to win on this job, and the others, from public facts; the job's own is not asked.

    n_records : n, the number of aligned records.
    """
    return recommendation(replace(problem_of(job, n_records), penalise_intercept=False))
