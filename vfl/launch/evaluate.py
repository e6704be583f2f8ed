"""Function `evaluate`: exact measures of a saved model on new records, which get no privacy protection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parties.permission import all_permitted
from vfl.alignment import Aligned
from vfl.evaluation import Findings
from vfl.job.site import InProcess
from vfl.launch.engines.arrangement import Application
from vfl.launch.engines.dispatch import apply
from vfl.launch.engines.place import Organisations, located
from vfl.launch.run.result import require_result
from vfl.launch.run.warnings import warn
from vfl.launch.sources import in_memory, named_by_owners, named_for, sources_of

if TYPE_CHECKING:
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
    """Return exact measures of a model on new records with their labels. Nothing protects the privacy of these records.

    data : as for `train`. For private measures on records of the training data, set `holdout` in the job.
    at : as for `predict`. The measures are the same to the bit at every place. On Ray and across organisations each party
    applies its part of the model to the party's own source. The label party adds up the parts of the margins and returns
    sums.
    threshold : threshold at which decisions are measured; None takes the model's threshold (Result.threshold).

    Every owner's policy is checked before any data are opened. The label party's policy must allow `labels`.

    Raises ConsentRefused, which names the refusing rule, and the errors of `train`.
    """
    require_result(result)
    if why := result.altered():
        warn(f"do not rely on these measures: the certificate of the model does not hold. {why}")
    job, cut = result.job, result.margin_at(threshold)
    partition = job.partition
    place, data, arrangement = located(partition.parties, data, at, InProcess())
    parts = {party: result.part(party) for party in partition.parties if partition.wanted(party, groups=False)}
    across = isinstance(place, Organisations)
    named = named_by_owners(partition, data) if across else named_for(partition, data)
    if not across:
        named = {party: source for party, source in named.items() if party in parts}
        parts = {party: parts[party] for party in named}

    def sources() -> dict[str, Any]:
        # On Ray the parties check their policies where they open their sources; this process opens a file of all parties.
        if not (isinstance(data, Mapping) or in_memory(data)):
            receiver = partition.receiver(tuple(parts))
            all_permitted(parts, named, arrangement.policies, receiver=receiver, measured=True)
        return {party: source for party, source in sources_of(job, data, groups=False).items() if party in parts}

    joined, policies = False, arrangement.policies
    asked = Application(parts=parts, given=named, policies=policies, sources=sources, w=result.w, threshold=cut)
    for event in apply(asked, place=place):
        if isinstance(event, Findings):
            found = event
        joined = joined or isinstance(event, Aligned)
    return replace(found, note=f"{OWN}; {JOINED}" if joined else OWN)
