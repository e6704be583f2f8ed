"""The book: what the executor asks before anything is released. `FitBook` is the one that lives as long as one fit.

A book never under-counts: what `charge` could not record must not be released.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vfl.errors import BudgetError, BudgetExceeded, PrivacyError
from vfl.privacy.events import PoissonSubsampledGaussian, bare
from vfl.privacy.ledger.account import Account, Allowance, Commitment
from vfl.privacy.ledger.composition import Accounting, accounting_for, capacity, epsilon_of, plan_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger.composition import Plan
    from vfl.types import Adjacency


@dataclass(frozen=True, slots=True)
class Preview:
    """What a book would say to a plan. All ε are at the book's δ, rounded up.

    cap, delta : the book's (ε, δ).
    spent : ε of all charges so far and of reservations still open.
    asked : ε of the plan alone.
    left : ε of the largest plan that would still fit. ε does not add up; the book adds μ² or ρ.
    fits : whether `reserve` would grant the plan now.
    accounting : "gdp" (exact for Gaussian releases), "zcdp" (mixes) or "pld" (a plan committed to beforehand).
    scope : what the guarantee covers, in words.
    """

    cap: float
    delta: float
    spent: float
    asked: float
    left: float
    fits: bool
    accounting: str
    scope: str


@dataclass(frozen=True, slots=True)
class Statement:
    """What a certificate may say of a settled run.

    epsilon : the ε to state at `delta`: of the charges, or of the whole reservation after a data-dependent stop,
        since a filter is no odometer.
    spent, reserved : ε of the charges; ε of the reservation.
    releases : number of charges. stopped_early : whether the data decided when to stop.
    scope : what the guarantee covers, in words. entries, head : ledger entries and chain head after settling; 0 and ''
        for a book that is not kept.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    accounting: str
    spent: float
    reserved: float
    releases: int
    stopped_early: bool
    scope: str
    entries: int = 0
    head: str = ""


@runtime_checkable
class Reservation(Protocol):
    """A granted plan. It may be handed to another process, where it continues; two at a time may not use it."""

    @property
    def run(self) -> str:
        """The run that it was granted to."""
        ...

    def charge(self, items: Sequence[tuple[ReleaseKey, Event]]) -> None:
        """Record charges, all or none, durably before returning. Only then may the noise be drawn.

        A key charged before with the same event is a no-op; a repeated *release* needs a new attempt.
        Raises BudgetExceeded and releases nothing when the sum would exceed the reservation; LedgerError when a key was
        charged with another event, or when the book cannot be written.
        """
        ...

    def stray(self) -> None:
        """Learn that what comes next is not what was planned: nothing is charged before it is asked for any more."""
        ...

    def charged(self) -> frozenset[ReleaseKey]:
        """Return the keys charged so far; after a crash each of them may have been released."""
        ...

    def settle(self, *, stopped_early: bool = False) -> Statement:
        """Close: what was not charged is free again. `stopped_early` says that the data decided when.

        Settled before, it repeats that statement.
        """
        ...

    def refund(self) -> None:
        """Close a reservation that was never charged; raises BudgetError when it was."""
        ...


@runtime_checkable
class Book(Protocol):
    """Grants plans under an (ε, δ) cap."""

    def preview(self, plan: Plan) -> Preview:
        """Say what the plan would cost. Nothing is recorded."""
        ...

    def reserve(self, plan: Plan, *, job: str, run: str) -> Reservation:
        """Set the whole plan aside, before data are touched.

        plan : events with counts. job : digest of the job. run : its id, unique in the book.
        Raises BudgetExceeded (spent, asked, left, remedy) when it does not fit.
        """
        ...


def adjacency_of(plan: Plan) -> Adjacency:
    """Return the one adjacency of a plan; an empty plan, a bad count or two adjacencies raise PrivacyError."""
    if not plan:
        raise PrivacyError("a plan without any release has nothing to reserve: train with privacy=None, or plan one")
    for _, count in plan:
        if not isinstance(count, int) or count < 1:
            raise PrivacyError(f"a plan counts each event at least once, not {count!r} times")
    adjacencies = {event.adjacency for event, _ in plan}
    if len(adjacencies) > 1:
        raise PrivacyError(
            f"a plan mixes adjacencies ({', '.join(sorted(adjacencies))}); their ε do not add up: restate all for one"
        )
    return adjacencies.pop()


