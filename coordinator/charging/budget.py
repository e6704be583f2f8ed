"""Budget of a run, in a data set's ledger, in the run's own ledger, or in memory for a single fit; and the party ledgers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vfl.errors import LedgerError, PrivacyError, SpecificationError
from vfl.job.flags import flags_of, voids
from vfl.network.messages import Notice, Phase
from vfl.privacy.ledger import DatasetBudget, FitBudget, Head, SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from coordinator.secure import Transport
    from vfl.job import Job
    from vfl.network.messages import LedgerHeads
    from vfl.planning import Plan
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.ledger import Reservation, Statement


@dataclass(frozen=True, slots=True)
class Reserved:
    """Event: the ledger has reserved the whole plan.

    n_records : number of records that the plan assumes.
    head : head (last hash) of the ledger's chain after the reservation; None for a budget in memory.
    flags : flags that the storage of the run adds to the certificate.
    """

    n_records: int
    head: Head | None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Earlier:
    """Charges of earlier processes of a run.

    attempts : first attempt number that this process may use, above all charged ones: a charge of a pass names only the first
        release of the pass, so any round may have been answered under any charged attempt.
    charges : {round: number of charges}.
    """

    attempts: int = 0
    charges: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """Budget of a run: `reserve` reserves the whole plan before any computation on data. Releases are then charged to it.

    run : id of the run.
    ledger : path of the ledger; None to keep the budget of this fit in memory.
    resumed : True if an earlier process of this run may have reserved budget and charged releases.
    head : head of the ledger's chain when this run reserved its plan; LedgerError if the chain of the ledger lacks this head.
    allow_network_file_system : True to accept a ledger on a network file system, where a charge may be lost.
    sealed : True for a trial (training of one candidate) of a tuning run that was charged as a whole before. The trial's
        releases are charged to a ledger in memory, capped at the trial's budget, and the record of a round contains no released
        value.
    counts : True for a run that only counts records. Such a run ends after planning: it reserves and computes nothing.
    """

    run: str
    ledger: str | None = None
    resumed: bool = False
    head: Head | None = None
    allow_network_file_system: bool = False
    sealed: bool = False
    counts: bool = False

    def open(self) -> SqliteLedger | None:
        """Return the ledger of the run; None for a budget in memory."""
        if self.ledger is None:
            return None
        return SqliteLedger(self.ledger, allow_network_file_system=self.allow_network_file_system)

    def find(self) -> None:
        """Raise LedgerError if the ledger does not exist. Call this only in a process that shares the coordinator's disk."""
        ledger = self.open()
        if ledger is not None and not ledger.path.exists():
            ledger.show()  # raises a LedgerError that names the command to create the ledger

    def require_room(self, job: Job, plan: Plan) -> None:
        """Raise BudgetExceeded if the data set has too little budget left for a job's cheapest plan, for any number of records.

        Call this before records are aligned, in a process that may call `find`. The run reserves its own plan later, once n is
        known.
        """
        ledger = self.open()
        if ledger is None or job.dataset is None or self.resumed or not ledger.path.exists():
            return
        DatasetBudget(ledger, job.dataset).require_room(plan.releases)

    def check(self, job: Job) -> None:
        """Raise an error if a job names a data set without a ledger, or a data set but gives no guarantee."""
        if job.dataset is not None and self.ledger is None and job.privacy is not None and not self.sealed:
            raise SpecificationError(
                f"the job names data set {job.dataset!r} but no ledger: name the file in which its budget is kept "
                "(ledger=..., or --set ledger.path=FILE), or leave dataset out to cover this one fit only"
            )

        void = [flag for flag in flags_of(job) if voids((flag,))]
        if job.dataset is not None and job.privacy is not None and void:
            raise PrivacyError(
                f"the ledger of data set {job.dataset!r} gives a guarantee for all jobs on it, but the certificate of this "
                f"job would say {void[0]}. Declare what is missing, or leave dataset out for an experiment"
            )

    def reserve(self, plan: Plan) -> Reservation | None:
        """Reserve the whole plan, and return the reservation; None without privacy. Raises BudgetError or LedgerError."""
        problem, job = plan.problem, plan.job
        if job.privacy is None or problem.delta is None:
            return None
        epsilon = job.privacy.epsilon
        ledger = self.open()
        if ledger is None:
            return FitBudget(epsilon, problem.delta).reserve(plan.releases, job=job.digest, run=self.run)
        if plan.committed:
            raise PrivacyError(
                f"{plan.solver.name} with sampling='poisson' cannot be charged to a ledger, which adds up "
                "releases one by one: the guarantee of secret sampling holds for a whole plan. Leave out the ledger, the data "
                "set and the output folder, or use sampling='disjoint'"
            )
        account = DatasetBudget(ledger, self.account(job), job.unit)
        if self.resumed and (self.head is not None or self._status(ledger)):
            return account.resume(self.run, job=job.digest, head=self.head)
        if job.dataset is None:
            ledger.set_cap(self.account(job), epsilon=epsilon, delta=problem.delta)
        return account.reserve(plan.releases, job=job.digest, run=self.run)

    def require_charged(self, reservation: Reservation, made: Sequence[ReleaseKey]) -> None:
        """Raise LedgerError if the ledger lacks the charge of a release in the run's log. The ledger is then an older copy.

        The head that was noted at the reservation cannot reveal this if the copy was made after the reservation. A settled
        ledger has all charges.

        made : keys of the charged releases in the log.
        """
        ledger = self.open()
        if ledger is None or not made or self._status(ledger) != "open":
            return
        if not reservation.charged() >= set(made):
            raise LedgerError(
                "the ledger lacks a release that the log of this run holds, so it is an older copy: restore the newest one"
            )

    def current_head(self) -> Head | None:
        """Return the head (last hash) of the ledger's chain; None for a budget in memory."""
        ledger = self.open()
        return ledger.head() if ledger is not None else None

    def settle(self, job: Job, reservation: Reservation, *, stopped_early: bool) -> Statement:
        """Close the reservation, and return the statement for the certificate.

        stopped_early : True if released values could decide how many planned releases were made. The statement then gives the ε
            of the whole reservation.
        """
        statement = reservation.settle(stopped_early=stopped_early)
        return statement if job.dataset is not None else replace(statement, scope=FitBudget.scope)

    def earlier(self, job: Job, reservation: Reservation | None) -> Earlier:
        """Return the charges that earlier processes of the run made, including those of lost attempts.

        With seeded noise there are none, since repeating a release makes no new release.
        """
        if not self.resumed or reservation is None or (job.privacy is not None and job.privacy.noise is not None):
            return Earlier()
        made = reservation.charged()
        return Earlier(max((key.attempt + 1 for key in made), default=0), Counter(key.round for key in made))

    def account(self, job: Job) -> str:
        """Return the name of the ledger account to which the run is charged."""
        return job.dataset if job.dataset is not None and not self.sealed else f"run {self.run}"

    def _status(self, ledger: SqliteLedger) -> str:
        """Return the status of the run's reservation; '' if no earlier process has reserved."""
        if not ledger.path.exists():
            return ""
        return next((run.status for balance in ledger.show() for run in balance.runs if run.run == self.run), "")


