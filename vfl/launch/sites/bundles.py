"""Placement of a job on a cluster: one placement group, which Ray reserves as a whole before any actor starts.

Jobs therefore wait for one another without a deadlock, and an autoscaler sees all that a job needs. Each party has a bundle of
resources, or one per shard. Without pins, shard k of every party and shard k of the margins share bundle k, so that their
vectors stay on one node. With pins, a party's bundles lie on nodes that offer the party's resource, and those of the margins on
nodes that offer 'coordinator'. If nodes offer both the label party's resource and 'coordinator', the margins share the label
party's bundles, since one operator owns both.

Inside a placement group that captures what a process starts, as in a trial of Ray Tune, that group replaces the job's.
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
from vfl.secure.roles import DEALER, SEPARATE
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vfl.job.site import Ray

    Asked = Mapping[str, float]
    Spot = Callable[[str, int], dict[str, Any]]

CENTRE = ""
"""Name of the coordinator among the actors. No party can have this name."""
PIN = 0.001
"""Amount of a node's custom resource that a bundle takes to be pinned. The amount is small so that many jobs fit."""
FRACTION = 0.01
"""CPUs that a party's actor takes on one machine. The number is small so that many parties fit a Ray with few CPUs."""
START_SECONDS = 180.0
"""Time limit for an actor to start on its node. The limit is long because imports are slow on a busy node."""
HIDDEN = ("node:", "memory", "object_store_memory", "accelerator_type:")


def cpus_of(site: Ray, *, apart: bool) -> float:
    """Return the CPUs of a party's actor: the given number; else 1 if parties run on several nodes (`apart`), else FRACTION.

    On one machine the operating system shares the cores, and parties often wait for one another.
    """
    if site.party_cpus is not None:
        return site.party_cpus
    return 1.0 if apart or site.pinned else FRACTION


@dataclass(frozen=True, slots=True)
class Layout:
    """Bundles of one job, and the bundle of each actor.

    bundles : {name: resources of the bundle, or of each of its `shards` bundles}; the name of a bundle is that of the first
        actor in it. homes : {actor: name of its bundle}; an actor that takes nothing and has no pin may have none.
    """

    bundles: Mapping[str, Asked]
    homes: Mapping[str, str]
    shards: int = 1

    def index(self, who: str, shard: int) -> int | None:
        """Return the number of an actor's bundle in the placement group; None if it has none."""
        home = self.homes.get(who)
        return None if home is None else list(self.bundles).index(home) * self.shards + shard

    def asked(self) -> list[dict[str, float]]:
        """Return the resources of all bundles, in their order in the placement group."""
        return [dict(bundle) for bundle in self.bundles.values() for _ in range(self.shards)]


def layout_of(
    site: Ray,
    processes: Sequence[Sequence[str]],
    label_party: str | None = None,
    *,
    here: bool = False,
    dealer: str | None = None,
    offers: Sequence[Asked] = (),
) -> Layout:
    """Return the bundles of a job. The coordinator takes no CPU, since it waits while parties compute.

    processes : names of the parties in each process, which answers for one party at a time. label_party : None for a
        prediction, which has no margins to place. here : True if the coordinator is pinned to this node by other means.
    dealer : `Job.dealer` of a run on shares. The dealer runs next to the coordinator, or on the node that offers the dealer's
        resource. offers : resources of each node.
    """
    cpus, pinned = cpus_of(site, apart=site.shards > 1), site.pinned
    homes = {party: hosted[0] for hosted in processes for party in hosted}
    bundles: dict[str, dict[str, float]] = {
        head: {"CPU": cpus} | ({site.resource(head): PIN} if pinned else {}) for head, *_ in processes
    }
    margins = site.shards > 1 and label_party is not None
    if site.shards > 1 and not pinned:
        bundles = {CENTRE: {"CPU": max(cpus * len(homes), PIN)}}
        homes = dict.fromkeys((CENTRE, *homes), CENTRE)
    elif pinned and (margins or not here):
        own = site.resource(label_party or CENTRE)
        shared = margins and label_party in bundles and any(COORDINATOR in node and own in node for node in offers)
        homes[CENTRE] = label_party if shared and label_party else CENTRE
        bundles.setdefault(homes[CENTRE], {})[COORDINATOR] = PIN
    if dealer == SEPARATE:
        bundles[DEALER] = {site.resources.get(DEALER, DEALER): PIN} if pinned else {"CPU": cpus}
        homes[DEALER] = DEALER
    elif dealer is not None and CENTRE in homes:
        homes[DEALER] = homes[CENTRE]
    bundles = {name: {what: amount for what, amount in bundle.items() if amount} for name, bundle in bundles.items()}
    bundles = {name: bundle for name, bundle in bundles.items() if bundle}
    return Layout(bundles, {who: home for who, home in homes.items() if home in bundles}, site.shards)


