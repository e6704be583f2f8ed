"""`evaluate`: exact measures of a saved model on new records, which get no privacy protection."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vfl.alignment import Aligned
from vfl.evaluation import Findings
from vfl.job.site import InProcess, Ray
from vfl.launch.engines.place import Organisations, located
from vfl.launch.run.result import require_result
from vfl.launch.run.warnings import warn
from vfl.launch.sources import named_by_owners, named_for, sources_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.alignment import Aligning
    from vfl.launch.engines.place import At
    from vfl.launch.run.result import Result

OWN = "un-noised and uncharged: nothing protects these records"
JOINED = "joined by their ids, without those that a party lacks"


def evaluate(
    result: Result,
    data: Any = None,
    *,
    at: At = None,
    threshold: float | None = None,
) -> Findings:
    """Return exact measures of a model on new records with their labels. Nothing protects these records.

    data : as for `train`. For private measures on records of the training data, set `holdout` in the job.
    at : as for `predict`, with the same measures to the bit. On Ray and across organisations each party applies its part of
        the model to its own source; the label party adds the parts of the margins and returns sums.
    threshold : threshold at which decisions are measured; None takes the model's (Result.threshold).

    Every owner's policy is checked before any data are opened. The label party's policy must allow `labels`.

    Raises ConsentRefused, which names the rule, and the errors of `train`.
    """
    require_result(result)
    if why := result.altered():
        warn(f"do not rely on these measures: the certificate of the model does not hold. {why}")
    job, cut = result.job, result.margin_at(threshold)
    place, data, policies, _ = located(job.partition.parties, data, at, InProcess())
    partition = job.partition
    parts = {party: result.part(party) for party in partition.parties if partition.wanted(party, groups=False)}
    if isinstance(place, Organisations):
        from vfl.launch.engines import federation

        return _found(federation.evaluate(parts, named_by_owners(partition, data), result.w, cut, place=place))

    def sources() -> dict[str, Any]:
        return {party: source for party, source in sources_of(job, data, groups=False).items() if party in parts}

    if isinstance(place, Ray):
        from vfl.launch.engines import ray

        return _found(ray.evaluate(parts, sources(), result.w, cut, place=place, policies=policies))
    from vfl.launch.engines import inprocess

    named = {party: source for party, source in named_for(partition, data).items() if party in parts}
    own = {party: parts[party] for party in named}
    return _found(inprocess.evaluate(own, named, sources, result.w, cut, policies=policies, shards=place.shards))


def _found(events: Iterable[Aligning | Aligned | Findings]) -> Findings:
    """Return the measures that end an evaluation, with a note on what protects the records."""
    joined = False
    for event in events:
        if isinstance(event, Findings):
            found = event
        joined = joined or isinstance(event, Aligned)
    return replace(found, note=f"{OWN}; {JOINED}" if joined else OWN)
