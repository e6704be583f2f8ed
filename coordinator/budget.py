"""Where a run's budget is kept: in a named data set's ledger, in a ledger of the run's own, or in memory for one fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vfl.errors import LedgerError, PrivacyError, SpecificationError
from vfl.job.flags import flags_of
from vfl.privacy.ledger import DatasetBook, FitBook, Head, SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.ledger import Reservation, Statement


@dataclass(frozen=True, slots=True)
class Reserved:
    """Tells whoever watches that the whole plan was set aside.

    n_records : n, on which the plan rests.
    head : the ledger's chain after reserving, None for a budget in memory.
    flags : what the certificate has to say of the place where the run takes place.
    """

    n_records: int
    head: Head | None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """How a run pays: `reserve` before anything is computed on data, then charges through what it returns.

    run : id of the run.
    ledger : path of the ledger, None keeps the one fit's budget in memory.
    resumed : whether an earlier process of this run may have reserved and charged.
    head : the chain's head that this process noted after reserving; a ledger that does not go through it is refused.
    allow_network_file_system : True accepts a ledger on a network file system, where a charge may be lost.
    """

    run: str
    ledger: str | None = None
    resumed: bool = False
    head: Head | None = None
    allow_network_file_system: bool = False

    def open(self) -> SqliteLedger | None:
        """Return the run's ledger, None for a budget in memory."""
        if self.ledger is None:
            return None
        return SqliteLedger(self.ledger, allow_network_file_system=self.allow_network_file_system)

    def check(self, job: Job) -> None:
        """Refuse a job whose data set has no ledger, and one without a guarantee in a ledger that vouches for others."""
        if job.dataset is not None and self.ledger is None and job.privacy is not None:
            raise SpecificationError(
                f"the job names data set {job.dataset!r} but no ledger: name the file in which its budget is kept "
                "(ledger=..., or --ledger), or leave dataset out to cover this one fit only"
            )

        if job.dataset is not None and job.privacy is not None and (flags := flags_of(job)):
            raise PrivacyError(
                f"data set {job.dataset!r} is kept in a ledger whose certificates speak for all jobs on it, and the "
                f"certificate of this job would say {flags[0]}. Declare what is missing, or leave dataset out to try things"
            )

    def reserve(self, plan: Plan) -> Reservation | None:
        """Set the whole plan aside; None without privacy. Raises BudgetError or LedgerError when it is refused."""
        problem, job = plan.problem, plan.job
        if job.privacy is None or problem.delta is None:
            return None
        epsilon = job.privacy.epsilon
        ledger = self.open()
        if ledger is None:
            return FitBook(epsilon, problem.delta).reserve(plan.releases, job=job.digest, run=self.run)
        if plan.committed:
            raise PrivacyError(
                f"{plan.solver.name} with sampling='poisson': a ledger adds up releases one by one and cannot vouch for "
                "secret sampling, which is accounted for a plan committed to beforehand, covered for this one fit only; "
                "leave out the ledger, the data set and the output folder, or use sampling='disjoint'"
            )
        book = DatasetBook(ledger, self.account(job))
        if self.resumed and (self.head is not None or self._status(ledger)):
            return book.resume(self.run, job=job.digest, head=self.head)
        if job.dataset is None:
            ledger.set_cap(self.account(job), epsilon=epsilon, delta=problem.delta)
        return book.reserve(plan.releases, job=job.digest, run=self.run)

    def require_charged(self, reservation: Reservation, made: Sequence[ReleaseKey]) -> None:
        """Refuse a ledger that lacks a charge of what an earlier process released: it is an older copy.

        The head noted after reserving cannot tell copies that were taken later. Once settled, all charges are in.

        made : the keys under which the log says that releases were charged.
        """
        ledger = self.open()
        if ledger is None or not made or self._status(ledger) != "open":
            return
        if not reservation.charged() >= set(made):
            raise LedgerError(
                "the ledger does not know of a release that the log of this run holds: it is an older copy than the run "
                "was charged to; restore the newest one"
            )

    def current_head(self) -> Head | None:
        """Return where the ledger's chain stands."""
        ledger = self.open()
        return ledger.head() if ledger is not None else None

    def settle(self, job: Job, reservation: Reservation, *, stopped_early: bool) -> Statement:
        """Close the reservation and return what may be said of the run.

        stopped_early : whether released values could decide how much of the plan was made; then the cap is stated.
        """
        statement = reservation.settle(stopped_early=stopped_early)
        return statement if job.dataset is not None else replace(statement, scope=FitBook.scope)

    def attempts(self, job: Job, reservation: Reservation | None) -> Callable[[int], int]:
        """Return the number of the attempt at each round of this process.

        A charged release of an earlier process may have been made and seen, so repeating it is another release, with
        noise and a charge of its own. Seeded noise repeats itself to the bit: the same release under the same key.
        """
        if not self.resumed or reservation is None or (job.privacy is not None and job.privacy.noise is not None):
            return lambda _: 0
        following: dict[int, int] = {}
        for key in reservation.charged():
            following[key.round] = max(following.get(key.round, 0), key.attempt + 1)
        return lambda number: following.get(number, 0)

    def account(self, job: Job) -> str:
        """Return the name of the ledger's account that the run is charged to."""
        return job.dataset if job.dataset is not None else f"run {self.run}"

    def _status(self, ledger: SqliteLedger) -> str:
        """Return how the run's reservation stands; '' when the earlier process did not get as far as reserving."""
        if not ledger.path.exists():
            return ""
        return next((run.status for balance in ledger.show() for run in balance.runs if run.run == self.run), "")
