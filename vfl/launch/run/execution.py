"""The execution of one run, from its settings to its events and its result."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.charging.budget import Budget
from coordinator.coordinator import Outcome
from coordinator.rounds import Log, Made
from vfl.arguments import require
from vfl.errors import SpecificationError
from vfl.job.faults import Faults
from vfl.job.job import require_job
from vfl.launch.engines import dispatch
from vfl.launch.engines.arrangement import Arrangement
from vfl.launch.engines.place import Organisations, across, place_of, shards_of
from vfl.launch.run.result import Result
from vfl.launch.run.warnings import count_run
from vfl.launch.run.witness import Witness
from vfl.launch.sources import ask_owners, named_by_owners, paths_of, sources_of
from vfl.planning import MANY, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.charging.budget import Reserved
    from coordinator.rounds import Lost, Round
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.job.placement import Placement
    from vfl.launch.engines.place import Place
    from vfl.planning import Plan
    from vfl.security.signatures import SigningKey

    Event = Aligning | Aligned | Plan | Reserved | Round | Lost
    Watch = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a run needs besides its job and its data. All paths are absolute.

    budget : account that the run charges. place : a Ray cluster or a federation; None runs in this process.
    policies : {party: path of its owner's policy}. arrangement : of the alignment, and the cores of each party.
    log : releases of earlier processes of the same run.
    counted : count the run in this process's total of private runs (vfl.launch.run.warnings).
    """

    budget: Budget
    place: Place | Organisations | None
    policies: Mapping[str, str]
    arrangement: Arrangement
    log: Log = field(default_factory=Log)
    counted: bool = True


def settings_of(
    job: Job,
    *,
    engine: str,
    address: str | None,
    ledger: str | Path | None,
    policies: Mapping[str, str | Path] | None,
    indexes: Mapping[str, str | Path] | None = None,
    cores: int | None = None,
    placement: Placement | None = None,
    faults: Faults | None = None,
    allow_network_file_system: bool = False,
    federation: str | Path | Organisations | None = None,
    identity: str | Path | None = None,
) -> Settings:
    """Return the settings of a new run, from the options of `vfl.launch.train.train`; refuse those that do not fit."""
    require_job(job)
    shards = shards_of(placement)
    if placement is not None:
        placement.require_fit(job.trust)  # before any data are read
    require("faults", faults, "vfl.job.faults.Faults(...), or None", fits=faults is None or isinstance(faults, Faults))
    budget = new_budget(job, ledger, allow_network_file_system=allow_network_file_system)
    if address is None and job.privacy is not None:
        budget.find()  # before processes start and records are aligned
        if job.dataset is not None and (largest := check(job)).n_records == MANY:
            budget.require_room(job, largest)
    place: Place | Organisations | None
    if federation is None:
        place = place_of(engine, address, placement, faults)
    else:
        own: dict[str, Any] = {"address": address, "policies": policies, "indexes": indexes, "cores": cores}
        place = across(federation, identity, faults, placement=placement, **own)
    return Settings(
        budget=budget,
        place=place,
        policies=paths_of(job.partition, policies, "policy"),
        arrangement=Arrangement(folders=paths_of(job.partition, indexes, "index"), cores=cores, shards=shards),
    )


def new_budget(job: Job, ledger: str | Path | None, *, allow_network_file_system: bool = False) -> Budget:
    """Return the budget of a new run; refuse a job and a ledger that do not go together."""
    if ledger is not None and job.dataset is None:
        raise SpecificationError(
            "a ledger keeps the budget of data sets, and the job names none: set dataset in the job, or leave the ledger out"
        )
    path = None if ledger is None else str(Path(ledger).resolve())
    budget = Budget(uuid.uuid4().hex, path, allow_network_file_system=allow_network_file_system)
    budget.check(job)
    return budget


def events_of(job: Job, data: Any, settings: Settings) -> Iterator[Event | Result]:
    """Execute a run: yield its events as they happen, then its result, not yet signed."""
    if isinstance(settings.place, Organisations):
        sources: Mapping[str, Any] = named_by_owners(job.partition, data)
    else:
        ask_owners(job, data, settings.policies)
        sources = sources_of(job, data, ids=True)
    if job.id is not None and not settings.arrangement.required:
        check(job)  # before an alignment that may take hours
    events = dispatch.run(
        job,
        sources,
        settings.budget,
        settings.log,
        place=settings.place,
        policies=settings.policies,
        arrangement=settings.arrangement,
    )
    witness = Witness(settings.budget, settings.log, _federation_of(settings.place, job))
    with contextlib.closing(events) as watched:  # type: ignore[type-var]
        for event in watched:
            if settings.counted:
                count_run(job, event)
            witness.note(event)
            if isinstance(event, Outcome):
                yield witness.result(event)
            elif not isinstance(event, Made):
                yield event


def _federation_of(place: Place | Organisations | None, job: Job) -> dict[str, str] | None:
    """Return name and digest of the federation in which a run is made, and its dealer; None for other places."""
    if not isinstance(place, Organisations):
        return None
    return place.federation.stated("" if job.secure is None else job.secure.dealer)


def finish(
    job: Job, data: Any, settings: Settings, *, watches: tuple[Callable[[Event], None], ...], signer: SigningKey | None
) -> Result:
    """Execute a run to its end and return its result, signed if there is a key.

    watches : each is called with every event.
    """
    with contextlib.closing(events_of(job, data, settings)) as events:  # type: ignore[type-var]
        for event in events:
            if isinstance(event, Result):
                return event if signer is None else replace(event, certificate=event.certificate.signed(signer))
            for watch in watches:
                watch(event)
    raise AssertionError("a run ended without its outcome")
