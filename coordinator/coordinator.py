"""Coordinator of one run: it greets the parties, reserves the budget, and runs the schedule of queries over the parties."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from coordinator.charging.budget import Budget, PartyLedgers, Reserved
from coordinator.charging.charger import Charger
from coordinator.executor import Executor
from coordinator.rounds import Log, Lost, Recovery, ReleasesComplete, Round, rounds
from coordinator.states.iterate import Iterate
from coordinator.states.shards import LinearPredictorShards, whole
from coordinator.transport import MessageTransport, require_version
from vfl.errors import DataError, PartyLost, SpecificationError, VersionMismatch, VflError
from vfl.job.flags import exact_queries
from vfl.job.site import Faults
from vfl.planning import Plan
from vfl.planning import plan as make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coordinator.executor import State
    from coordinator.secure import Transport
    from vfl.base.holdout import Split, Subsample
    from vfl.base.problem import Targets
    from vfl.base.types import Vector
    from vfl.job import Job
    from vfl.measures.estimates import Findings
    from vfl.network.messages import Greeting
    from vfl.privacy.ledger import Head, Reservation, Statement

    Event: TypeAlias = "Plan | Reserved | Round | Lost | ReleasesComplete | Outcome"


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Outcome of a finished run.

    w : (p,) the model for the scaled features.
    statement : the budget's statement about the run; None without privacy.
    findings : results of the job's evaluation queries, by name.
    party_ledgers : {party: last hash of its ledger}, for parties that keep one.
    left : names of the parties that were given up during the run.
    knots : {column: knots}, for curves whose knots the run found.
    fits : (p,) one model per subsample; w is their mean. () for a run without subsamples.
    """

    plan: Plan
    w: Vector
    statement: Statement | None
    findings: Mapping[str, Findings] = field(default_factory=dict)
    party_ledgers: Mapping[str, Head] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    knots: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    fits: tuple[Vector, ...] = ()


SKIP = (
    "trust='secure' counts on noise from every party and cannot continue after a party is lost: set [faults] on_party_lost "
    "to 'wait' or 'abort'"
)


def agreed_records(greetings: Mapping[str, Greeting], library: str = "") -> int:
    """Return n if all parties run this version and have the same records. Errors name the parties that differ.

    library : library of homomorphic encryption that the certificate will state; '' for none.
    """
    for party, greeting in greetings.items():
        require_version(party, greeting.version)
        if greeting.library != library:
            raise VersionMismatch(
                f"party {party!r} encrypts with {greeting.library or 'nothing'}, and the certificate would state "
                f"{library or 'nothing'}: install one version everywhere"
            )
    (first, n_records), *others = ((party, greeting.n_records) for party, greeting in greetings.items())
    for other, count in others:
        if count != n_records:
            raise DataError(
                f"parties {first!r} and {other!r} hold different numbers of records: "
                "every party needs the same records in the same order, or name the id column in the job (id=...) to "
                "align them"
            )
    hashes = {greeting.alignment for greeting in greetings.values()}
    if len(hashes) > 1:
        raise DataError(
            "the parties' records are aligned differently (the hashes of their ids differ): align again, with vfl align JOB"
        )
    return n_records


def _require_skippable(plan: Plan) -> None:
    if not plan.solver.goes_on_without:
        raise SpecificationError(
            f"{plan.solver.name} cannot continue without a party: set [faults] on_party_lost to 'wait' or 'abort'"
        )
    if plan.sharing is not None:
        raise SpecificationError(SKIP)
    if plan.subsamples is not None:
        raise SpecificationError(
            "standard errors from subsamples compare fits of all parties' columns: set [faults] on_party_lost to 'wait' or "
            "'abort'"
        )


def _welcome(began: Mapping[str, Greeting], ledgers: PartyLedgers, party: str, greeting: Greeting) -> None:
    """Reopen a returned party's party ledger. Raises DataError if the party has different records than before.

    began : {party: the party's greeting at the start of the run}.
    """
    agreed_records({party: greeting}, began[party].library if party in began else "")
    if party not in began:  # the dealer, which has no records
        return
    before = began[party]
    if (greeting.n_records, greeting.alignment) != (before.n_records, before.alignment):
        raise DataError(f"party {party!r} came back with different records: start a new run")
    ledgers.reopen(party)


def _reserved(budget: Budget, plan: Plan, ledgers: PartyLedgers, log: Log) -> Reservation | None:
    """Reserve the plan in the ledger, then in the party ledgers. If one refuses, withdraw it everywhere."""
    ledgers.compare()
    reservation = budget.reserve(plan)
    if reservation is not None:
        budget.require_charged(reservation, [key for keys in log.charged for key in keys])
    try:
        ledgers.open()
    except VflError:
        ledgers.abandon()
        if reservation is not None and not budget.resumed:
            reservation.refund()
        raise
    return reservation


def _closed(ledgers: PartyLedgers, recovery: Recovery, left: tuple[str, ...]) -> dict[str, Head]:
    """Close the run in every party ledger. If a party was lost meanwhile, wait for it once more."""
    losses = 0
    while True:
        try:
            return ledgers.close(without=left)
        except PartyLost as lost:
            losses += 1
            if not recovery.restored(
                lost, losses
            ):  # the run has made all releases, so ignore the loss; only the lost party's ledger stays open
                return ledgers.close(without=[*left, lost.party])


