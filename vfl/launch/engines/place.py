"""Place of a command: where it runs (a checked site, perhaps a federation), and the data with their owners' rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vfl.errors import PlacementError, SpecificationError, nearest
from vfl.job.faults import Faults
from vfl.job.site import Federated, InProcess, Ray, Site, resolve
from vfl.launch.engines.arrangement import Arrangement
from vfl.launch.engines.connection import check_address
from vfl.launch.sources import in_memory, owned
from vfl.secure.specification import SEPARATE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from vfl.federation.file import Federation
    from vfl.federation.identity import Identity
    from vfl.job import Job

GATHER_SECONDS = 86_400.0
"""Longest wait for all parties of a federation to connect."""


@dataclass(frozen=True, slots=True)
class Organisations:
    """Federation of organisations as the place of a run. This process is the coordinator.

    identity : identity of the coordinator. gather_seconds : longest wait for all parties to connect. listen : address to bind
    (vfl.wire.streams.Listener).
    """

    federation: Federation
    identity: Identity
    faults: Faults = field(default_factory=Faults)
    gather_seconds: float = GATHER_SECONDS
    listen: str | None = None


Place = InProcess | Ray | Organisations
At = Site | Organisations | str | None
"""Argument `at` of a command: a site, 'inprocess', 'ray', or None for the command's default."""


def place_of(at: At, otherwise: Site) -> Place:
    """Return the place that an argument `at` means; None means `otherwise`.

    Raises SpecificationError if the federation file does not name the coordinator's identity.
    """
    if isinstance(at, Organisations):
        return at
    site = resolve(at, otherwise)
    if isinstance(site, Federated):
        from vfl.federation.file import identity_for, read_federation

        read = read_federation(site.file)
        return Organisations(read, identity_for(read, site.file, read.coordinator.name, site.identity), site.faults)
    if isinstance(site, Ray):
        check_address(site.address)
    return site


def located(
    parties: Collection[str], data: Any, at: At, otherwise: Site | None = None
) -> tuple[Place, Any, Arrangement]:
    """Return the place of a command, the data, and the arrangement: policies and index folders of the data's owners.

    otherwise : site for at=None. If `otherwise` is None too, tables in memory stay in this process, and actors on Ray open
    all other sources.

    Raises SpecificationError for policies or index folders with a federation, whose parties set these themselves.
    """
    data, policies, folders = owned(parties, data)
    place = place_of(at, otherwise or (InProcess() if in_memory(data) else Ray()))
    if isinstance(place, Organisations) and (policies or folders):
        raise SpecificationError(
            "vfl.Source with a policy or an index cannot be combined with a federation: each party names its own in its "
            "vfl join command"
        )
    return place, data, Arrangement(policies=policies, folders=folders)


def require_fit(place: Place, job: Job) -> None:
    """Raise PlacementError for a job that cannot run at this place. Each organisation also checks a job on its own."""
    if not isinstance(place, Organisations):
        place.require_fit(job.trust)
    elif job.privacy is not None and job.privacy.inference_share:
        raise PlacementError(
            "intervals show every party's scaled columns to the parties after it, before noise, so they are not offered across "
            "organisations: take privacy.inference = 'subsamples', or train in one place"
        )


def check_parties(parties: Iterable[str], federation: Federation) -> None:
    """Raise SpecificationError for a party that is not in the federation."""
    for party in parties:
        if party not in federation.parties:
            raise SpecificationError(
                f"the job's party {party!r} is not a party of the federation {federation.name!r}"
                f"{nearest(party, federation.parties)}; its parties are {', '.join(federation.parties)}"
            )


def check_job(job: Job, federation: Federation) -> None:
    """Raise SpecificationError unless the federation has every party of the job, and the dealer if the job needs one."""
    check_parties(job.partition.parties, federation)
    dealer_of(job, federation)


def dealer_of(job: Job, federation: Federation) -> str | None:
    """Return the name of a job's separate dealer; None if it needs none. SpecificationError if the federation lacks one."""
    if job.secure is None or job.secure.dealer != SEPARATE:
        return None
    if federation.dealer is None:
        raise SpecificationError(
            f"the job asks for a separate dealer, and the federation {federation.name!r} names none: name one with vfl "
            "federation new --dealer NAME=FILE, or set dealer = 'coordinator' in [secure] if no party runs the coordinator"
        )
    return federation.dealer.name
