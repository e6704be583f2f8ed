"""Sites (places where runs compute), and the policy for lost parties. Both belong to the environment, not to the job.

Only `resolve` interprets arguments `at=`. A site is frozen and holds no secret, so it can be copied, compared and logged.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vfl.base.arguments import (
    check_options,
    explained,
    number,
    one_of,
    option,
    require,
    require_count,
    require_positive,
    that,
)
from vfl.errors import JobFileError, PlacementError, SpecificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

POLICIES = ("wait", "skip", "abort")
_SECONDS = partial(require_positive, error=JobFileError)


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Policy for lost parties. A lost query stays charged under every policy.

    on_party_lost : 'wait' waits until the party restarts, then repeats the query with a new charge. 'skip' waits equally long,
        then continues without the lost party's blocks, as the certificate says. 'abort' ends the run at once; the run can be
        resumed.
    wait_timeout_s : time that a lost party has to come back with its data loaded.
    answer_timeout_s : time that a party has for one answer; a party that takes longer counts as lost.
    """

    on_party_lost: str = option(one_of(POLICIES, error=JobFileError), "wait")
    wait_timeout_s: float = option(_SECONDS, 120.0)
    answer_timeout_s: float = option(_SECONDS, 600.0)

    def __post_init__(self) -> None:
        check_options(self, "[faults] ")


_FAULTS = that(lambda value: isinstance(value, Faults), "must be vfl.federation.Faults(...)")
_ADDRESS = that(lambda value: isinstance(value, str), "must be text, such as 'auto' or 'HEAD:6379'")


COORDINATOR = "coordinator"
IN_ONE_PROCESS = "trust='secure' keeps all rows of a party in one process: leave shards at 1"
ROWS_IN_ONE_PROCESS = "a job in which persons have several rows keeps them in one process: leave shards at 1"
APART = "trust='secure' protects parties from one another, so each needs a process of its own: leave parties_per_process at 1"
ALONE = (
    "[ray] parties_per_process lets parties share a process, and pinned parties run on the nodes of their owners: set pin to "
    "'never' for a simulation, or leave parties_per_process out"
)
FEW_PARTIES = 4
"""Largest number of parties in a simulation that get one process each even on fewer cores."""
FEWEST_PROCESSES = 2
"""Smallest number of processes for more than FEW_PARTIES parties, so that one lost process does not lose all parties."""
PINS = ("auto", "always", "never")


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """Site in this process, which computes for one party after another. For simulations, debugging and tests.

    num_cpus : number of cores per party; None takes all cores of this process. The number changes no result.
    shards : number of ranges into which the rows of each party are divided. The model is the same to the bit for every number
        of shards; without privacy the models agree to rounding. Predictions hold one range in memory at a time.
    """

    num_cpus: int | None = option(require_count, None)
    shards: int = option(require_count, 1)

    def __post_init__(self) -> None:
        check_options(self)

    def require_fit(self, trust: str) -> None:
        """Raise PlacementError if a job with this trust setting cannot run in the site's shards."""
        if trust == "secure" and self.shards > 1:
            raise PlacementError(IN_ONE_PROCESS)


