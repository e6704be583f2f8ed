"""Functions for `monitor`: drift between training records and today's records, from noisy counts that a ledger charges."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from parties.loading import new_records
from vfl.base.columns import Boolean, Categorical, Numeric
from vfl.base.documents import read_json
from vfl.base.features import Binned, Curve, Log, Power, Scaled, Spline
from vfl.base.features.curve import edges_of
from vfl.base.losses import loss_of
from vfl.base.partition import FeaturePartition
from vfl.base.writing import write_whole
from vfl.errors import OutputError, SpecificationError
from vfl.launch.paid_releases.paid_release import cost_of, paid_release
from vfl.launch.paid_releases.woe import evidence
from vfl.launch.run.result import require_result
from vfl.measures.estimates import Histogram
from vfl.privacy.specification import Privacy
from vfl.solvers.releases.bins import DriftCounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.job import Job
    from vfl.job.environment import Ledger
    from vfl.launch.run.result import Result
    from vfl.launch.sites.open_site import At
    from vfl.privacy.noise import SeededNoise

CELLS = 40
"""Largest number of bins of a numeric column, before bins are merged."""
REACH = 3.0
"""Distance of the outermost edges of the scores' bins from their centre, in units of the scores' spread."""
GROUPS, SEEN = 10, 5.0
"""Bins are merged until each has 1/GROUPS of the baseline's records and exceeds SEEN standard deviations of its noise."""
SURE = 2.0
"""Standard deviations of noise that a share must exceed to be shown as more than 0."""
MISSING, OTHER, SCORE = "(missing)", "(none of these)", "score"


@dataclass(frozen=True, slots=True)
class NoisyCounts:
    """Noisy counts of one data set. The counts are released, hence public. Save them as the baseline of later comparisons.

    columns : {column: {bin: noisy number of records}}. sigma : {column: standard deviation of a count's noise}; 0 without
        noise.
    scores : histograms of the scores by class; None if only one party's columns were counted.
    epsilon, delta : cost of the release. scope : data that the guarantee is for. model : digest of the model.
    """

    columns: Mapping[str, Mapping[str, float]]
    sigma: Mapping[str, float]
    scores: Histogram | None
    n_records: int
    epsilon: float
    delta: float
    scope: str
    model: str

    def save(self, path: str | Path) -> None:
        """Save the counts as a JSON file. Raises OutputError."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        plain["scores"] = None if self.scores is None else self.scores.to_dict()
        write_whole(Path(path), json.dumps(plain, indent=2, ensure_ascii=False, default=dict))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read counts that `save` wrote. Raises OutputError."""
        try:
            plain = dict(read_json(path))
            scores = None if plain["scores"] is None else Histogram.from_dict(plain["scores"])
            columns = {c: {b: float(x) for b, x in own.items()} for c, own in plain["columns"].items()}
            return cls(**(plain | {"scores": scores, "columns": columns}))
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise OutputError(f"{str(path)!r} holds no counts of vfl monitor: {error}") from error


@dataclass(frozen=True, slots=True)
class Drift:
    """Population stability index of a column or of the score: Σ (p − q)·ln(p/q) over bins, shares p today and q before.

    floor : mean index without drift, from noise and sampling alone. limit : index that at most one of 1,000 columns without
        drift exceeds (vfl.launch.paid_releases.woe.evidence). bins : {bin: (share before, share today)}, as counted with noise.
    noise : {bin: (before, today)}, standard deviations of the noise in these shares; 0 for exact counts.
    """

    name: str
    index: float
    floor: float
    limit: float
    bins: Mapping[str, tuple[float, float]]
    noise: Mapping[str, tuple[float, float]]

    def shown(self, bin_: str) -> tuple[str, str]:
        """Return the shares of a bin, before and today, in words. A share that noise may explain shows its upper bound."""
        return tuple(  # type: ignore[return-value]
            f"{share:.1%}" if share > SURE * sigma or not sigma else f"at most {max(share, 0.0) + SURE * sigma:.1%}"
            for share, sigma in zip(self.bins[bin_], self.noise[bin_], strict=True)
        )

    def exceeds(self, threshold: float) -> bool:
        """Return True if the index exceeds `limit`, and also exceeds `floor` by more than the threshold."""
        return self.index > max(self.floor + threshold, self.limit)

    def __str__(self) -> str:
        return (
            f"{self.name}: stability index {self.index:.3g} (floor {self.floor:.2g}, limit of noise {self.limit:.2g})"
        )


