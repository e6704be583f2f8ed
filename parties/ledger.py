"""A party ledger: an append-only, hash-chained log of the releases from the party's records, under the owner's cap.

A party ledger is a ledger like the coordinator's, in a file that only the owner can read. Before and after a run, each of the
two ledgers records the head (last hash) of the other one's chain. If either file was restored from a backup in between, the
next run detects this. A party without one counts the releases of a run on secret shares in memory
(`RunCount`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from parties.charges import Charges
from parties.consent import refuse_job
from vfl.base.types import Adjacency
from vfl.errors import BudgetError, BudgetExceeded, ConsentRefused, LedgerError, PrivacyError
from vfl.network.messages import LedgerHeads, Phase
from vfl.planning import cheapest
from vfl.planning import plan as make_plan
from vfl.privacy.events import Gaussian, ReleaseKey
from vfl.privacy.ledger import Accounting, DatasetBudget, FitBudget, SqliteLedger
from vfl.privacy.ledger.composition import accounting_for, capacity, cost, epsilon_of, plan_cost
from vfl.privacy.ledger.reservation import Preview
from vfl.privacy.spending import UNIT_BITS

if TYPE_CHECKING:
    from parties.consent import Policy
    from vfl.job import Job
    from vfl.network.messages import Notice
    from vfl.planning import Plan
    from vfl.privacy.events import Event
    from vfl.privacy.ledger import Head
    from vfl.privacy.ledger.dataset import DatasetReservation

OTHERS = ReleaseKey(-1)
"""Key under which a party's party ledger charges other participants' releases in a run. No own release has this key."""


_OVER = "more than that was released before, or is reserved"


def account_of(party: str) -> str:
    """Return the name of the account, in a party's party ledger, to which the party's releases are charged."""
    return f"party {party}"


def require_room(policy: Policy, party: str, *jobs: Job) -> None:
    """Raise ConsentRefused if the owner's budget cannot cover all these jobs, for any number of records. No data is read.

    Call it before records are aligned. The owner's party ledger reserves the plan of a run only later, once the number of
    records n is known. If a run of one of these jobs has already reserved budget, nothing is checked.
    """
    plans = [cheapest(job) for job in jobs if job.privacy is not None]
    releases = tuple(release for plan in plans if plan is not None for release in plan.releases)
    if not releases:
        return
    total, scope = policy.total, None
    if policy.ledger.exists():
        with _ledger_of(policy).read() as state:
            scope = state.scopes.get(account_of(party))
    digests = {job.digest for job in jobs}
    if scope is not None and any(run.account.job in digests for run in scope.open.values()):
        return
    way = (scope and scope.accounting) or accounting_for(releases)
    committed, cap = 0 if scope is None else scope.committed, capacity(way, total.epsilon, total.delta)
    asked, left = plan_cost(releases, way), max(cap - committed, 0)
    if committed > cap:
        refuse_job(jobs[0], party, "[total]", _OVER)
    if asked > left:
        spent, wanted, free = (epsilon_of(way, units, total.delta) for units in (committed, asked, left))
        preview = Preview(
            total.epsilon, total.delta, spent, wanted, min(total.epsilon, free), False, way.value, account_of(party)
        )
        refuse_job(jobs[0], party, "[total]", _full(preview, "at least "))


def _ledger_of(policy: Policy) -> SqliteLedger:
    return SqliteLedger(policy.ledger, allow_network_file_system=policy.allow_network_file_system, owner_only=True)


def _full(asked: Preview, bound: str = "") -> str:
    return (
        f"its ledger has ε = {asked.spent:.4g} of ε = {asked.cap:.4g} spent or reserved, the job asks for {bound}"
        f"ε = {asked.asked:.4g} and ε = {asked.left:.4g} is left, each at the policy's δ = {asked.delta:.3g}"
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of a run in a party ledger. epsilon, reserved : ε charged for the run, and ε of its reservation, at its δ.

    left : ε that remains, at the δ of the party ledger's cap.
    """

    epsilon: float
    reserved: float
    left: float


