"""Placement of row shards on a cluster: groups of nodes that are reserved before any actor starts.

Unpinned: one group with a bundle per shard, spread over the nodes. Shard k of every party and of the margins share bundle k,
so that their vectors stay on one node.

Pinned: a group for each party over the nodes that offer its resource, and one for the margins over those that offer
'coordinator'. Where nodes offer both, the margins join the bundles of the label party: one operator owns both.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError
from vfl.job.placement import COORDINATOR
from vfl.launch.engines.readiness import PIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vfl.job.placement import Placement

Options = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Ray's options for each shard of each party, and of the margins; () without shards."""

    parties: Mapping[str, Options]
    margins: Options = ()


def bundles_of(
    placement: Placement,
    parties: Sequence[str],
    label_party: str | None,
    *,
    pinned: bool,
    offers: Sequence[Mapping[str, float]],
) -> dict[str, dict[str, float]]:
    """Return {group: resources of one of its S bundles}; '' is the group of the margins, or of everything if unpinned.

    label_party : None for a prediction, which has no margins to place.
    offers : resources of each node.
    """
    if not pinned:
        return {"": {"CPU": max(placement.party_cpus * len(parties), PIN)}}
    groups = {party: {"CPU": placement.party_cpus, placement.resource(party): PIN} for party in parties}
    if label_party is not None:
        own = placement.resource(label_party)
        if label_party in groups and any(COORDINATOR in node and own in node for node in offers):
            groups[label_party][COORDINATOR] = PIN
        else:
            groups[""] = {COORDINATOR: PIN}
    return {
        name: {resource: amount for resource, amount in bundle.items() if amount} for name, bundle in groups.items()
    }


@contextlib.contextmanager
def reserved(
    ray: Any, placement: Placement, parties: Sequence[str], label_party: str | None, *, pinned: bool, restarts: int
) -> Iterator[ShardOptions]:
    """Reserve the nodes of all shards, and free them on exit. PlacementError if they are not free in time.

    restarts : of a shard that dies, -1 for any number.
    """
    if placement.shards == 1:
        yield ShardOptions(dict.fromkeys(parties, ()))
        return
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    offers = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    bundles = bundles_of(placement, parties, label_party, pinned=pinned, offers=offers)
    groups = {
        name: placement_group([dict(bundle) for _ in range(placement.shards)], strategy="SPREAD")
        for name, bundle in bundles.items()
    }
    try:
        for name, group in groups.items():
            if not group.wait(math.ceil(placement.ready_seconds)):
                raise PlacementError(_missing(placement, name, bundles[name], offers))

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
                for k in range(placement.shards)
            )

        margins = "" if "" in groups else label_party or ""
        yield ShardOptions(
            {party: options(party, placement.party_cpus, placement.resource(party), restarts) for party in parties},
            () if label_party is None else options(margins, 0.0, COORDINATOR, restarts),
        )
    finally:
        for group in groups.values():
            remove_placement_group(group)


def _missing(
    placement: Placement, name: str, bundle: Mapping[str, float], offers: Sequence[Mapping[str, float]]
) -> str:
    said = " and ".join(f"{amount:g} {resource}" for resource, amount in bundle.items())
    whose = f"party {name!r}" if name else "the job"
    return (
        f"{whose} needs {placement.shards} shards of {said} each, and they are not free after "
        f"{placement.ready_seconds:g} s; the cluster's {len(offers)} nodes offer "
        f"{sum(node.get('CPU', 0.0) for node in offers):g} CPU in total: lower [ray] shards or party_cpus, or add nodes"
    )
