"""Budget of one fit (a run without a ledger), kept in memory."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from vfl.errors import BudgetError, BudgetExceeded
from vfl.privacy.events import PoissonSubsampledGaussian, Selection, bare
from vfl.privacy.ledger.account import Account, Allowance, Commitment
from vfl.privacy.ledger.composition import Accounting, accounting_for, capacity, epsilon_of, plan_cost
from vfl.privacy.ledger.reservation import Preview, Statement, adjacency_of
from vfl.privacy.spending import require_adjacency

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.types import Adjacency
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger.composition import Plan
    from vfl.privacy.ledger.reservation import Reservation

FIXED: Mapping[str, type[Event]] = {"pld": PoissonSubsampledGaussian, "selection": Selection}
"""Accountings that need a plan fixed beforehand, each with the type of event that requires the accounting."""


class FitBudget:
    """Budget of one fit, in memory. All its releases together are (ε, δ)-DP; other fits on the same data are not counted.

    Only one reservation is granted. A plan with secret samples of records, or with a private selection, is fixed by the
    reservation and accounted by PLD or by the curve of the selection. Under any other plan, releases may be chosen adaptively
    within the reservation.

    epsilon > 0, delta in (0, 1) : limit of the fit.
    """

    scope = "covers this one fit only: the job names no ledger that counts other fits on the same data"

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = epsilon
        self.delta = delta
        capacity(Accounting.GDP, epsilon, delta)  # raises for invalid ε or δ
        self._reservation: _FitReservation | None = None

    def preview(self, plan: Plan) -> Preview:
        """Return the cost of a plan. Nothing is recorded."""
        adjacency_of(plan)
        accounting, asked, fits = self._asked(plan)
        spent, left, held = 0.0, self.epsilon, self._reservation
        if held is not None:
            spent, left, fits, accounting = held.reserved, 0.0, False, held.accounting
        return Preview(self.epsilon, self.delta, spent, asked, left, fits, accounting, self.scope)

    def reserve(self, plan: Plan, *, job: str, run: str) -> Reservation:
        """Reserve the whole plan. A second call raises BudgetError."""
        adjacency = adjacency_of(plan)
        if self._reservation is not None:
            raise BudgetError(
                "this account is for one fit, and its budget is reserved already: use another, or name a ledger for all fits"
            )
        accounting, asked, fits = self._asked(plan)
        if not fits:
            raise BudgetExceeded(
                f"the plan asks for ε = {asked:.4g}, and this fit has ε = {self.epsilon:.4g} at δ = {self.delta:.3g}: "
                "raise epsilon, lower passes, or raise noise_multiplier"
            )
        allowance: Allowance | Commitment
        if accounting in FIXED:
            allowance = Commitment(plan)
        else:
            way = Accounting(accounting)
            allowance = Allowance(way, plan_cost(plan, way), self.delta)
        self._reservation = _FitReservation(Account(job, run, allowance), adjacency, accounting, asked, self.delta)
        return self._reservation

    def _asked(self, plan: Plan) -> tuple[str, float, bool]:
        kinds = {type(bare(event)) for event, _ in plan}
        for accounting, kind in FIXED.items():
            if kind in kinds:
                asked = _committed_epsilon(tuple(plan), self.delta)
                return accounting, asked, asked <= self.epsilon
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
            delta=self._delta,
            adjacency=self._adjacency,
            accounting=self.accounting,
            spent=spent,
            reserved=self.reserved,
            releases=self._account.count,
            stopped_early=stopped_early,
            scope=FitBudget.scope,
        )
        return self._statement

    def refund(self) -> None:
        self._account.require_open()
        if self._account.count:
            raise BudgetError("a reservation that was charged cannot be refunded: settle it")
        self._account.close()


@lru_cache(maxsize=64)
def _committed_epsilon(plan: tuple[tuple[Event, int], ...], delta: float) -> float:
    """Return ε of a plan fixed beforehand. The result is cached, since each run needs ε at its start and at its end."""
    from vfl.privacy.accountants import choose_accountant

    return choose_accountant(plan, committed=True).compose_all(plan).epsilon(delta)