class PartyLedger(Charges):
    """Release log of one party. All jobs that it admits are together (ε, δ)-DP for this party's records (policy's [total]).

    A job counts in full, with the releases of other parties, because these depend on this party's records through the
    margins. The party ledger therefore works as follows:

    - Opening a run reserves its whole plan.
    - Every noised release of this party is on disk before its noise is drawn.
    - Closing a run charges the rest of the reservation as one Gaussian release with the same μ². Its σ is rounded to a double,
      which loses less than one part in 10¹⁵.
    - A run that never closes keeps its reservation.

    Secret sampling does not lower a charge, because the parties see which records are in a batch.

    The party ledger checks that the key of every release is new. The party checks that a release carries enough noise.
    """

    def __init__(self, policy: Policy, job: Job, party: str) -> None:
        super().__init__(job, party)
        self._policy = policy
        self._account = account_of(party)
        self._ledger = _ledger_of(policy)
        self._refuse = partial(refuse_job, job, party)
        self._reservation: DatasetReservation | None = None
        self._fresh = False
        self._run = ""

    def hear(self, notice: Notice, n_records: int) -> LedgerHeads:
        """Record a phase of the run, and return the heads (last hashes) of this ledger and of the coordinator's ledger.

        Raises ConsentRefused if the job exceeds the owner's caps or has another account. Raises LedgerError if the
        coordinator's ledger has noted a different party ledger.
        """
        if notice.account not in (self._job.dataset, f"run {notice.run}"):
            raise ConsentRefused(f"party {self._party!r} was sent a report about an account that its job does not name")
        other = f"ledger of {notice.account}"
        match notice.phase:
            case Phase.COMPARE:
                return self._compare(notice, other)
            case Phase.OPEN:
                self._open(notice.run, make_plan(self._job, n_records))
            case Phase.CLOSE:
                self._close(notice.run)
            case Phase.ABANDON:
                if self._reservation is not None and self._fresh and not self._made:
                    self._reservation.refund()
                self._reservation = None
                return LedgerHeads(self._head(), None)
        if notice.ledger is not None and self._ledger.noted(other) != notice.ledger:
            self._ledger.note(other, notice.ledger)
        return LedgerHeads(self._ledger.head(), notice.ledger)

    def costs(self) -> Costs | None:
        """Return the cost of the run that was opened last; None if no run was opened."""
        delta = None if self._plan is None else self._plan.problem.delta
        if not self._run or delta is None:
            return None
        with self._ledger.read() as state:
            scope, found = state.scopes[self._account], state.run(self._account, self._run).allowance
            return Costs(
                epsilon_of(found.accounting, found.spent, delta),
                epsilon_of(found.accounting, found.reserved, delta),
                min(scope.epsilon, epsilon_of(found.accounting, scope.free(found.accounting), scope.delta)),
            )

    def _compare(self, notice: Notice, other: str) -> LedgerHeads:
        """Compare the last hashes that the two ledgers noted. Nothing is written: an old copy must not replace a newer hash."""
        if not self._policy.ledger.exists():
            if notice.noted is not None:
                raise LedgerError(
                    f"the party ledger of {self._party!r} is gone, and the coordinator's ledger has noted its head: restore "
                    "the newest copy"
                )
            return LedgerHeads(None, None)
        if notice.noted is not None:
            try:
                self._ledger.require(notice.noted)
            except LedgerError as error:
                raise LedgerError(
                    f"the party ledger of {self._party!r} is not the one that the coordinator's ledger knows: {error}"
                ) from error
        return LedgerHeads(self._ledger.head(), self._ledger.noted(other))

    def _open(self, run: str, plan: Plan) -> None:
        self._plan, problem = plan, plan.problem
        privacy = self._job.privacy
        if privacy is None or problem.delta is None:
            raise PrivacyError("a party ledger has nothing to reserve for a job without privacy")
        self._policy.check_demand(self._job, self._party, privacy.epsilon, problem.delta)
        self._keep_cap()
        account = DatasetBudget(self._ledger, self._account, self._job.unit)
        with self._ledger.read() as state:
            known = run in state.dataset_of
        if known:
            self._fresh = False
            self._reservation = account.resume(run, job=self._job.digest)
        else:
            asked = account.preview(plan.releases)
            try:
                self._reservation = account.reserve(plan.releases, job=self._job.digest, run=run)
            except BudgetExceeded:
                self._refuse("[total]", _full(asked))
            self._fresh = True
        self._run = run
        self._made = set(self._reservation.charged())

    def _keep_cap(self) -> None:
        """Set the cap of the party ledger to the policy's [total]. A change of the cap is an entry in the log."""
        total = self._policy.total
        if self._policy.ledger.exists():
            with self._ledger.read() as state:
                scope = state.scopes.get(self._account)
                if scope is not None and (scope.epsilon, scope.delta) == (total.epsilon, total.delta):
                    return
        try:
            self._ledger.set_cap(self._account, epsilon=total.epsilon, delta=total.delta, change_delta=True)
        except LedgerError:
            raise
        except BudgetError:
            self._refuse("[total]", _OVER)

    def _close(self, run: str) -> None:
        if self._reservation is None or self._reservation.run != run:
            raise ConsentRefused(f"party {self._party!r} cannot close a run that its ledger did not open")
        # A process that was killed before `settle` may have charged the rest already, up to rounding.
        rest = self._rest(run) if OTHERS not in self._reservation.charged() else None
        if rest is not None:
            self._reservation.charge([(OTHERS, rest)])
        self._reservation.settle()
        self._reservation = None

    def _rest(self, run: str) -> Event | None:
        """Return one release whose cost is the rest of the run's reservation, rounded down; None if nothing is left."""
        with self._ledger.read() as state:
            found = state.run(self._account, run)
            if found.ended:
                return None
            way, left = found.allowance.accounting, found.allowance.reserved - found.allowance.spent
        # ρ = μ²/2 for a Gaussian.
        mu_squared = float(Fraction(left, 1 << UNIT_BITS)) * (2.0 if way is Accounting.ZCDP else 1.0)
        if mu_squared == 0.0:
            return None
        sigma = 1.0 / math.sqrt(mu_squared)
        while cost(event := Gaussian(Adjacency.REPLACE_ONE, 1.0, sigma, 1), way) > left:
            sigma = math.nextafter(sigma, math.inf)
        return event

    def _head(self) -> Head | None:
        return self._ledger.head() if self._policy.ledger.exists() else None


class RunCount(Charges):
    """Count, in memory, of a party's releases in one run, for a party without a party ledger on disk.

    Guarantee. During the life of the party's process, the party's releases in the run together cost at most the job's (ε, δ),
    for any requests of the coordinator. A new process counts from zero: only a party ledger covers restarts and several runs.

    n_records : n, the number of records, from which the plan follows.
    """

    def __init__(self, job: Job, party: str, n_records: int) -> None:
        super().__init__(job, party)
        plan = make_plan(job, n_records)
        if job.privacy is None or plan.problem.delta is None:
            raise PrivacyError("releases of a job without privacy have no cost to count")
        self._plan = plan
        whole = FitBudget(job.privacy.epsilon, plan.problem.delta)
        self._reservation = whole.reserve(plan.releases, job=job.digest, run="")