class Coordinator:
    """Coordinator of one job, with margins and the reservation, but without columns. It cannot import the parties' code.

    expand : True to send every step of a `Descend` query (one with several steps) as a query of its own.
    faults : policy on lost parties.
    margins : function of (labels, split, n, targets) that returns the margins.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        expand: bool = False,
        faults: Faults | None = None,
        margins: Callable[[Any, Split | Subsample | None, int, Targets], State] = whole,
    ) -> None:
        self._transport = transport
        self._margins = margins
        self._expand = expand
        self._faults = faults or Faults()

    def stream(self, job: Job, budget: Budget | None = None, log: Log | None = None) -> Iterator[Event]:
        """Yield the plan, the reservation, a record per query, and the outcome; the plan alone for a run that only counts.

        The whole plan is reserved before any party computes on its columns. Every release is charged before it is made.

        budget : storage of the budget; None for a budget in memory that covers this fit only.
        log : releases of an earlier process of this run.
        """
        budget, log = budget or Budget(uuid.uuid4().hex), log or Log()
        budget.check(job)
        greetings = self._transport.greet()
        plan = make_plan(job, agreed_records(greetings, job.library()))
        if log.n_records not in (None, plan.n_records):
            raise DataError("the parties hold different records from those at the start of this run: start a new run")
        if budget.counts:
            yield plan
            return
        problem = plan.problem
        sealed = budget.sealed or (plan.solver.sealed and problem.private)
        if sealed:  # the log of a sealed run has no rounds, so the run starts again
            log = replace(log, released=(), left={}, products=())
        if self._faults.on_party_lost == "skip":
            _require_skippable(plan)
        keepers = [party for party, greeting in greetings.items() if greeting.keeps_ledger]
        ledgers = PartyLedgers(
            self._transport, keepers, run=budget.run, account=budget.account(job), ledger=budget.open()
        )
        reservation = _reserved(budget, plan, ledgers, log)
        yield plan
        yield Reserved(plan.n_records, budget.current_head() if reservation else None)
        transport, margins = self._state(plan, log)
        label, seconds = job.partition.label_party, self._faults.wait_timeout_s
        shards = margins if isinstance(margins, LinearPredictorShards) else None
        subsamples = plan.subsamples
        charger = Charger(
            reservation,
            noise=job.noise_source(),
            exact=exact_queries(job),
            split=plan.split,
            earlier=budget.earlier(job, reservation),
            held=bool(log.products),
        )
        execute = Executor(
            transport,
            margins,
            charger,
            expand=self._expand or plan.sharing is not None,
            together=plan.sharing is not None,
            turn=None if subsamples is None else lambda k: self._turned(plan, subsamples[k], shards),
            reload=None if shards is None else lambda: shards.reload(lambda: self._transport.labels(label), seconds),
        )
        recovery = Recovery(transport, self._faults, partial(_welcome, greetings, ledgers), keep=label)
        trained, lasted = yield from rounds(plan.schedule(), execute, log, sealed=sealed, recovery=recovery)
        left = (*log.left.values(), *recovery.given_up)
        yield ReleasesComplete()
        outcome = Outcome(plan, trained.w, None, trained.findings, left=left, knots=trained.knots, fits=trained.fits)
        if reservation is None:
            yield outcome
            return
        # A privacy filter bounds ε only by the whole reservation: state all of it if released values decided when to stop.
        stopped_early = plan.solver.adaptive or not lasted or bool(left)
        statement = budget.settle(job, reservation, stopped_early=stopped_early)
        yield replace(outcome, statement=statement, party_ledgers=_closed(ledgers, recovery, left))

    def _state(self, plan: Plan, log: Log) -> tuple[Transport, State]:
        """Return the run's transport and state.

        The state is margins and labels; under trust='secure', only the public model.
        """
        label = plan.job.partition.label_party
        if plan.sharing is None:
            return self._transport, self._of_margins(plan, plan.division)
        if not isinstance(self._transport, MessageTransport):
            raise SpecificationError(
                "trust='secure' does not run over this transport: use a site that carries its requests"
            )
        # Imported here, so that the coordinator starts faster in other runs.
        from coordinator.secure import PairTransport, SecureTransport

        iterate = Iterate(plan.problem.layout, plan.problem.n_records, label)
        made = SecureTransport if plan.sharing.roles.dealt else PairTransport
        return made(self._transport, iterate, plan, log.products), iterate

    def _of_margins(self, plan: Plan, split: Split | Subsample | None) -> State:
        job = plan.job
        labels = self._transport.labels(job.partition.label_party)
        return self._margins(labels, split, plan.n_records, job.targets)

    def _turned(self, plan: Plan, subsample: Subsample, shards: LinearPredictorShards | None) -> State:
        """Return the margins of a subsample at the start of its training. Shards load these margins in place."""
        if shards is None:
            return self._of_margins(plan, subsample)
        labels: Any = self._transport.labels(plan.job.partition.label_party)
        shards.turn(labels, subsample)
        return shards
