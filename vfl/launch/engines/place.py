"""The engine of a run: this process, a place on a Ray cluster, or a federation of organisations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.arguments import require
from vfl.errors import SpecificationError
from vfl.job.faults import Faults
from vfl.job.placement import Placement
from vfl.launch.engines.connection import check_address
from vfl.secure.specification import SEPARATE

if TYPE_CHECKING:
    from pathlib import Path

    from vfl.federation.file import Federation
    from vfl.federation.identity import Identity
    from vfl.job import Job

ENGINES = ("ray", "inprocess")


@dataclass(frozen=True, slots=True)
class Place:
    """A Ray cluster, the nodes that the actors take on it, and the policy for parties that are lost there.

    address : None uses the Ray that this process is connected to, or starts a local one.
    """

    address: str | None = None
    placement: Placement = field(default_factory=Placement)
    faults: Faults = field(default_factory=Faults)


GATHER_SECONDS = 86_400.0
"""Longest wait for all parties of a federation to connect."""


@dataclass(frozen=True, slots=True)
class Organisations:
    """A federation of organisations as the place of a run. identity : of the coordinator, which is this process.

    gather_seconds : wait for all parties to connect. listen : address to bind (vfl.wire.streams.Listener).
    """

    federation: Federation
    identity: Identity
    faults: Faults = field(default_factory=Faults)
    gather_seconds: float = GATHER_SECONDS
    listen: str | None = None


def organisations_of(
    federation: str | Path | Organisations, identity: str | Path | None = None, faults: Faults | None = None
) -> Organisations:
    """Return the place that a federation file stands for. Raises SpecificationError if file and identity do not fit.

    identity : path of the coordinator's key or certificate; None takes the files beside the federation file.
    """
    from vfl.federation.file import identity_for, read_federation

    if isinstance(federation, Organisations):
        return federation
    read = read_federation(federation)
    return Organisations(read, identity_for(read, federation, read.coordinator.name, identity), faults or Faults())


def dealer_of(job: Job, federation: Federation) -> str | None:
    """Return the member that deals in a job; None without one. SpecificationError if the job asks for one that is missing."""
    if job.secure is None or job.secure.dealer != SEPARATE:
        return None
    if federation.dealer is None:
        raise SpecificationError(
            f"the job asks for a separate dealer, and the federation {federation.name!r} names none: name one with vfl "
            "federation new --dealer NAME=FILE, or set dealer = 'coordinator' in [secure] if no party runs the coordinator"
        )
    return federation.dealer.name


def across(
    federation: str | Path | Organisations,
    identity: str | Path | None,
    faults: Faults | None = None,
    **others: object,
) -> Organisations:
    """Return the place of a run across organisations; SpecificationError for options that the parties set for themselves.

    others : these options, by name.
    """
    for name, value in others.items():
        if value:
            raise SpecificationError(
                f"{name} cannot be combined with a federation: each party sets it in its vfl join command"
            )
    return organisations_of(federation, identity, faults)


def shards_of(placement: Placement | None) -> int:
    """Return the number of row shards per party. Raises SpecificationError for anything that is no placement."""
    fits = placement is None or isinstance(placement, Placement)
    require("placement", placement, "vfl.Placement(...), or None", fits=fits)
    return 1 if placement is None else placement.shards


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
