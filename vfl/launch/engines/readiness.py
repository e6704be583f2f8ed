"""Placement of actors on a cluster: the resources that actors need, and a check, within seconds, that the cluster offers them.

The nodes of row shards are reserved before any actor starts. Without pinned parties there is one group of nodes, with one
bundle of resources per shard. Shard k of every party and shard k of the margins share bundle k, so that their vectors stay
on one node.

With pinned parties there is one group per party, over the nodes that offer the party's resource. There is also one group for
the margins, over the nodes that offer the resource 'coordinator'. If nodes offer both the label party's resource and
'coordinator', the margins share the label party's bundles, since one operator owns both.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError, VersionMismatch
from vfl.job.site import COORDINATOR
from vfl.secure.roles import COORDINATOR as AT_COORDINATOR
from vfl.secure.roles import DEALER
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from vfl.job.site import Ray
    from vfl.secure.roles import Secure

    Asked = Mapping[str, float]

CENTRE = ""
"""Name of the coordinator among the actors. No party can have this name."""
PIN = 0.001
"""Amount of a node's custom resource that an actor takes to be pinned. The amount is small so that many jobs fit."""
FRACTION = 0.01
"""CPUs that a party's actor takes on one machine. The number is small so that many parties fit a Ray with few CPUs."""
POLL_SECONDS = 0.2
HIDDEN = ("node:", "memory", "object_store_memory", "accelerator_type:")


def cpus_of(place: Ray, *, apart: bool) -> float:
    """Return the CPUs of a party's actor: the given number; else 1 if parties run on several nodes (`apart`), else FRACTION.

    On one machine the operating system shares the cores, and parties often wait for one another.
    """
    if place.party_cpus is not None:
        return place.party_cpus
    return 1.0 if apart or place.pinned else FRACTION


def asked_of(place: Ray, parties: Iterable[str], *, here: bool, secure: Secure | None = None) -> dict[str, Asked]:
    """Return {actor: {resource: amount}}. CENTRE is the coordinator, which takes no CPU since it waits while parties compute.

    here : True if the coordinator is pinned to this node by other means.
    secure : options of a run on shares. The dealer of such a run is an actor too. It runs next to the coordinator, or on the
        node that offers the dealer's resource.

    With several shards, a party's shards take the CPUs and the party's actor takes none (`reserved`).
    """
    pinned = place.pinned
    cpus = cpus_of(place, apart=False) if place.shards == 1 else 0.0
    asked: dict[str, Asked] = {
        party: {"CPU": cpus} | ({place.resource(party): PIN} if pinned else {}) for party in parties
    }
    asked[CENTRE] = {COORDINATOR: PIN} if pinned and not here else {"CPU": 0.0}
    if secure is not None and secure.dealer == AT_COORDINATOR:
        asked[DEALER] = asked[CENTRE]
    elif secure is not None:
        asked[DEALER] = {place.resources.get(DEALER, DEALER): PIN} if pinned else {"CPU": cpus}
    return asked


def options_of(asked: Asked) -> dict[str, Any]:
    """Return Ray's options for an actor that needs these resources. CPUs are always stated because Ray's defaults differ."""
    return {
        "num_cpus": asked.get("CPU", 0.0),
        "resources": {name: amount for name, amount in asked.items() if name != "CPU"},
    }


