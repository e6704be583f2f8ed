"""Nodes of a Ray cluster on which a job's actors run. They belong to the environment and are not part of the job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vfl.errors import JobFileError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

COORDINATOR = "coordinator"
IN_ONE_PROCESS = "trust='secure' keeps all rows of a party in one process: leave shards at 1"
APART = "trust='secure' protects parties from one another, so each needs a process of its own: leave parties_per_process at 1"
ALONE = (
    "[ray] parties_per_process lets parties share a process, and pinned parties run on the nodes of their owners: set pin to "
    "'never' for a simulation, or leave parties_per_process out"
)
FEW_PARTIES = 4
"""This many parties of a simulation each have a process of their own, even on fewer cores."""
FEWEST_PROCESSES = 2
"""More parties share at least this many processes, so that one lost process does not lose all of them."""
PINS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Requirements of a job on a cluster's nodes.

    pin : 'always' or 'never' pins actors to nodes by custom resources; 'auto' pins on a cluster that is named by an address.
    resources : {party: name of the resource that its node offers}; the default is 'party:NAME'.
    ready_seconds : limit for the cluster to offer the required resources.
    party_cpus : CPUs that a party's actor takes of its node and computes with. The coordinator takes none.
    parties_per_process : number of parties that share a worker process. Results are the same to the bit, but parties in
        one process are not protected from each other: for simulations by one owner, where actors are not pinned. None lets
        the run decide: parties share processes only on a local Ray that the run starts, without owners' policies, secure
        trust or shards, and only if they outnumber both four and the cores (`for_simulation`). Otherwise each has its own.
    shards : number of actors among which the rows of each party, and the margins, are divided. The model is the same to the
        bit for every number; without privacy it agrees to rounding. Each shard takes party_cpus.
    """

    pin: str = "auto"
    resources: Mapping[str, str] = field(default_factory=dict)
    ready_seconds: float = 15.0
    party_cpus: float = 1.0
    parties_per_process: int | None = None
    shards: int = 1

    def __post_init__(self) -> None:
        if self.pin not in PINS:
            raise JobFileError(f"[ray] pin must be one of {', '.join(PINS)}, not {self.pin!r}")
        if not (math.isfinite(self.ready_seconds) and self.ready_seconds > 0):
            raise JobFileError(f"[ray] ready_seconds must be a positive number of seconds, not {self.ready_seconds!r}")
        if not (math.isfinite(self.party_cpus) and self.party_cpus >= 0):
            raise JobFileError(f"[ray] party_cpus must be at least 0, not {self.party_cpus!r}")
        shared = self.parties_per_process
        if shared is not None and (not isinstance(shared, int) or isinstance(shared, bool) or shared < 1):
            raise JobFileError(f"[ray] parties_per_process must be a whole number of at least 1, not {shared!r}")
        if self.shares_processes and self.pin == "always":
            raise JobFileError(ALONE)
        if isinstance(self.shards, bool) or not isinstance(self.shards, int) or self.shards < 1:
            raise JobFileError(f"[ray] shards must be a whole number of at least 1, not {self.shards!r}")
        if self.shards > 1 and self.shares_processes:
            raise JobFileError("[ray] shards and parties_per_process exclude each other: leave one of them out")
        for party, resource in self.resources.items():
            if not isinstance(resource, str) or not resource:
                raise JobFileError(f"[ray.resources] {party} must be the name of a resource, not {resource!r}")

    def require_fit(self, trust: str) -> None:
        """Raise PlacementError if a job under this trust setting cannot run in such shards or shared processes."""
        if trust == "secure" and self.shares_processes:
            raise PlacementError(APART)
        if trust == "secure" and self.shards > 1:
            raise PlacementError(IN_ONE_PROCESS)

    def pinned(self, address: str | None) -> bool:
        """Return True if actors are pinned on the cluster at this address; None is a local Ray."""
        return self.pin == "always" or (self.pin == "auto" and address is not None)

    @property
    def shares_processes(self) -> bool:
        """Return True if the placement makes parties share processes."""
        return (self.parties_per_process or 1) > 1

    def for_simulation(self, parties: Collection[str], trust: str, cores: int) -> Placement:
        """Return the placement of a local simulation by one owner, in which many parties share few processes.

        Parties that outnumber both `cores` and FEW_PARTIES share a process per core, at least FEWEST_PROCESSES: each process
        spends 1.9 s of processor time until it has loaded its columns. A placement with a set number, pins or shards, or for
        trust = 'secure', stays as it is.
        """
        if self.parties_per_process is not None or self.pin == "always" or self.shards > 1 or trust == "secure":
            return self
        if len(parties) <= max(cores, FEW_PARTIES):
            return replace(self, parties_per_process=1)
        return replace(self, parties_per_process=math.ceil(len(parties) / max(cores, FEWEST_PROCESSES)))

    def processes(self, parties: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the parties of each process, in their order."""
        names, each = tuple(parties), self.parties_per_process or 1
        return [names[k : k + each] for k in range(0, len(names), each)]

    def resource(self, party: str) -> str:
        """Return the name of the resource that the party's node offers."""
        return self.resources.get(party, f"party:{party}")