@explained
@dataclass(frozen=True, slots=True)
class Ray:
    """Ray cluster, with one actor for each party and one for the coordinator, which reserves no CPU.

    address : address of the cluster, 'auto' or host:port. None takes the Ray to which this process is connected. If there is
        none, a local Ray is started, which stays until the process ends, so that later runs begin sooner.
    num_cpus : number of cores per party for alignment and training; the number changes no result. None divides this machine's
        cores among the parties that work at the same time. On a cluster with an address, None gives a party its `party_cpus`.
    shards : number of actors among which the rows of each party, and the margins, are divided. The model is the same to the bit
        for every number of shards; without privacy the models agree to rounding. Each shard takes party_cpus.
    pin : 'always' pins actors to nodes by custom resources, 'never' does not; 'auto' pins only on a cluster with an address.
    resources : {party: name of the resource that the party's node offers}; the default is 'party:NAME'.
    ready_timeout_s : time limit for the cluster to offer the required resources.
    party_cpus : CPUs that a party's actor reserves on its node. None takes 1 on a cluster, and a small fraction on one machine.
    parties_per_process : number of parties that share a worker process, for simulations by one owner without pinned actors.
        Results are the same to the bit, but parties in one process are not protected from each other. With None, parties
        share processes only if they outnumber both four and the cores, on a local Ray that vfl starts, without owners'
        policies, secure trust or shards (`for_simulation`).
    faults : policy for lost parties.
    """

    address: str | None = option(_ADDRESS, None)
    _: KW_ONLY
    num_cpus: int | None = option(require_count, None)
    shards: int = option(require_count, 1)
    pin: str = option(one_of(PINS, error=JobFileError), "auto")
    resources: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = option(_SECONDS, 15.0)
    party_cpus: float | None = option(
        number(lambda cpus: 0 <= cpus < math.inf, "must be at least 0", JobFileError), None
    )
    parties_per_process: int | None = option(require_count, None)
    faults: Faults = option(_FAULTS, Faults())

    def __post_init__(self) -> None:
        check_options(self, "[ray] ")
        if self.shares_processes and self.pin == "always":
            raise JobFileError(ALONE)
        if self.shards > 1 and self.shares_processes:
            raise JobFileError("[ray] shards and parties_per_process exclude each other: leave one of them out")
        for party, resource in self.resources.items():
            if not isinstance(resource, str) or not resource:
                raise JobFileError(f"[ray.resources] {party} must be the name of a resource, not {resource!r}")

    def require_fit(self, trust: str) -> None:
        """Raise PlacementError if a job with this trust setting cannot run in the site's shards or shared processes."""
        if trust == "secure" and self.shares_processes:
            raise PlacementError(APART)
        if trust == "secure" and self.shards > 1:
            raise PlacementError(IN_ONE_PROCESS)

    @property
    def pinned(self) -> bool:
        """Return True if actors are pinned to nodes."""
        return self.pin == "always" or (self.pin == "auto" and self.address is not None)

    @property
    def shares_processes(self) -> bool:
        """Return True if parties share processes at this site."""
        return (self.parties_per_process or 1) > 1

    def for_simulation(self, parties: Collection[str], trust: str, cores: int) -> Ray:
        """Return the site of a local simulation by one owner, in which many parties share few processes.

        Parties that outnumber both `cores` and FEW_PARTIES share one process per core, at least FEWEST_PROCESSES, because each
        process spends 1.9 s of processor time until it has loaded its columns. With parties_per_process, pins, shards or
        trust = 'secure' the site does not change.
        """
        if self.parties_per_process is not None or self.pin == "always" or self.shards > 1 or trust == "secure":
            return self
        if len(parties) <= max(cores, FEW_PARTIES):
            return replace(self, parties_per_process=1)
        return replace(self, parties_per_process=math.ceil(len(parties) / max(cores, FEWEST_PROCESSES)))

    def processes(self, parties: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the names of the parties in each process, in order."""
        names, each = tuple(parties), self.parties_per_process or 1
        return [names[k : k + each] for k in range(0, len(names), each)]

    def resource(self, party: str) -> str:
        """Return the name of the resource that the party's node offers."""
        return self.resources.get(party, f"party:{party}")


@explained
@dataclass(frozen=True, slots=True)
class Federated:
    """Federation of organisations. Each party runs `vfl.join`; this process is the coordinator.

    file : path of the federation file. identity : path of the coordinator's key or certificate; None takes the key beside the
        federation file. faults : policy for lost parties.

    Each party has its own data, policy, index folder and cores. The argument `data` of a command is then None or
    {party: name that the owner gave the party's source}.
    """

    file: str | Path
    identity: str | Path | None = None
    _: KW_ONLY
    faults: Faults = option(_FAULTS, Faults())

    def __post_init__(self) -> None:
        check_options(self)


Site = InProcess | Ray | Federated
RAY_KEYS = tuple(f.name for f in fields(Ray) if f.name not in ("num_cpus", "faults"))
"""Keys of [ray] in a job file. Cores are in [alignment] instead, and faults in [faults]."""
_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in (InProcess, Ray, Federated)}
_RAY = Ray()
SITES = "'inprocess', 'ray', the HOST:PORT of a Ray cluster ('auto' for this node's), or the FILE.toml of a federation"


def resolve(at: Site | str | None, otherwise: Site, declared: Ray = _RAY) -> Site:
    """Return the site that an argument `at` means. Raises SpecificationError for any other value.

    at : a site; 'inprocess'; 'ray'; the address of a Ray cluster, host:port or 'auto'; the path of a federation file, which
        ends in '.toml'; None for the site `otherwise`.
    declared : cores, shards and policy for lost parties of a site that `at` names as text, and address of 'ray'.
    """
    if at is None:
        return otherwise
    require(
        "at",
        at,
        f"{SITES}, or vfl.InProcess(...), vfl.Ray(...) or vfl.Federated(FILE)",
        fits=isinstance(at, Site | str),
    )
    if not isinstance(at, str):
        return at
    if at == "inprocess":
        return InProcess(num_cpus=declared.num_cpus, shards=declared.shards)
    if at == "ray":
        return declared
    if at.endswith(".toml"):
        return Federated(at, faults=declared.faults)
    if at == "auto" or ":" in at:
        return replace(declared, address=at)
    raise SpecificationError(f"unknown site at={at!r}{nearest(at, ('inprocess', 'ray', 'auto'))}: at takes {SITES}")


def plain_site(site: Site) -> dict[str, Any]:
    """Return a site as plain values, for a run's log. The paths of a federation become absolute."""
    from vfl.job.plain import plain_of

    plain: dict[str, Any] = {"kind": type(site).__name__, **plain_of(site)}
    return plain | {key: str(Path(plain[key]).absolute()) for key in ("file", "identity") if key in plain}


def site_of_log(kept: Mapping[str, Any]) -> Site:
    """Return the site that a run's log names."""
    plain = dict(kept.get("at") or {"kind": Ray.__name__})
    kind = _KINDS[plain.pop("kind")]
    if "faults" in plain:
        plain["faults"] = Faults(**plain["faults"])
    site: Site = kind(**plain)
    return site
