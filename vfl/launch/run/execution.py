"""Execution of one run, from its settings to its events and its result."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from coordinator.charging.budget import Budget
from coordinator.coordinator import Outcome
from coordinator.rounds import Log, Made
from vfl.errors import SpecificationError
from vfl.job.environment import Ledger
from vfl.job.job import require_job
from vfl.job.site import InProcess, Ray
from vfl.launch.engines import dispatch
from vfl.launch.engines.place import Organisations, located, require_fit
from vfl.launch.run.result import Result
from vfl.launch.run.warnings import count_run
from vfl.launch.run.witness import Witness
from vfl.launch.sources import ask_owners, named_by_owners, sources_of
from vfl.planning import cheapest, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from coordinator.charging.budget import Reserved
    from coordinator.rounds import Lost, Round
    from vfl.alignment import Aligned, Aligning
    from vfl.job import Job
    from vfl.launch.engines.arrangement import Arrangement
    from vfl.launch.engines.place import At, Place
    from vfl.planning import Plan
    from vfl.security.signatures import SigningKey

    Event = Aligning | Aligned | Plan | Reserved | Round | Lost
    Watch = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run besides its job. All paths are absolute.

    budget : account that the run charges. place : opened site of the run. data : data without their owners' rules.
    arrangement : policies of the owners, and indexes of the alignment.
    log : releases of the run's earlier processes.
    counted : True to count the run in the process's total of private runs (vfl.launch.run.warnings).
    """

    budget: Budget
    place: Place
    data: Any
    arrangement: Arrangement
    log: Log = field(default_factory=Log)
    counted: bool = True


def settings_of(job: Job, data: Any, *, at: At, ledger: str | Path | Ledger | None) -> Settings:
    """Return the settings of a new run, from the arguments of `vfl.launch.train.train`. Refuses arguments that do not fit."""
    require_job(job)
    place, data, arrangement = located(job.partition.parties, data, at)
    require_fit(place, job)  # before any data are read
    budget = new_budget(job, ledger)
    if not (isinstance(place, Ray) and place.address) and job.privacy is not None:
        budget.find()  # before processes start and records are aligned
        if job.dataset is not None and (least := cheapest(job)) is not None:
            budget.require_room(job, least)
    return Settings(budget=budget, place=place, data=data, arrangement=arrangement)


def new_budget(job: Job, ledger: str | Path | Ledger | None) -> Budget:
    """Return the budget of a new run. Refuses a ledger that does not fit the job."""
    kept = Ledger.of(ledger)
    if kept.path is not None and job.dataset is None:
        raise SpecificationError(
            "a ledger keeps the budget of data sets, and the job names none: set dataset in the job, or leave the ledger out"
        )
    path = None if kept.path is None else str(kept.path)
    budget = Budget(uuid.uuid4().hex, path, allow_network_file_system=kept.allow_network_file_system)
    budget.check(job)
    return budget


def asked_sources(job: Job, settings: Settings, *others: Job) -> Mapping[str, Any]:
    """Check the job, and `others` on the same data, against the policies that this process can read. Return {party: source}.

    Across organisations, return {party: the owner's name of its source}.
    """
    if isinstance(settings.place, Organisations):
        return named_by_owners(job.partition, settings.data)
    here = isinstance(settings.place, InProcess)
    ask_owners(job, settings.data, settings.arrangement.policies, *others, here=here)
    return sources_of(job, settings.data, ids=True)


def events_of(job: Job, settings: Settings) -> Iterator[Event | Result]:
    """Execute a run. Yield its events as they happen, then its result, which is not signed yet."""
    place, arrangement = settings.place, settings.arrangement
    sources = asked_sources(job, settings)
    if job.id is not None and not arrangement.required:
        check(job)  # before an alignment that may take hours
    events = dispatch.run(job, sources, settings.budget, settings.log, place=place, arrangement=arrangement)
    witness = Witness(settings.budget, settings.log, _federation_of(place, job))
    with contextlib.closing(events) as watched:  # type: ignore[type-var]
        for event in watched:
            if settings.counted:
                count_run(job, event)
            witness.note(event)
            if isinstance(event, Outcome):
                yield witness.result(event)
            elif not isinstance(event, Made):
                yield event


def _federation_of(place: Place, job: Job) -> dict[str, str] | None:
    """Return the name, digest and dealer of the run's federation; None for other places."""
    if not isinstance(place, Organisations):
        return None
    return place.federation.stated("" if job.secure is None else job.secure.dealer)


def finish(
    job: Job, settings: Settings, *, watches: tuple[Callable[[Event], None], ...], signer: SigningKey | None
) -> Result:
    """Execute a run to its end and return its result, signed if there is a key.

    watches : functions, each of which is called with every event.
    """
    with contextlib.closing(events_of(job, settings)) as events:  # type: ignore[type-var]
        for event in events:
            if isinstance(event, Result):
                return event if signer is None else replace(event, certificate=event.certificate.signed(signer))
            for watch in watches:
                watch(event)
    raise AssertionError("a run ended without its outcome")
