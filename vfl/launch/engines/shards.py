"""Placement of row shards on a cluster. Groups of nodes are reserved before any actor starts.

Without pinned parties there is one group, with one bundle of resources per shard, spread over the nodes. Shard k of every
party and shard k of the margins share bundle k, so that their vectors stay on one node.

With pinned parties there is one group per party, over the nodes that offer the party's resource. There is also one group for
the margins, over the nodes that offer the resource 'coordinator'. If nodes offer both the label party's resource and
'coordinator', the margins share the label party's bundles, since one operator owns both.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError
from vfl.job.site import COORDINATOR
from vfl.launch.engines.readiness import PIN, cpus_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.job.site import Ray

Options = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Ray's options for each shard of each party and of the margins; () without shards."""

    parties: Mapping[str, Options]
    margins: Options = ()


def bundles_of(
    place: Ray,
    parties: Sequence[str],
    label_party: str | None,
    *,
    offers: Sequence[Mapping[str, float]],
) -> dict[str, dict[str, float]]:
    """Return {group: resources of each of its S bundles}. Group '' is that of the margins, or the only group if unpinned.

    label_party : name of the label party; None for a prediction, which has no margins to place.
    offers : resources of each node.
    """
    cpus = cpus_of(place, apart=True)
    if not place.pinned:
        return {"": {"CPU": max(cpus * len(parties), PIN)}}
    groups = {party: {"CPU": cpus, place.resource(party): PIN} for party in parties}
    if label_party is not None:
        own = place.resource(label_party)
        if label_party in groups and any(COORDINATOR in node and own in node for node in offers):
            groups[label_party][COORDINATOR] = PIN
        else:
            groups[""] = {COORDINATOR: PIN}
    return {
        name: {resource: amount for resource, amount in bundle.items() if amount} for name, bundle in groups.items()
    }


@contextlib.contextmanager
def reserved(
    ray: Any, place: Ray, parties: Sequence[str], label_party: str | None, *, restarts: int
) -> Iterator[ShardOptions]:
    """Reserve nodes for all shards, and free the nodes on exit. PlacementError if no nodes are free in time.

    restarts : how often a dead shard is restarted; -1 for no limit.
    """
    if place.shards == 1:
        yield ShardOptions(dict.fromkeys(parties, ()))
        return
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    offers = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    bundles = bundles_of(place, parties, label_party, offers=offers)
    groups = {
        name: placement_group([dict(bundle) for _ in range(place.shards)], strategy="SPREAD")
        for name, bundle in bundles.items()
    }
    try:
        for name, group in groups.items():
            if not group.wait(math.ceil(place.ready_seconds)):
                raise PlacementError(_missing(place, name, bundles[name], offers))

        def options(name: str, cpus: float, pin: str | None, restarts: int) -> Options:
            own = name if name in groups else ""
            resources = {pin: PIN} if pin is not None and pin in bundles[own] else {}
            return tuple(
                {
                    "num_cpus": cpus,
                    "resources": resources,
                    "max_restarts": restarts,
                    "max_task_retries": 0,
                    "scheduling_strategy": PlacementGroupSchedulingStrategy(groups[own], k),
                }
                for k in range(place.shards)
            )

        cpus = cpus_of(place, apart=True)
        margins = "" if "" in groups else label_party or ""
        yield ShardOptions(
            {party: options(party, cpus, place.resource(party), restarts) for party in parties},
            () if label_party is None else options(margins, 0.0, COORDINATOR, restarts),
        )
    finally:
        for group in groups.values():
            remove_placement_group(group)


def _missing(place: Ray, name: str, bundle: Mapping[str, float], offers: Sequence[Mapping[str, float]]) -> str:
    said = " and ".join(f"{amount:g} {resource}" for resource, amount in bundle.items())
    whose = f"party {name!r}" if name else "the job"
    return (
        f"{whose} needs {place.shards} shards of {said} each, and they are not free after "
        f"{place.ready_seconds:g} s; the cluster's {len(offers)} nodes offer "
        f"{sum(node.get('CPU', 0.0) for node in offers):g} CPU in total: lower [ray] shards or party_cpus, or add nodes"
    )
