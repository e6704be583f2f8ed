"""`evaluate`: exact measures of a saved model on new records, without privacy for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parties.alignment.reading import joined_rows
from parties.permission import all_permitted
from parties.prediction import added
from vfl.errors import DataError
from vfl.evaluation import Evaluation, Findings
from vfl.evaluation.classes import HeldOutClasses
from vfl.evaluation.inquiries import HeldOut
from vfl.job.site import InProcess, Ray
from vfl.launch.engines.place import Organisations, located
from vfl.launch.run.result import require_result
from vfl.launch.run.warnings import warn
from vfl.launch.sources import named_by_owners, named_for, sources_of
from vfl.messages import Tally
from vfl.planning import problem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vfl.launch.engines.place import At
    from vfl.launch.run.result import Result
    from vfl.messages import Statistic
    from vfl.solvers.protocol import Released
    from vfl.types import Vector

OWN = "un-noised and uncharged: nothing protects these records"
JOINED = "joined by their ids, without those that a party lacks"


def evaluate(
    result: Result,
    data: Any = None,
    *,
    at: At = None,
) -> Findings:
    """Return exact measures of a model on new records with their labels. Nothing protects these records.

    data : as for `train`. For private measures on records of the training data, set `holdout` in the job.
    at : as for `predict`, with the same measures to the bit. On Ray the label party adds the parts and returns sums. Across
        organisations each party applies its part of the model to its own source, and the label party adds and returns sums.

    Policies are asked before any data are opened; the label party's must allow `labels`.

    Raises ConsentRefused, which names the rule, and as `train`.
    """
    require_result(result)
    if why := result.altered():
        warn(f"do not rely on these measures: the certificate of the model does not hold. {why}")
    job = result.job
    place, data, policies, _ = located(job.partition.parties, data, at, InProcess())
    if isinstance(place, Organisations):
        return _across(result, data, place)
    if isinstance(place, Ray):
        return _on_ray(result, data, place, policies)
    owner, given, shards = job.partition.label_party, named_for(job.partition, data), place.shards
    parts = {party: result.part(party) for party in given}
    permissions = all_permitted(parts, given, policies, receiver=owner, measured=True)
    sources = sources_of(job, data, groups=False)
    joined = joined_rows(job, sources, first=owner, common=True)
    labels, margins_of = np.zeros(0), {}
    for party, source in sources.items():
        if party == owner:
            margins, labels = parts[party].with_labels(source, permission=permissions[party], shards=shards)
        elif job.partition.columns(party):
            margins = parts[party].margins(source, permission=permissions[party], shards=shards)
        else:
            continue
        if job.partition.columns(party):
            margins_of[party] = margins
    if joined:
        labels = labels[..., joined[owner]]
        margins_of = {party: margins[joined[party]] for party, margins in margins_of.items()}
    labels, offsets, _ = job.targets.measured.parts(labels)
    margins = added(margins_of, next((part.intercept for part in parts.values()), 0.0))
    if len(margins) != len(labels):
        raise DataError("the label party holds a different number of records from the others")

    if offsets is not None:
        margins = margins + offsets
    if job.multinomial:  # one class after the other, as in a run
        margins = margins.T.ravel()

    def sums_of(statistic: Statistic) -> Vector:
        return np.asarray(statistic(margins, labels) * statistic.grid, dtype=np.float64)

    return _measured(result, len(labels), sums_of, joined=bool(joined))


def _measured(result: Result, n_records: int, sums_of: Callable[[Statistic], Vector], *, joined: bool) -> Findings:
    """Return the measures from exact sums. sums_of : returns the sum of a statistic over the records."""
    spec = replace(result.job.evaluation or Evaluation(), epsilon=None)
    problem = problem_of(result.job.on_all_records(), n_records)
    kind = HeldOutClasses if result.job.multinomial else HeldOut
    schedule = kind(problem, spec, n_records, None).schedule(result.w)
    query = next(schedule)
    while True:
        sums: Released = ()
        if isinstance(query, Tally):
            sums = (sums_of(query.statistic),)
        try:
            query = schedule.send(sums)
        except StopIteration as end:
            found: Findings = end.value
            return replace(found, note=f"{OWN}; {JOINED}" if joined else OWN)


def _on_ray(result: Result, data: Any, place: Ray, policies: Mapping[str, str]) -> Findings:
    """Measure on Ray: the label party's actor, or its shards, keep labels and margins and return sums."""
    from vfl.launch.engines import ray as engine

    job = result.job
    sources = {
        party: source
        for party, source in sources_of(job, data, groups=False).items()
        if job.partition.wanted(party, groups=False)
    }
    parts = {party: result.part(party) for party in sources}
    with engine.measuring(parts, sources, place=place, policies=policies) as (n_records, joined, sums_of):
        return _measured(result, n_records, sums_of, joined=joined)


def _across(result: Result, data: Any, place: Organisations) -> Findings:
    """Measure across organisations: the label party returns sums, and nobody else sees a label or a margin."""
    from vfl.launch.engines import federation as engine

    job = result.job
    parties = [party for party in job.partition.parties if job.partition.wanted(party)]
    parts = {party: result.part(party) for party in parties}
    with engine.measuring(parts, named_by_owners(job.partition, data), place=place) as (n_records, joined, sums_of):
        return _measured(result, n_records, sums_of, joined=joined)