@dataclass(frozen=True, slots=True)
class DriftReport:
    """Drift of each column and of the score, the largest drift first, with the counts of both data sets.

    unwatched : columns that have no bins, such as hashed text.
    """

    drifts: tuple[Drift, ...]
    before: NoisyCounts
    now: NoisyCounts
    unwatched: tuple[str, ...]

    def exceeding(self, threshold: float) -> tuple[str, ...]:
        """Return the names of the columns whose drift exceeds the threshold; 'score' stands for the score of the model."""
        return tuple(drift.name for drift in self.drifts if drift.exceeds(threshold))


def count(
    result: Result,
    data: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    dataset: str | None = None,
    noise: SeededNoise | None = None,
    at: At = None,
    ledger: str | Path | Ledger | None = None,
) -> NoisyCounts:
    """Count records per bin of columns and score, in one run. The run is (ε, δ)-DP for every record under replace-one.

    Each party counts its own columns with noise. The coordinator counts the scores with noise, by class, and sees the
    scores as in training (vfl.solvers.releases.bins). The records need labels.

    data : as for `train`. dataset : name of these records in the ledger; None takes the data set of the job.
    epsilon, delta, noise, at, ledger : as for `private_bounds`.

    Raises the errors of `train`; SpecificationError for multinomial loss and for trust='secure'.
    """
    privacy = Privacy(epsilon=epsilon, delta=delta, noise=noise)
    draft, bins, _ = watching(result)
    job = result.applied
    owned, edges = _by_owner(job, bins), _edges(result)
    counted = {party: {name: 1.0 for c in own for name in bins[c]} for party, own in owned.items()}
    squares = {party: len(own) for party, own in owned.items()}
    by_name = {name: own for name, own in result.original.items() if name in result.feature_names}
    shifted = tuple((edges - result.intercept_).tolist())
    solver = DriftCounts(counted, squares, by_name, shifted, result.certificate.private)
    outcome = paid_release(replace(draft, dataset=dataset or job.dataset), data, solver, privacy, at=at, ledger=ledger)
    problem = outcome.plan.problem
    n, names = problem.n_records, problem.layout.names
    counts = dict(zip(names, outcome.w[: len(names)].tolist(), strict=True))
    of_columns, of_scores = solver.noise(problem)
    deviations = dict(zip(names, of_columns.tolist(), strict=True))
    scores = Histogram.of(edges, outcome.w[len(names) :], of_scores, logistic=loss_of(job.loss).log_odds)
    columns = {c: _with_rest(job.schema[c], {name: counts[name] for name in own}, n) for c, own in bins.items()}
    sigma = {c: deviations[next(iter(own))] for c, own in bins.items()}
    return NoisyCounts(columns, sigma, scores, n, **cost_of(outcome), model=result.certificate.model_digest)


def count_own(result: Result, party: str, source: Any) -> NoisyCounts:
    """Count the records of one party's own columns exactly, in this process. No value leaves the process or is charged.

    The counts have no privacy protection: do not let them leave the party.
    """
    draft, bins, _ = watching(result)
    draft.partition.columns(party)
    own, draft = _by_owner(result.applied, bins).get(party, []), replace(draft, scaling="none", intercept=False)
    if not own:
        raise SpecificationError(f"party {party!r} has no column that can be watched")
    ((columns, _),) = new_records(draft.for_party(party).features, source)
    sums = {name: float(columns.column(j).sum()) for j, name in enumerate(columns.names)}
    n = columns.n_records
    schema = result.applied.schema
    found = {c: _with_rest(schema[c], {name: sums[name] for name in bins[c]}, n) for c in own}
    scope = "exact counts of one party's own columns: NOT PRIVATE, keep them at the party"
    return NoisyCounts(found, dict.fromkeys(own, 0.0), None, n, math.inf, 0.0, scope, result.certificate.model_digest)