@contextlib.contextmanager
def reserved(ray: Any, layout: Layout, seconds: float, title: str) -> Iterator[Spot]:
    """Reserve all bundles of a job, and free them on exit. Ray frees them itself if this process dies.

    Yields a function of an actor's name and shard, which returns Ray's options that place the actor. title : name of the
    group, unique in this process, which other jobs name in their errors. Raises PlacementError after `seconds`.
    """
    if not layout.bundles:
        yield lambda _who, _shard: {}
        return
    from ray.util.placement_group import get_current_placement_group

    around = get_current_placement_group()
    if around is not None and ray.get_runtime_context().should_capture_child_tasks_in_placement_group:
        _require_room(ray, layout, around.bundle_specs)

        def captured(who: str, _: int) -> dict[str, Any]:
            pins = layout.bundles.get(layout.homes.get(who, ""), {})
            return {"resources": {name: amount for name, amount in pins.items() if name != "CPU"}}

        yield captured
        return
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def placed(who: str, shard: int) -> dict[str, Any]:
        index = layout.index(who, shard)
        return {} if index is None else {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}

    group = placement_group(layout.asked(), strategy="PACK" if layout.shards == 1 else "SPREAD", name=title)
    try:
        until = time.monotonic() + seconds
        # Ray's wait takes whole seconds and cannot be interrupted, so each wait is short.
        while not group.wait(1):
            if time.monotonic() > until:
                raise _refused(ray, layout, seconds, title)
        yield placed
    finally:
        remove_placement_group(group)


def require_version(actors: Mapping[str, Any]) -> None:
    """Wait until every actor runs this version of vfl. Otherwise raise PlacementError or VersionMismatch."""
    from vfl.errors import PartyLost
    from vfl.network.shards.ray_transport import answer_of

    asked = {name: actor.version.remote() for name, actor in actors.items()}
    for name, ref in asked.items():
        try:
            version = answer_of(name or "coordinator", ref, START_SECONDS)
        except PartyLost as lost:
            raise PlacementError(
                f"{_name(name)} did not start where it was placed: {lost}. Install vfl "
                f"{__version__} in the Python of Ray on every node, or see the node's Ray logs"
            ) from lost
        if version != __version__:
            raise VersionMismatch(
                f"{_name(name)} runs vfl {version}, this is {__version__}: install one version everywhere"
            )


def _require_room(ray: Any, layout: Layout, around: Sequence[Asked]) -> None:
    """Raise PlacementError unless the bundles of the group `around` can hold these bundles beside this process."""
    left = [Counter(bundle) for bundle in around]
    taken = ray.get_runtime_context().get_assigned_resources()
    own = {name: amount for name, amount in taken.items() if any(name in bundle for bundle in around)}
    for asked in (own, *sorted(layout.asked(), key=lambda bundle: -bundle.get("CPU", 0.0))):
        room = next((one for one in left if all(one[name] >= amount - 1e-9 for name, amount in asked.items())), None)
        if room is None:
            bundles = ", ".join(json.dumps(bundle) for bundle in layout.asked())
            raise PlacementError(
                f"this process runs in a placement group, which has no room for the parties (for which they ask: {bundles}). "
                f'In a trial of Ray Tune, give tune.with_resources the group tune.PlacementGroupFactory([{{"CPU": 1}}, '
                f"{bundles}]), whose first bundle is the trial's own; vfl.Ray(party_cpus=...) changes what parties take"
            )
        room.subtract(asked)


