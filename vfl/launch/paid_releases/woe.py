"""Private release of weight of evidence and information value of binned columns, under a separate privacy budget."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.columns import Categorical, Dropped, indicators
from vfl.base.features import Binned
from vfl.errors import SpecificationError
from vfl.job.job import require_job
from vfl.launch.paid_releases.paid_release import asked_columns, cost_of, paid_release
from vfl.launch.run.scorecard import Bin, Evidence, WeightOfEvidence
from vfl.privacy.specification import Privacy
from vfl.solvers.releases.bins import LabelledCounts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.job.environment import Ledger
    from vfl.launch.sites.open_site import At
    from vfl.privacy.noise import SeededNoise

DECLARE = ": declare vfl.columns.Binned(edges) for it, with edges that are known or released by vfl.releases.private_quantiles"
RARE = math.log(1000.0)
SEEN = 2.0
"""A count is visible if it is at least this many standard deviations of the count's noise. A bin has a weight if one of its two
counts is visible.
"""


def woe(
    job: Job,
    data: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    columns: Sequence[str] | None = None,
    noise: SeededNoise | None = None,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
) -> WeightOfEvidence:
    """Learn weight of evidence and information value of binned columns, (ε, δ)-DP for every record under replace-one.

    Each owner counts the positives and the negatives in the bins of its columns, with noise (vfl.solvers.releases.bins derives
    the sensitivity). Weights of evidence are post-processing. Every record counts once, even if the job has weights. This is a
    separate run, whose ε adds to the training's ε, so charge both runs to one ledger.

    Who sees what: the coordinator sends each record's label to the owners of the columns, as the first residuals of training
    do, and receives only noisy counts. No participant sees another party's bins.

    job : a job with two classes. data : as for `train`.
    columns : Binned or Categorical columns; None takes all such columns.
    epsilon, delta, noise, at, ledger : as for `private_bounds`.

    Raises the errors of `train`; SpecificationError for a job without two classes, and for a column of another kind.
    """
    require_job(job)
    privacy = Privacy(epsilon=epsilon, delta=delta, noise=noise)
    if not job.classification or getattr(job.loss, "name", job.loss) == "multinomial":
        raise SpecificationError(
            "woe: weights of evidence compare two classes: give a job with a loss such as 'logistic'"
        )
    if job.secure is not None:
        raise SpecificationError("woe: owners of columns receive labels, which trust='trusted' alone allows")
    if job.row_rule is not None:
        raise SpecificationError(
            "woe: a person with several rows may have both labels, and other parties would count one: leave most_rows out"
        )
    binned = [c for c in job.partition.features if isinstance(job.schema[c], Binned | Categorical)]
    what = "Binned or Categorical column"
    asked = asked_columns(job, columns, binned, release="woe", what=what, remedy=DECLARE)
    whole = job.on_all_records()
    others = {column: Dropped() for column in whole.partition.features if column not in asked}
    weight = whole.partition.weight  # not read, since every record counts once in a histogram
    unread = {*others, weight}
    draft = replace(
        whole,
        name=f"{job.name}-woe",
        partition=whole.partition.changed(weight=None, sparse=None),
        columns={**{c: d for c, d in whole.columns.items() if c not in unread}, **others},
        bounds={c: b for c, b in whole.bounds.items() if c in asked or c == whole.partition.label_column},
        loss="logistic",
        intercept=False,
    )
    squares: dict[str, int] = {}
    for column in asked:
        declared, party = job.schema[column], job.partition.owner(column)
        twice = bool(indicators(column, declared.missing)) and declared.fill is not None  # a missing cell counts twice
        squares[party] = squares.get(party, 0) + 1 + twice
    solver = LabelledCounts(squares)
    outcome = paid_release(draft, data, solver, privacy, at=at, ledger=ledger)
    problem = outcome.plan.problem
    sigma = solver.noise(problem)
    counts = outcome.w.reshape(2, -1)
    position = {name: k for k, name in enumerate(problem.layout.names)}
    found = {}
    for column in asked:
        own = job.schema.features([column])
        names, index = [name.removeprefix(f"{column}=") for name in own], [position[name] for name in own]
        found[column] = evidence(job.partition.owner(column), names, counts[:, index], float(sigma[index[0]]))
    return WeightOfEvidence(columns=found, noise=float(sigma.max()), **cost_of(outcome))


def evidence(
    party: str, names: Sequence[str], counts: Vector, sigma: float | Vector, visible: float = SEEN
) -> Evidence:
    """Return the evidence of one column, by post-processing noisy counts (2, b), positives first.

    A weight ln((P_b/P)/(N_b/N)) has the variance σ²/P_b² + σ²/N_b² from noise, and 1/P_b + 1/N_b from sampling. For the
    information value with shares p, q, let g = ln(p/q) + 1 − q/p and h = −ln(p/q) + 1 − p/q be its derivatives. Its variance
    is Σ (σ² + P_b)((g_b − ḡ)/P)² + Σ (σ² + N_b)((h_b − h̄)/N)², with ḡ = Σ pg and h̄ = Σ qh. Without information the
    derivatives vanish, and the mean of the value is ½ Σ (σ² + P_b)·d²IV/dP_b², plus the same sum for N_b. Both sums together
    are the floor

        Σ (σ² + P_b)/(P·P_b) + (σ² + N_b)/(N·N_b) − 1/P − 1/N.

    A count is visible if it is at least visible·σ and half a record. Bins without a visible count are left out. If N_b is
    visible and P_b is hidden, P_b is replaced by the count expected without information, N_b·P/N, but by no more than the
    largest of P_b, 2σ and half a record. The replacement lies between P_b and the expected count, which makes the information
    value smaller.

    Without information the value is at most Q = Σ (e_b²/P² + f_b²/N²)/s_b to second order, with shares s_b and errors e_b,
    f_b of the counts, whose variances are at most σ² + P_b and σ² + N_b. So Q is at most Σ λ_b Z_b² with normal Z_b and
    λ_b = (σ² + P_b)/(P·P_b) + (σ² + N_b)/(N·N_b). This sum exceeds the limit Σλ + 2√(x Σλ²) + 2x·max λ with probability at
    most e^{−x}, here .001 (Laurent & Massart 2000, lemma 1; the negative correlations of multinomial counts only lower Q). A
    hidden count that is replaced by N_b·P/N adds nothing to the value; for such a count, λ_b uses at least 2σ.

    sigma : standard deviation of the noise of each count, as one number or (2, b).
    """
    noise = np.broadcast_to(sigma, counts.shape)
    least = np.maximum(SEEN * noise, 0.5)
    shown = (counts > visible * noise) & (counts >= 0.5)
    seen = np.any(shown, axis=0).tolist()
    sums = np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    raised = np.where(shown, counts, np.minimum(np.maximum(counts, least), counts[::-1] * sums / sums[::-1]))
    value = error = floor = limit = 0.0
    weights = np.full(len(names), math.nan)
    if any(seen):
        kept = raised[:, seen]
        total = kept.sum(axis=1, keepdims=True)
        p, q = np.asarray(kept / total)
        ratio = np.log(p / q)
        weights[seen] = ratio
        value = float((p - q) @ ratio)
        slopes = np.array([ratio + 1.0 - q / p, -ratio + 1.0 - p / q])
        slopes -= (np.array([p, q]) * slopes).sum(axis=1, keepdims=True)
        variance = noise[:, seen] ** 2 + kept
        error = math.sqrt(float((variance * (slopes / total) ** 2).sum()))
        large = np.maximum(kept, least[:, seen])
        parts = ((noise[:, seen] ** 2 + large) / (total * large)).sum(axis=0)
        floor = float(parts.sum()) - float((1.0 / total).sum())
        limit = float(parts.sum() + 2.0 * math.sqrt(RARE * float(parts @ parts)) + 2.0 * RARE * parts.max())
    bins = []
    for k, name in enumerate(names):
        positives, negatives = map(float, counts[:, k])
        if not seen[k]:
            bins.append(Bin(name, positives, negatives, None, None))
            continue
        a, b = (float(noise[row, k]) for row in (0, 1))
        p_b, n_b = map(float, raised[:, k])
        spread = math.hypot(a / p_b, b / n_b, p_b**-0.5, n_b**-0.5)
        bins.append(Bin(name, positives, negatives, float(weights[k]), spread))
    return Evidence(party, tuple(bins), value, error, floor, limit)
