"""Nodes of a Ray cluster on which a job's actors run. They belong to the environment and are not part of the job."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.errors import JobFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

COORDINATOR = "coordinator"
PINS = ("auto", "always", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Requirements of a job on a cluster's nodes.

    pin : 'always' or 'never' pins actors to nodes by custom resources; 'auto' pins on a cluster that is named by an address.
    resources : {party: name of the resource that its node offers}; the default is 'party:NAME'.
    ready_seconds : limit for the cluster to offer the required resources.
    party_cpus : CPUs that a party's actor takes of its node and computes with. The coordinator takes none.
    """

    pin: str = "auto"
    resources: Mapping[str, str] = field(default_factory=dict)
    ready_seconds: float = 15.0
    party_cpus: float = 1.0

    def __post_init__(self) -> None:
        if self.pin not in PINS:
            raise JobFileError(f"[ray] pin must be one of {', '.join(PINS)}, not {self.pin!r}")
        if not (math.isfinite(self.ready_seconds) and self.ready_seconds > 0):
            raise JobFileError(f"[ray] ready_seconds must be a positive number of seconds, not {self.ready_seconds!r}")
        if not (math.isfinite(self.party_cpus) and self.party_cpus >= 0):
            raise JobFileError(f"[ray] party_cpus must be at least 0, not {self.party_cpus!r}")
        for party, resource in self.resources.items():
            if not isinstance(resource, str) or not resource:
                raise JobFileError(f"[ray.resources] {party} must be the name of a resource, not {resource!r}")

    def pinned(self, address: str | None) -> bool:
        """Return True if actors are pinned on the cluster at this address; None is a local Ray."""
        return self.pin == "always" or (self.pin == "auto" and address is not None)

    def resource(self, party: str) -> str:
        """Return the name of the resource that the party's node offers."""
        return self.resources.get(party, f"party:{party}")
