"""Execution of one run, from its settings to its events and its result."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.charging.budget import Budget, Reserved
from coordinator.coordinator import Outcome
from coordinator.rounds import Log, Lost, ReleasesComplete, Round
from vfl.errors import LedgerError, SpecificationError
from vfl.job.environment import Ledger
from vfl.job.job import require_job
from vfl.job.site import InProcess, Ray
from vfl.launch.run.model import numbers
from vfl.launch.run.result import Result, told
from vfl.launch.run.warnings import Passes, count_run
from vfl.launch.sites.open_site import Organisations, module_of, require_fit, site_and_data
from vfl.launch.sources import ask_owners, named_by_owners, of_environment, sources_of
from vfl.measures import Inference
from vfl.planning import Plan, cheapest, check
from vfl.planning.certificate import certify
from vfl.queries import Tally
from vfl.solvers.releases.labels import asked_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from vfl.base.types import Vector
    from vfl.crypto.alignment import Aligned, AlignmentProgress
    from vfl.crypto.signatures import SigningKey
    from vfl.job import Job
    from vfl.launch.sites.open_site import Arrangement, At, OpenSite, RunEvent
    from vfl.privacy.events import Event as Charge
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.ledger import Statement
    from vfl.queries.protocol import Released
    from vfl.solvers.releases.labels import LabelCounts

    Event = AlignmentProgress | Aligned | Plan | Reserved | Round | Lost
    Watch = Callable[[Event], None]

GIVEN_UP = (
    "party {party!r} was lost during the run and left out: the model's coefficients of its columns are 0, and releases "
    "that were charged for it before stay charged"
)
FIRST = 3
"""Number of first queries whose releases are kept, since they hold knots of curves, column moments or the labels' histogram."""


def counts_among(plan: Plan, released: Sequence[Released]) -> tuple[LabelCounts, Vector, float] | None:
    """Return the histogram of the labels from the first releases of a run; None if the run released no histogram.

    The result is (statistic, noisy counts (BINS,), standard deviation of their noise).
    """
    if not plan.problem.loss.quadratic or plan.solver.sealed or not getattr(plan.solver, "label_share", None):
        return None
    schedule = plan.solver.schedule(plan.problem)
    query = next(schedule)
    for values in released[plan.n_before :]:
        if isinstance(query, Tally):
            found = asked_by(query)
            return None if found is None else (found[0], values[0], found[1])
        query = schedule.send(values)
    return None


