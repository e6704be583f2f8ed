"""Check, within seconds, that a cluster is ready for a job. The error lists missing resources and how to add them."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError, VersionMismatch
from vfl.job.site import COORDINATOR
from vfl.secure.roles import DEALER
from vfl.secure.specification import COORDINATOR as AT_COORDINATOR
from vfl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vfl.job.site import Ray
    from vfl.secure.specification import Secure

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

    With several shards, a party's shards take the CPUs and the party's actor takes none (`vfl.launch.engines.shards`).
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
    """Wait until some node could hold each actor, and until the resources of all actors together are free.

    Raises PlacementError after `seconds`.
    """
    until = time.monotonic() + seconds
    while True:
        # Several nodes may share one machine and its address.
        offers = [(node["NodeManagerAddress"], dict(node["Resources"])) for node in ray.nodes() if node["Alive"]]
        missing = {who: what for who, what in asked.items() if not any(_holds(node, what) for _, node in offers)}
        short = {} if missing else _short(ray, asked)
        if not missing and not short:
            return
        if time.monotonic() > until:
            break
        time.sleep(POLL_SECONDS)
    if short:
        raise PlacementError(
            f"the cluster is in use, after {seconds:g} s: the job asks for "
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
            f"{', '.join(map(_name, late))} did not start within {seconds:g} s, though there is a node with "
            f"{'; '.join(_said(asked[name]) for name in late)}: other jobs may have taken it (see: ray list "
            "actors), or its Ray logs name the cause"
        )
    for ref, name in versions.items():
        try:
            version = answer_of(name or "coordinator", ref, seconds)
        except PartyLost as lost:
            raise PlacementError(
                f"{_name(name)} does not start where it was placed: {lost}. Every node needs vfl {__version__} in the "
                "Python that Ray was started with; the node's Ray logs say more"
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


def _holds(node: Mapping[str, float], asked: Asked) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in asked.items())


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