def compare(result: Result, before: NoisyCounts, now: NoisyCounts) -> DriftReport:
    """Return the drift between two counted data sets. This is post-processing and costs no privacy.

    Raises SpecificationError for counts of another model.
    """
    require_result(result)
    for counted in (before, now):
        if counted.model != result.certificate.model_digest:
            raise SpecificationError("the counts belong to another model: count these records again with this one")
    if set(before.columns) != set(now.columns):
        raise SpecificationError("the counts are of different columns: count both sets of records in the same way")
    drifts = []
    for column, own in now.columns.items():
        names = list(own)
        rows = [[counts.columns[column].get(name, 0.0) for name in names] for counts in (now, before)]
        numbers = isinstance(result.applied.schema[column], Numeric | Log | Power | Scaled | Curve | Spline | Binned)
        drifts.append(drift(column, names, np.array(rows), (now.sigma[column], before.sigma[column]), ordered=numbers))
    if now.scores is not None and before.scores is not None:
        rows = [np.add(h.negative, h.positive).tolist() for h in (now.scores, before.scores)]
        ends = ["-inf", *(f"{edge:.6g}" for edge in now.scores.edges), "inf"]
        names = [f"({low}, {high}]" for low, high in pairwise(ends)]
        noise = math.sqrt(2.0) * now.scores.sigma, math.sqrt(2.0) * before.scores.sigma
        drifts.append(drift(SCORE, names, np.array(rows), noise, ordered=True))
    drifts.sort(key=lambda one: one.floor - one.index)
    return DriftReport(tuple(drifts), before, now, watching(result)[2])


def drift(name: str, bins: Sequence[str], counts: Any, sigma: tuple[float, float], *, ordered: bool) -> Drift:
    """Return the drift of one column from noisy counts (2, b), today's counts first.

    Neighbouring bins of an ordered column are merged until each has enough records in the baseline, which is public. The
    formulas of index, floor and limit are in vfl.launch.paid_releases.woe.evidence. Bins whose counts noise may explain in
    both data sets are left out.

    The number of records in no bin is the public total minus b noisy counts (`_with_rest`), with variance bσ². The covariance
    of all b + 1 counts is at most the diagonal 2(σ², ..., σ², bσ²), since ‖u − v1‖² ≤ 2‖u‖² + 2bv². The noise is taken to be
    as large as this bound.
    """
    shown = [one for one in bins if one not in (MISSING, OTHER)] if ordered else []
    groups: list[list[int]] = [[]]
    total = max(float(counts[1].sum()), 1.0)
    for k, _ in enumerate(shown):
        groups[-1].append(k)
        least = max(total / GROUPS, SEEN * max(sigma) * math.sqrt(len(groups[-1])))
        if float(counts[1, groups[-1]].sum()) >= least and k < len(shown) - 1:
            groups.append([])
    if len(groups) > 1 and float(counts[1, groups[-1]].sum()) < total / (2 * GROUPS):
        last = groups.pop()
        groups[-1] += last
    groups = [group for group in groups if group] + [[k] for k, one in enumerate(bins) if one not in shown]
    merged = np.array([[row[group].sum() for group in groups] for row in counts])
    names = [bins[g[0]] if len(g) == 1 else f"{bins[g[0]]} to {bins[g[-1]]}" for g in groups]
    sizes = [len(bins) - 1 if one == OTHER else len(group) for one, group in zip(names, groups, strict=True)]
    noise = np.outer(sigma, np.sqrt(sizes)) * (math.sqrt(2.0) if OTHER in names else 1.0)
    found = evidence("", names, merged, noise, SEEN)
    total_of = np.maximum(merged.sum(axis=1), 1.0)
    shares = {b: (float(x / total_of[1]), float(y / total_of[0])) for b, y, x in zip(names, *merged, strict=True)}
    sigmas = {b: (float(x / total_of[1]), float(y / total_of[0])) for b, y, x in zip(names, *noise, strict=True)}
    return Drift(name, max(found.value, 0.0), max(found.floor, 0.0), found.limit, shares, sigmas)