class Witness:
    """Recorder of the releases of one process of a run, which issues the certificate at the end."""

    def __init__(self, settings: Settings) -> None:
        self._budget, self._site, log = settings.budget, settings.site, settings.log
        self._charged: Counter[Charge] = Counter()
        self._lost: set[ReleaseKey] = set()
        self._first: dict[int, Released] = {k: u for k, u in enumerate(log.released[:FIRST]) if u is not None}
        self._all: list[Released | None] | None = list(log.released)
        self._flags = dict.fromkeys(log.flags)

    def note(self, event: object) -> None:
        """Count the charges of a round or of a lost attempt. From a reservation, keep the flags."""
        if isinstance(event, Plan) and event.problem.inference is None:
            self._all = None
        elif isinstance(event, Reserved):
            self._flags.update(dict.fromkeys(event.flags))
        elif isinstance(event, Lost):
            # Seeded noise repeats a release under the charged key, at no further cost.
            self._charged.update(charged for key, charged in event.charges if key not in self._lost)
            self._lost.update(key for key, _ in event.charges)
        elif isinstance(event, Round):
            self._charged.update(charged for key, charged in event.charges if key not in self._lost)
            if event.number < FIRST:
                self._first[event.number] = event.released
            if self._all is not None:
                self._all.append(None if event.refused else event.released)

    def result(self, outcome: Outcome) -> Result:
        """Return the result of the run, with an unsigned certificate."""
        plan, statement = outcome.plan, outcome.statement
        # In a run on subsamples, the first releases describe the first subsample, not all records.
        first = tuple(released for _, released in sorted(self._first.items())) if plan.subsamples is None else ()
        coordinates, site = plan.problem.layout.names, self._site
        across = site.federation if isinstance(site, Organisations) else None
        certificate = certify(
            plan,
            statement,
            model=numbers(outcome.w, coordinates),
            findings=told(outcome.findings),
            charged={} if statement is None else self._charges(statement),
            released=first,
            party_ledgers=outcome.party_ledgers,
            run=self._budget.run,
            account=self._budget.account(plan.job),
            flags=(*self._flags, *(GIVEN_UP.format(party=party) for party in outcome.left)),
            federation=None if across is None else across.stated(plan.job.dealer or ""),
            knots=outcome.knots,
        )
        moments = first[plan.n_before] if certificate.moments_digest else ()
        found = counts_among(plan, first)
        labels = None if found is None else found[1]
        result = Result(
            plan.job, certificate, outcome.w, coordinates, outcome.findings, moments, labels, knots=outcome.knots
        )
        if outcome.fits and statement is not None and not statement.stopped_early:
            own = [replace(result, w=w).original for w in outcome.fits]
            return result.with_inference(
                Inference.between(tuple(result.original), np.array([[*one.values()] for one in own]))
            )
        if self._all is None or outcome.left:
            return result
        from vfl.launch.run.intervals import inference_from  # imported here, since it loads the kernels

        return result.with_inference(inference_from(plan, self._all[plan.n_before :], result.original))

    def _charges(self, statement: Statement) -> Mapping[Charge, int]:
        """Return the run's charges: those counted here, or the ledger's if it also holds charges of earlier processes."""
        if self._charged.total() == statement.releases:
            return self._charged
        if self._budget.ledger is None:
            raise LedgerError("a budget in memory charged other releases than were made: the result is not certified")
        from vfl.planning.certificate.verification import charges

        return charges(self._budget.ledger, self._budget.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run besides its job. All paths are absolute.

    budget : account that the run charges. site : opened site of the run. data : data without their owners' rules.
    arrangement : policies of the owners, and indexes of the alignment.
    log : releases of the run's earlier processes.
    counted : True to count the run in the process's total of private runs (vfl.launch.run.warnings).
    kept : record of the data for the run's log, from which another process opens the data again.
    """

    budget: Budget
    site: OpenSite
    data: Any
    arrangement: Arrangement
    log: Log = field(default_factory=Log)
    counted: bool = True
    kept: Mapping[str, Any] = field(default_factory=dict)


def settings_of(job: Job, data: Any, *, at: At, ledger: str | Path | Ledger | None) -> Settings:
    """Return the settings of a new run, from the arguments of `vfl.launch.train.train`. Refuses arguments that do not fit."""
    require_job(job)
    data, at, ledger, kept = of_environment(job, data, at, ledger)
    site, data, arrangement = site_and_data(job.partition.parties, data, at)
    require_fit(site, job)  # here, so that an error comes before any data are read
    budget = new_budget(job, ledger)
    if not (isinstance(site, Ray) and site.address) and job.privacy is not None:
        budget.find()  # here, so that a missing ledger is reported before processes start and records are aligned
        if job.dataset is not None and (least := cheapest(job)) is not None:
            budget.require_room(job, least)
    return Settings(budget=budget, site=site, data=data, arrangement=arrangement, kept=kept)


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
    if isinstance(settings.site, Organisations):
        return named_by_owners(job.partition, settings.data)
    here = isinstance(settings.site, InProcess)
    ask_owners(job, settings.data, settings.arrangement.policies, *others, here=here)
    return sources_of(job, settings.data, ids=True)


def events_of(job: Job, settings: Settings) -> Iterator[Event | Result]:
    """Execute a run. Yield its events as they happen, then its result, which is not signed yet."""
    job.library()  # here, so that a missing library is reported before any data are opened
    sources = asked_sources(job, settings)
    if job.id is not None and not settings.arrangement.required:
        check(job)  # before an alignment that may take hours
    witness = Witness(settings)
    with running(job, sources, settings) as events:
        for event in events:
            if settings.counted:
                count_run(job, event)
            witness.note(event)
            if isinstance(event, Outcome):
                yield witness.result(event)
            elif not isinstance(event, ReleasesComplete):
                yield event


@contextlib.contextmanager
def running(job: Job, sources: Mapping[str, Any], settings: Settings) -> Iterator[Iterator[RunEvent]]:
    """Yield the events of the site's module, which stops when the `with` block ends. sources : from `asked_sources`."""
    run, arrangement = module_of(settings.site).run, settings.arrangement
    events = run(job, sources, settings.budget, settings.log, site=settings.site, arrangement=arrangement)
    with contextlib.closing(events):
        yield events


def finish(
    job: Job, settings: Settings, *, watches: tuple[Callable[[Event], None], ...], signer: SigningKey | None
) -> Result:
    """Execute a run to its end and return its result, signed if there is a key.

    watches : functions, each of which is called with every event.
    """
    passes = Passes()
    with contextlib.closing(events_of(job, settings)) as events:  # type: ignore[type-var]
        for event in events:
            passes(event)
            if isinstance(event, Result):
                passes.ended(event)
                return event if signer is None else replace(event, certificate=event.certificate.signed(signer))
            for watch in watches:
                watch(event)
    raise AssertionError("a run ended without its outcome")