def require_offered(ray: Any, asked: Mapping[str, Asked], seconds: float) -> None:
    """Wait until every actor fits on at least one node, and until the resources of all actors together are free.

    Raises PlacementError after `seconds`.
    """
    until = time.monotonic() + seconds
    while True:
        # Several nodes may share one machine and its address.
        offers = [(node["NodeManagerAddress"], dict(node["Resources"])) for node in ray.nodes() if node["Alive"]]
        missing = {
            who: what
            for who, what in asked.items()
            if not any(all(node.get(name, 0.0) >= amount for name, amount in what.items()) for _, node in offers)
        }
        short = {} if missing else _short(ray, asked)
        if not missing and not short:
            return
        if time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    if short:
        raise PlacementError(
            f"the cluster is still in use after {seconds:g} s: the job asks for "
            + ", ".join(f"{amount:g} {name} of which {free:g} is free" for name, (amount, free) in short.items())
            + f". It offers {_offered(offers)}. Wait for the other jobs, end them, or start Ray with more --num-cpus"
        )
    raise PlacementError(
        f"the cluster lacks what the job asks for, after {seconds:g} s: "
        + "; ".join(f"{_name(who)} needs one node with {_said(what)}" for who, what in missing.items())
        + f". It offers {_offered(offers)}. To add what is missing, run on the machine of each:\n"
        + "\n".join(f"  {_name(who)}: {_start_line(ray, what)}" for who, what in missing.items())
    )


def require_ready(ray: Any, actors: Mapping[str, Any], asked: Mapping[str, Asked], seconds: float) -> None:
    """Wait until every actor runs this version of vfl. Otherwise raise PlacementError or VersionMismatch."""
    from vfl.errors import PartyLost
    from vfl.shards.ray_transport import answer_of

    versions = {actor.version.remote(): name for name, actor in actors.items()}
    _, pending = ray.wait(list(versions), num_returns=len(versions), timeout=seconds)
    if pending:
        late = sorted(versions[ref] for ref in pending)
        raise PlacementError(
            f"{', '.join(map(_name, late))} did not start within {seconds:g} s, though a node has "
            f"{'; '.join(_said(asked[name]) for name in late)}. See its Ray logs, or the actors that may have taken "
            "the node: ray list actors"
        )
    for ref, name in versions.items():
        try:
            version = answer_of(name or "coordinator", ref, seconds)
        except PartyLost as lost:
            raise PlacementError(
                f"{_name(name)} did not start where it was placed: {lost}. Install vfl {__version__} in the Python of "
                "Ray on every node, or see the node's Ray logs"
            ) from lost
        if version != __version__:
            raise VersionMismatch(
                f"{_name(name)} runs vfl {version}, this is {__version__}: install one version everywhere"
            )


def _short(ray: Any, asked: Mapping[str, Asked]) -> dict[str, tuple[float, float]]:
    """Return {resource: (total that all actors need, free amount)} for resources of which too little is free."""
    free, total = ray.available_resources(), Counter[str]()
    for what in asked.values():
        total.update(what)
    return {name: (amount, free.get(name, 0.0)) for name, amount in total.items() if free.get(name, 0.0) < amount}


def _name(who: str) -> str:
    return {CENTRE: "the coordinator", DEALER: "the dealer"}.get(who, f"party {who!r}")


def _said(asked: Asked) -> str:
    said = [f"the resource {name!r}" for name in asked if name != "CPU"]
    if asked.get("CPU"):
        said.append(f"{asked['CPU']:g} CPU")
    return " and ".join(said)


def _offered(offers: Sequence[tuple[str, Asked]]) -> str:
    if not offers:
        return "no node at all"
    return "; ".join(
        f"{address}: "
        + ", ".join(f"{name} {amount:g}" for name, amount in sorted(node.items()) if not name.startswith(HIDDEN))
        for address, node in offers
    )


def _start_line(ray: Any, asked: Asked) -> str:
    named = {name: 1 for name in asked if name != "CPU" and not name.startswith("node:")}
    cpus = f" --num-cpus={math.ceil(asked['CPU'])}" if asked.get("CPU") else ""
    resources = f" --resources='{json.dumps(named)}'" if named else ""
    return f"ray start --address={ray.get_runtime_context().gcs_address}{cpus}{resources}"


Options = tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """Ray's options for each shard of each party and of the margins; () without shards."""

    parties: Mapping[str, Options]
    margins: Options = ()


def bundles_of(
    place: Ray, parties: Sequence[str], label_party: str | None, *, offers: Sequence[Mapping[str, float]]
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