def _with_rest(declared: Any, bins: dict[str, float], n_records: int) -> dict[str, float]:
    """Return {bin: count}, with a bin OTHER if some records can fall into none of the declared bins.

    Such records have a Boolean that is false, or an undeclared value. OTHER is the public total minus all other bins.
    """
    short = {name.partition("=")[2] or "true": count for name, count in bins.items()}
    covered = not isinstance(declared, Boolean) and getattr(declared, "unknown", "") != "zero"
    return short if covered else short | {OTHER: n_records - sum(bins.values())}


def _edges(result: Result) -> Any:
    """Return the edges (m,) of the scores' bins, from the released model alone."""
    names = result.coordinates
    coef = np.array([own for name, own in zip(names, result.w, strict=True) if name in result.feature_names])
    spread = float(np.linalg.norm(coef)) / math.sqrt(3.0) or 1.0
    return float(result.intercept_on_scaled) + spread * np.linspace(-REACH, REACH, CELLS - 1)


def _by_owner(job: Job, bins: Mapping[str, Any]) -> dict[str, list[str]]:
    return {
        party: own for party in job.partition.parties if (own := [c for c in job.partition.columns(party) if c in bins])
    }


def watching(result: Result) -> tuple[Job, dict[str, list[str]], tuple[str, ...]]:
    """Return a job that puts the model's columns into bins, {column: coordinates of its bins}, and the columns without bins."""
    require_result(result)
    job = result.applied
    if job.multinomial:
        raise SpecificationError(
            "monitor watches one score per record, and multinomial loss has K: monitor a one-vs-rest model"
        )
    if job.secure is not None:
        raise SpecificationError(
            "monitor needs trust='trusted': the coordinator sees the linear predictors of the records"
        )
    whole, added = job.on_all_records(), {}
    bins: dict[str, list[str]] = {}
    for column in whole.partition.features:
        declared = whole.schema[column]
        if isinstance(declared, Categorical | Boolean):
            names = declared.features(column)
            bins[column] = [*names] if declared.fill is None else [n for n in names if not n.endswith(f"={MISSING}")]
            continue
        edges = _grid(declared)
        if edges is not None:
            own = f"bins of {column}"
            source = whole.schema.sources(column)[0]
            added[column] = own, Binned(edges, of=source, missing="indicator")
            bins[column] = list(added[column][1].features(own))
    plain = whole.partition.changed(weight=None, sparse=None).to_dict()
    more = {party: [added[c][0] for c in whole.partition.columns(party) if c in added] for party in plain["parties"]}
    parties = {party: [*own, *more[party]] for party, own in plain["parties"].items()}
    partition = FeaturePartition.from_dict(plain | {"parties": parties})
    columns = {**whole.columns, **dict(added.values())}
    draft = replace(whole, name=f"{job.name}-monitor", partition=partition, columns=columns, start=None)
    unwatched = tuple(column for column in whole.partition.features if column not in bins)
    return draft, bins, unwatched


def _grid(declared: Any) -> tuple[float, ...] | None:
    """Return public edges for the bins of a numeric column; None for a column without public edges."""
    if isinstance(declared, Binned):
        return declared.edges
    if isinstance(declared, Spline):
        ends = declared.knots[0], declared.knots[-1]
    elif isinstance(declared, Numeric | Log | Power | Curve | Scaled) and declared.bounds is not None:
        ends = declared.bounds
    elif isinstance(declared, Scaled):
        reach = declared.reach * declared.spread
        ends = declared.center - reach, declared.center + reach
    else:
        return None
    return tuple(np.unique(edges_of(ends, CELLS))[1:-1].tolist())
