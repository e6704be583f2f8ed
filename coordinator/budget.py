"""Where a run's budget is kept: in a named data set's ledger, in a ledger of the run's own, or in memory for one fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vfl.errors import SpecificationError
from vfl.privacy.events import ReleaseKey
from vfl.privacy.ledger import ChargeAhead, FitBook, Head, SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.privacy.events import Event
    from vfl.privacy.ledger import Reservation, Statement

CHARGED_AT_ONCE = 64
"""Releases in one durable transaction; a crash over-counts by fewer than that, and never under-counts."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Tells whoever watches that the whole plan was set aside.

    n_records : n, on which the plan rests.
    head : the ledger's chain after reserving, None for a budget in memory.
    """

    n_records: int
    head: Head | None


@dataclass(frozen=True, slots=True)
class Budget:
    """How a run pays: `reserve` before anything is computed on data, then charges through what it returns.

    run : id of the run.
    ledger : path of the ledger, None keeps the one fit's budget in memory.
    resumed : whether an earlier process of this run may have reserved and charged.
    head : the chain's head that this process noted after reserving; a ledger that does not go through it is refused.
    """

    run: str
    ledger: str | None = None
    resumed: bool = False
    head: Head | None = None

    def check(self, job: Job) -> None:
        """Refuse a job that names a data set without the ledger in which that is kept."""
        if job.dataset is not None and self.ledger is None and job.privacy is not None:
            raise SpecificationError(
                f"the job names data set {job.dataset!r} but no ledger: name the file in which its budget is kept "
                "(ledger=..., or --ledger), or leave dataset out to cover this one fit only"
            )

    def reserve(self, plan: Plan) -> Reservation | None:
        """Set the whole plan aside; None without privacy. Raises BudgetError or LedgerError when it is refused."""
        problem, job = plan.problem, plan.job
        if problem.epsilon is None or problem.delta is None:
            return None
        if self.ledger is None:
            return FitBook(problem.epsilon, problem.delta).reserve(plan.releases, job=job.digest, run=self.run)
        ledger = SqliteLedger(self.ledger)
        book = ledger.book(self.account(job))
        if self.resumed and (self.head is not None or self._known(ledger)):
            return book.resume(self.run, job=job.digest, head=self.head)
        if job.dataset is None:
            ledger.set_cap(self.account(job), epsilon=problem.epsilon, delta=problem.delta)
        reservation = book.reserve(plan.releases, job=job.digest, run=self.run)
        if plan.solver.adaptive:
            return reservation
        return ChargeAhead(reservation, upcoming(plan), batch=CHARGED_AT_ONCE)

    def current_head(self) -> Head | None:
        """Return where the ledger's chain stands."""
        return SqliteLedger(self.ledger).head() if self.ledger is not None else None

    def settle(self, job: Job, reservation: Reservation) -> Statement:
        """Close the reservation and return what may be said of the run."""
        statement = reservation.settle()
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

    def _known(self, ledger: SqliteLedger) -> bool:
        """Whether the earlier process got as far as reserving."""
        path = Path(self.ledger or "")
        return path.exists() and any(run.run == self.run for balance in ledger.show() for run in balance.runs)


def upcoming(plan: Plan) -> Iterator[tuple[ReleaseKey, Event]]:
    """Yield what a schedule that is not adaptive will charge, in order, by running it on releases of zero."""
    import numpy as np

    schedule = plan.solver.schedule(plan.problem)
    released = None
    number = 0
    while True:
        try:
            query = schedule.send(released) if released is not None else next(schedule)
        except StopIteration:
            return
        for part, event in enumerate(query.events()):
            if event is not None:
                yield ReleaseKey(number, part), event
        released = tuple(np.zeros(size) for size in query.sizes())
        number += 1
