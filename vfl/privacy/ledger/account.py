"""Reservation of one run: its allowance, its spending, and the releases charged."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vfl.errors import BudgetError, BudgetExceeded, LedgerError
from vfl.privacy.ledger.composition import Accounting, cost, epsilon_of
from vfl.privacy.spending import Total

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vfl.privacy.events import Event, ReleaseKey


class Allowance:
    """Privacy filter: releases may be chosen adaptively while the sum of their costs stays within the reserved units.

    Of the parts of a public split of the records (vfl.base.holdout), the sum counts only the most expensive part.
    """

    __slots__ = ("_total", "accounting", "delta", "reserved")

    def __init__(self, accounting: Accounting, reserved: int, delta: float) -> None:
        self.accounting = accounting
        self.reserved = reserved
        self.delta = delta
        self._total = Total()

    @property
    def spent(self) -> int:
        """Cost of all charges, in units of μ² or ρ."""
        return self._total.units

    def check(self, events: Iterable[Event]) -> None:
        """Raise BudgetExceeded if these releases would exceed the reserved units."""
        before, total = self.spent, self._total.copy()
        for event in events:
            total.add(event, cost(event, self.accounting))
        then = total.units
        if then > self.reserved:
            spent, need, left, cap = (
                epsilon_of(self.accounting, units, self.delta)
                for units in (before, then - before, self.reserved - before, self.reserved)
            )
            raise BudgetExceeded(
                f"the next release asks for ε = {need:.4g}, but the run has ε = {left:.4g} left of ε = {cap:.4g} "
                f"reserved for it at δ = {self.delta:.3g} (ε = {spent:.4g} is spent). The release was not made: plan "
                "fewer passes or more noise, or reserve more"
            )

    def take(self, events: Iterable[Event]) -> None:
        """Add these releases to the units spent. `check` must be called first."""
        for event in events:
            self._total.add(event, cost(event, self.accounting))


class Commitment:
    """Fixed plan: exactly the planned releases may be made, in any order.

    Accounting by privacy loss distributions (PLD) needs a fixed plan, since PLD is not a privacy filter.
    """

    __slots__ = ("left",)

    def __init__(self, plan: Iterable[tuple[Event, int]]) -> None:
        self.left: Counter[Event] = Counter()
        for event, count in plan:
            self.left[event] += count

    def check(self, events: Iterable[Event]) -> None:
        """Raise BudgetExceeded unless the rest of the plan contains these releases, with their counts."""
        asked = Counter(events)
        if any(count > self.left[event] for event, count in asked.items()):
            raise BudgetExceeded(
                "the committed plan does not contain this release, or not this often. Secret sampling is accounted for "
                "only in a plan that is fixed beforehand: plan every release, repeated attempts included"
            )

    def take(self, events: Iterable[Event]) -> None:
        """Remove these releases from the plan. `check` must be called first."""
        self.left.subtract(Counter(events))


class Account:
    """Reservation of a run, open or closed. The keys of charged releases are kept while the reservation is open.

    epoch : number that each resumption increases. A process with a smaller number may no longer charge.
    """

    __slots__ = ("allowance", "charged", "count", "epoch", "job", "open", "run")

    def __init__(self, job: str, run: str, allowance: Allowance | Commitment) -> None:
        self.job = job
        self.run = run
        self.allowance = allowance
        self.charged: dict[ReleaseKey, Event] = {}
        self.count = 0
        self.epoch = 1
        self.open = True

    def uncharged(self, items: Sequence[tuple[ReleaseKey, Event]]) -> list[tuple[ReleaseKey, Event]]:
        """Check charges against the allowance; return those that were not charged before.

        Raises BudgetError if the account is closed, LedgerError if a key was charged with another event, BudgetExceeded if
        the sum would exceed the allowance, and PrivacyError for an event without a known cost.
        """
        self.require_open()
        new: dict[ReleaseKey, Event] = {}
        for key, event in items:
            known = self.charged.get(key) or new.get(key)
            if known is None:
                new[key] = event
            elif known != event:
                raise LedgerError(
                    f"round {key.round}, part {key.part}, attempt {key.attempt} of run {self.run!r} was charged with "
                    "another event; a repeated release is a new attempt with a key of its own"
                )
        self.allowance.check(new.values())
        return list(new.items())

    def record(self, items: Iterable[tuple[ReleaseKey, Event]]) -> None:
        """Record charges that `uncharged` has returned."""
        new = dict(items)
        self.allowance.take(new.values())
        self.charged.update(new)
        self.count += len(new)

    def require_open(self, epoch: int | None = None) -> None:
        """Raise BudgetError if the account is closed, or if a later resumption took over the account."""
        if not self.open:
            raise BudgetError(f"the reservation of run {self.run!r} is closed: reserve again under a new run")
        if epoch is not None and epoch != self.epoch:
            raise BudgetError(
                f"run {self.run!r} was resumed by another process, which now holds its reservation: stop this one"
            )

    def close(self) -> None:
        """Close the account, and drop the keys of charged releases."""
        self.open = False
        self.charged = {}
