"""The engine of a run: this process, or a place on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from vfl.errors import SpecificationError
from vfl.job.faults import Faults
from vfl.job.placement import Placement
from vfl.launch.engines.connection import check_address

ENGINES = ("ray", "inprocess")


@dataclass(frozen=True, slots=True)
class Place:
    """A Ray cluster, the nodes that the actors take on it, and the policy for parties that are lost there.

    address : None uses the Ray that this process is connected to, or starts a local one.
    """

    address: str | None = None
    placement: Placement = field(default_factory=Placement)
    faults: Faults = field(default_factory=Faults)


def place_of(
    engine: str, address: str | None, placement: Placement | None = None, faults: Faults | None = None
) -> Place | None:
    """Return the place of a run on Ray, or None for a run in this process; SpecificationError if they do not fit."""
    if engine not in ENGINES:
        raise SpecificationError(f"unknown engine {engine!r}; give one of: {', '.join(ENGINES)}")
    if engine == "ray":
        check_address(address)
        return Place(address, placement or Placement(), faults or Faults())
    if address is not None:
        raise SpecificationError("an address names a Ray cluster: leave it out, or use the engine 'ray'")
    return None