class PartyLedgers:
    """Reports start and end of a run to the parties that keep a party ledger, and compares it with the ledger.

    A party ledger and the ledger note each other's last hash (head). A file that lacks the head noted in the other file is
    detected as an old copy. A file that lacks entries after the noted head is not detected.

    parties : names of the parties that keep a party ledger.
    ledger : the run's ledger; None for a budget in memory, which has no chain and no notes.
    account : the ledger account to which the run is charged.
    """

    def __init__(
        self, transport: Transport, parties: Iterable[str], *, run: str, account: str, ledger: SqliteLedger | None
    ) -> None:
        self._transport = transport
        self._parties = tuple(parties)
        self._run = run
        self._account = account
        self._ledger = ledger
        self._closed: dict[str, Head] = {}

    def compare(self) -> None:
        """Raise LedgerError if a party's party ledger or the ledger lacks the last hash that the other file noted.

        Call this before any write to a party ledger or to the ledger, since a write would overwrite the noted head.
        """
        ledger = self._ledger if self._ledger is not None and self._ledger.path.exists() else None
        noted = {party: ledger.noted(self._name(party)) if ledger else None for party in self._parties}
        for party, heads in self._told(Phase.COMPARE, noted).items():
            if heads.noted is None:
                continue
            if ledger is None:
                raise LedgerError(
                    f"the ledger of {self._account!r} is missing, and that of party {party!r} has a record of it: restore "
                    "the newest copy"
                )
            try:
                ledger.require(heads.noted)
            except LedgerError as error:
                raise LedgerError(
                    f"the ledger is not the one that the party ledger of {party!r} knows for {self._account!r}: {error}"
                ) from error

    def open(self) -> None:
        """Make every party's party ledger reserve the plan. Raises ConsentRefused if a log refuses the plan."""
        self._exchange(Phase.OPEN)

    def reopen(self, party: str) -> None:
        """Announce the run again to the party ledger of a restarted party, if this party keeps one."""
        if party in self._parties:
            again = PartyLedgers(self._transport, [party], run=self._run, account=self._account, ledger=self._ledger)
            again.compare()
            again.open()

    def abandon(self) -> None:
        """Withdraw the run from every party ledger that has no release of the run yet."""
        self._told(Phase.ABANDON)

    def close(self, without: Collection[str] = ()) -> dict[str, Head]:
        """Close the run in every party ledger. Return {party: last hash of its log}. A repeated call skips closed logs.

        without : parties that were given up. Their ledgers keep the reservation.
        """
        for party in self._parties:
            if party not in without and party not in self._closed:
                self._closed.update(self._exchange(Phase.CLOSE, [party]))
        return dict(self._closed)

    def _exchange(self, phase: Phase, parties: Collection[str] | None = None) -> dict[str, Head]:
        told = self._told(phase, parties=parties)
        heads = {party: heads.own for party, heads in told.items() if heads.own is not None}
        if self._ledger is not None:
            for party, head in heads.items():
                self._ledger.note(self._name(party), head)
        return heads

    def _told(
        self,
        phase: Phase,
        noted: Mapping[str, Head | None] | None = None,
        *,
        parties: Collection[str] | None = None,
    ) -> Mapping[str, LedgerHeads]:
        asked = self._parties if parties is None else parties
        if not asked:
            return {}
        own = self._ledger.head() if self._ledger is not None and phase in (Phase.OPEN, Phase.CLOSE) else None
        return self._transport.hear(
            {party: Notice(phase, self._run, self._account, own, noted[party] if noted else None) for party in asked}
        )

    def _name(self, party: str) -> str:
        # The account is part of the name, since a party may keep one party ledger per data set of a ledger.
        return f"party ledger of {party} for {self._account}"