class FitBook:
    """A book in memory for one fit: its releases together are (ε, δ)-DP; other fits on the same data are not known.

    It grants one reservation. Where the plan samples records secretly, the plan is committed to and accounted with PLD;
    otherwise releases may be chosen adaptively within it.

    epsilon > 0, delta in (0, 1) : the cap.
    """

    scope = "covered for this one fit only: no ledger is named, so other fits on the same data are not counted"

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = epsilon
        self.delta = delta
        capacity(Accounting.GDP, epsilon, delta)  # refuses what is not an (ε, δ), with the reason
        self._reservation: _FitReservation | None = None

    def preview(self, plan: Plan) -> Preview:
        """Say what the plan would cost."""
        adjacency_of(plan)
        if self._reservation is not None:
            held = self._reservation
            return Preview(
                self.epsilon, self.delta, held.reserved, self._asked(plan)[1], 0.0, False, held.accounting, self.scope
            )
        accounting, asked, fits = self._asked(plan)
        return Preview(self.epsilon, self.delta, 0.0, asked, self.epsilon, fits, accounting, self.scope)

    def reserve(self, plan: Plan, *, job: str, run: str) -> Reservation:
        """Set the whole plan aside; a second time raises BudgetError."""
        adjacency = adjacency_of(plan)
        if self._reservation is not None:
            raise BudgetError(
                "this book covers one fit only and it was reserved before: use a new book, or name a "
                "ledger that all fits share"
            )
        accounting, asked, fits = self._asked(plan)
        if not fits:
            raise BudgetExceeded(
                f"this fit has spent ε = 0 of its ε = {self.epsilon:.4g} at δ = {self.delta:.3g}; the plan asks for "
                f"ε = {asked:.4g} and ε = {self.epsilon:.4g} is left: raise epsilon, lower passes, or raise "
                "noise_multiplier"
            )
        allowance: Allowance | Commitment
        if accounting == "pld":
            allowance = Commitment(plan)
        else:
            way = Accounting(accounting)
            allowance = Allowance(way, plan_cost(plan, way), self.delta)
        self._reservation = _FitReservation(Account(job, run, allowance), adjacency, accounting, asked, self.delta)
        return self._reservation

    def _asked(self, plan: Plan) -> tuple[str, float, bool]:
        if any(type(bare(event)) is PoissonSubsampledGaussian for event, _ in plan):
            asked = _committed_epsilon(tuple(plan), self.delta)
            return "pld", asked, asked <= self.epsilon
        way = accounting_for(plan)
        units = plan_cost(plan, way)
        return way.value, epsilon_of(way, units, self.delta), units <= capacity(way, self.epsilon, self.delta)


class _FitReservation:
    def __init__(self, account: Account, adjacency: Adjacency, accounting: str, reserved: float, delta: float) -> None:
        self._account = account
        self._adjacency = adjacency
        self._delta = delta
        self.accounting = accounting
        self.reserved = reserved
        self._statement: Statement | None = None

    @property
    def run(self) -> str:
        return self._account.run

    def charge(self, items: Sequence[tuple[ReleaseKey, Event]]) -> None:
        for _, event in items:
            require_adjacency(event, self._adjacency)
        self._account.record(self._account.uncharged(items))

    def stray(self) -> None:
        pass

    def charged(self) -> frozenset[ReleaseKey]:
        return frozenset(self._account.charged)

    def settle(self, *, stopped_early: bool = False) -> Statement:
        if self._statement is not None:
            return self._statement
        self._account.require_open()
        allowance, charged = self._account.allowance, self._account.charged
        if isinstance(allowance, Allowance):
            spent = epsilon_of(allowance.accounting, allowance.spent, self._delta)
        else:
            spent = _committed_epsilon(tuple(Counter(charged.values()).items()), self._delta) if charged else 0.0
        self._account.close()
        self._statement = Statement(
            epsilon=self.reserved if stopped_early else spent,
            delta=self._delta,
            adjacency=self._adjacency,
            accounting=self.accounting,
            spent=spent,
            reserved=self.reserved,
            releases=self._account.count,
            stopped_early=stopped_early,
            scope=FitBook.scope,
        )
        return self._statement

    def refund(self) -> None:
        self._account.require_open()
        if self._account.count:
            raise BudgetError("a reservation that was charged cannot be refunded: settle it")
        self._account.close()


def require_adjacency(event: Event, adjacency: Adjacency) -> None:
    """Raise PrivacyError unless the event speaks of the book's adjacency."""
    if event.adjacency != adjacency:
        raise PrivacyError(
            f"the book counts under {adjacency} adjacency and this event under {event.adjacency}: "
            f"restate it for {adjacency}"
        )


@lru_cache(maxsize=64)
def _committed_epsilon(plan: tuple[tuple[Event, int], ...], delta: float) -> float:
    """Return the ε of a plan committed to beforehand: asked before and after every run of it, so it is kept."""
    from vfl.privacy.accountants import PldAccountant

    accountant = PldAccountant(plan[0][0].adjacency)
    for event, count in plan:
        accountant.compose(event, count)
    return accountant.epsilon(delta)