def _refused(ray: Any, layout: Layout, seconds: float, title: str) -> PlacementError:
    """Return the error for bundles that were not free in time: it names their holders, or the nodes to add."""
    # Several nodes may share one machine and its address.
    nodes = [(node["NodeManagerAddress"], Counter(node["Resources"])) for node in ray.nodes() if node["Alive"]]
    total, offered = Counter[str](), Counter[str]()
    for bundle in layout.asked():
        total.update(bundle)
    for _, node in nodes:
        offered.update(node)
    missing = {
        who: what
        for who, what in layout.bundles.items()
        if not any(all(node[name] >= amount for name, amount in what.items()) for _, node in nodes)
    }
    few = {name: (amount, offered[name]) for name, amount in total.items() if offered[name] < amount}
    each = "" if layout.shards == 1 else f" for each of its {layout.shards} shards"
    if missing or few:
        said = [f"{_name(who)} needs one node with {_said(what)}{each}" for who, what in missing.items()] or [
            f"it asks for {amount:g} {name} in all, of which there are {there:g}"
            for name, (amount, there) in few.items()
        ]
        return PlacementError(
            f"the cluster lacks what the job asks for, after {seconds:g} s: {'; '.join(said)}. Available: {_offered(nodes)}. "
            + ("To add what is missing" if missing else "Lower [ray] shards or party_cpus; or, to add nodes")
            + ", run on the machine of each:\n"
            + "\n".join(
                f"  {_name(who)}: {_start_line(ray, what)}" for who, what in (missing or layout.bundles).items()
            )
        )
    free = ray.available_resources()
    short = {name: (amount, free.get(name, 0.0)) for name, amount in total.items()}
    tight = {name: both for name, both in short.items() if both[1] < both[0]} or short
    return PlacementError(
        f"the cluster is still in use after {seconds:g} s: the job asks for "
        + ", ".join(f"{amount:g} {name} of which {there:g} is free" for name, (amount, there) in tight.items())
        + f". In use by {_users(title)}. Available: {_offered(nodes)}. Wait for the other jobs (with a larger [ray] "
        "ready_timeout_s this one waits its turn), end them, or add nodes"
    )


def _users(title: str) -> str:
    """Return the names of the other placement groups that hold resources."""
    from ray.util.placement_group import placement_group_table

    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    names = sorted({repr(group["name"]) for group in groups if group["name"] not in ("", title)})
    return ", ".join(names) or "other tasks and actors: ray list actors"


def _name(who: str) -> str:
    return {CENTRE: "the coordinator", DEALER: "the dealer"}.get(who, f"party {who!r}")


def _said(asked: Asked) -> str:
    said = [f"the resource {name!r}" for name in asked if name != "CPU"]
    if asked.get("CPU"):
        said.append(f"{asked['CPU']:g} CPU")
    return " and ".join(said)


def _offered(nodes: Sequence[tuple[str, Asked]]) -> str:
    if not nodes:
        return "no node at all"
    return "; ".join(
        f"{address}: "
        + ", ".join(f"{name} {amount:g}" for name, amount in sorted(node.items()) if not name.startswith(HIDDEN))
        for address, node in nodes
    )


def _start_line(ray: Any, asked: Asked) -> str:
    named = {name: 1 for name in asked if name != "CPU" and not name.startswith("node:")}
    cpus = f" --num-cpus={math.ceil(asked['CPU'])}" if asked.get("CPU") else ""
    resources = f" --resources='{json.dumps(named)}'" if named else ""
    return f"ray start --address={ray.get_runtime_context().gcs_address}{cpus}{resources}"
