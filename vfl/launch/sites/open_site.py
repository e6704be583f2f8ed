"""Open site of a command: the checked site, its module, and the data with their owners' rules."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vfl.crypto.alignment import IndexRules
from vfl.errors import PlacementError, SpecificationError, nearest
from vfl.job.site import ROWS_IN_ONE_PROCESS, Faults, Federated, InProcess, Ray, Site, resolve
from vfl.launch.sites.connection import check_address
from vfl.launch.sources import in_memory, owned
from vfl.secure.roles import SEPARATE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from typing import TypeAlias

    from coordinator.coordinator import Event
    from coordinator.prediction import PredictionOutcome
    from vfl.base.types import Vector
    from vfl.crypto.alignment import Aligned, AlignmentProgress
    from vfl.job import Job
    from vfl.measures import Findings
    from vfl.network.federation.file import Federation
    from vfl.network.federation.identity import Identity

    RunEvent: TypeAlias = AlignmentProgress | Aligned | Event
    """Event of a run; the last is its Outcome."""

    ApplyEvent: TypeAlias = AlignmentProgress | Aligned | PredictionOutcome | Findings
    """Event of a prediction or an evaluation; the last is Predicted or Findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement(IndexRules):
    """Owners' policies and index options of one run. Fields of `IndexRules` apply to all parties; `folders` replaces `folder`.

    policies : {party: path of its owner's policy}. folders : {party: folder of its index}. All paths are absolute.
    required : True if an earlier process of the run has trained on the rows of an index. Then no other index may be used.
    """

    policies: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    required: bool = False

    def keeping(self, party: str) -> IndexRules:
        """Return the rules for a party's index (positions of the aligned records)."""
        return IndexRules(self.folders.get(party), self.run, self.resumed, self.later, self.last, self.again)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Application:
    """Application of a model to new records, for predictions or measures.

    parts : {party: its part of the model, or the path of that part}. policies : {party: path of its owner's policy}.
    given : {party: source as the user gave it}; across organisations, the owner's name of the source.
    sources : function that returns the sources that the parties read. This process calls it; the function checks all owners'
        policies before it opens a file that holds all parties' columns. None takes `given`.
    w : the whole model, to measure it on labelled records; None predicts.
    threshold : score above which the model predicts the positive class; None takes the threshold in the model's parts.
    """

    parts: Mapping[str, Any]
    given: Mapping[str, Any]
    policies: Mapping[str, str]
    sources: Callable[[], Mapping[str, Any]] | None = None
    w: Vector | None = None
    threshold: float | None = None

    def opened(self) -> Mapping[str, Any]:
        """Return the sources that the parties read."""
        return self.given if self.sources is None else self.sources()

    def cut(self, own: float) -> float:
        """Return the threshold; if none was given, `own`, which is the threshold in the model's parts."""
        return own if self.threshold is None else self.threshold


def cores_each(cores: int | None, at_once: int) -> int:
    """Return the cores per party: the given number; else an equal share of this machine for `at_once` parties at work."""
    return cores or max(1, usable_cores() // at_once)


def usable_cores() -> int:
    """Return the number of cores that this process may use: at most NUMBA_NUM_THREADS, which joblib sets for its workers."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(here, max(1, int(allowed))) if allowed.isdigit() else here


GATHER_SECONDS = 86_400.0
"""Longest wait for all parties of a federation to connect."""


@dataclass(frozen=True, slots=True)
class Organisations:
    """Federation of organisations as the site of a run. This process is the coordinator.

    identity : identity of the coordinator. gather_seconds : longest wait for all parties to connect. listen : address to bind
        (vfl.network.wire.streams.Listener).
    """

    federation: Federation
    identity: Identity
    faults: Faults = field(default_factory=Faults)
    gather_seconds: float = GATHER_SECONDS
    listen: str | None = None


OpenSite = InProcess | Ray | Organisations
At = Site | Organisations | str | None
"""Argument `at` of a command: a site, 'inprocess', 'ray', or None for the command's default."""


def open_site(at: At, otherwise: Site) -> OpenSite:
    """Return the site that an argument `at` means; None means `otherwise`.

    Raises SpecificationError if the federation file does not name the coordinator's identity.
    """
    if isinstance(at, Organisations):
        return at
    site = resolve(at, otherwise)
    if isinstance(site, Federated):
        from vfl.network.federation.file import identity_for, read_federation

        read = read_federation(site.file)
        return Organisations(read, identity_for(read, site.file, read.coordinator.name, site.identity), site.faults)
    if isinstance(site, Ray):
        check_address(site.address)
    return site


def site_and_data(
    parties: Collection[str], data: Any, at: At, otherwise: Site | None = None
) -> tuple[OpenSite, Any, Arrangement]:
    """Return the site of a command, the data, and the arrangement: policies and index folders of the data's owners.

    otherwise : site for at=None. If `otherwise` is None too, tables in memory stay in this process, and actors on Ray open all
        other sources.

    Raises SpecificationError for policies or index folders with a federation, whose parties set these themselves.
    """
    data, policies, folders = owned(parties, data)
    site = open_site(at, otherwise or (InProcess() if in_memory(data) else Ray()))
    if isinstance(site, Organisations) and (policies or folders):
        raise SpecificationError(
            "vfl.Source with a policy or an index cannot be combined with a federation: each party names its own in its "
            "vfl join command"
        )
    return site, data, Arrangement(policies=policies, folders=folders)


def require_fit(site: OpenSite, job: Job) -> None:
    """Raise PlacementError for a job that cannot run at this site. Each organisation also checks a job on its own."""
    if not isinstance(site, Organisations):
        site.require_fit(job.trust_name)
        if job.row_rule is not None and site.shards > 1:
            raise PlacementError(ROWS_IN_ONE_PROCESS)
    elif job.intervals_share:
        raise PlacementError(
            "intervals show every party's scaled columns to the parties after it, before noise, so they are not offered across "
            "organisations: take intervals = 'subsamples', or train in one place"
        )


def module_of(site: OpenSite) -> Any:
    """Return the module that runs at a site. Those for this process, Ray and a federation have the same functions.

    run(job, sources, budget, log, *, site, arrangement) : align the records if the job asks for it, load every party, train;
        yield each `RunEvent`, the outcome last.
    align_only(job, sources, arrangement, *, site) : yield the progress of an alignment, then its outcome.
    apply(asked, *, site) : have every party apply its part of a model to new records; yield each `ApplyEvent`.
    """
    name = "federation" if isinstance(site, Organisations) else type(site).__name__.lower()
    return importlib.import_module(f"vfl.launch.sites.{name}")


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
    if job.dealer != SEPARATE:
        return None
    if federation.dealer is None:
        raise SpecificationError(
            f"the job asks for a separate dealer, and the federation {federation.name!r} names none. Name one with vfl "
            "federation new --dealer NAME=FILE, or set dealer in [trust]: 'coordinator' if no party runs the coordinator, or "
            "'none' if there are two parties"
        )
    return federation.dealer.name
