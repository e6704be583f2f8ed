"""One run's reservation, as arithmetic: what it may spend, what it has spent, which releases were charged."""

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
    """A filter: releases may be chosen adaptively as long as their sum stays within the reserved units.

    The sum is that of the record that they cost most, where a public split keeps releases apart (vfl.holdout).
    """

    __slots__ = ("_total", "accounting", "delta", "reserved")

    def __init__(self, accounting: Accounting, reserved: int, delta: float) -> None:
        self.accounting = accounting
        self.reserved = reserved
        self.delta = delta
        self._total = Total()

    @property
    def spent(self) -> int:
        """Units of all that was charged."""
        return self._total.units

    def check(self, events: Iterable[Event]) -> None:
        """Raise BudgetExceeded when these releases would exceed what was reserved."""
        before = self.spent
        then = self._then(events)
        if then > self.reserved:
            spent, need, left, cap = (
                epsilon_of(self.accounting, units, self.delta)
                for units in (before, then - before, self.reserved - before, self.reserved)
            )
            raise BudgetExceeded(
                f"the run has spent ε = {spent:.4g} of the ε = {cap:.4g} reserved for it at δ = {self.delta:.3g}; "
                f"the next release asks for ε = {need:.4g} and ε = {left:.4g} is left, so it was not made; "
                "plan fewer passes or more noise, or reserve more"
            )

    def take(self, events: Iterable[Event]) -> None:
        """Add to what is spent; `check` came before."""
        for event in events:
            self._total.add(event, cost(event, self.accounting))

    def _then(self, events: Iterable[Event]) -> int:
        """Return the units that would be spent with these."""
        total = self._total.copy()
        for event in events:
            total.add(event, cost(event, self.accounting))
        return total.units


class Commitment:
    """Exactly the releases of a plan fixed beforehand, any order: what PLD accounting needs (it is no filter)."""

    __slots__ = ("left",)

    def __init__(self, plan: Iterable[tuple[Event, int]]) -> None:
        self.left: Counter[Event] = Counter()
        for event, count in plan:
            self.left[event] += count

    def check(self, events: Iterable[Event]) -> None:
        """Raise BudgetExceeded for a release that the plan does not contain, or not so often."""
        asked = Counter(events)
        if any(count > self.left[event] for event, count in asked.items()):
            raise BudgetExceeded(
                "this release is not, or not so often, in the plan that was committed to; accounting with secret "
                "sampling holds for a plan fixed beforehand only: plan every release, repeated attempts included"
            )

    def take(self, events: Iterable[Event]) -> None:
        """Strike these releases off the plan; `check` came before."""
        self.left.subtract(Counter(events))


class Account:
    """A run's open or closed reservation. It holds the charged keys only while it is open.

    epoch : raised by each resume; a holder of an older one was superseded and may not charge.
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
        """Return the items to be charged now: without those charged before, each checked against the allowance.

        Raises BudgetError when the account is closed, LedgerError when a key was charged with another event,
        BudgetExceeded when the sum would exceed the allowance, UnknownEvent for an event without a meaning.
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
        """Take note of charges that `uncharged` returned."""
        new = dict(items)
        self.allowance.take(new.values())
        self.charged.update(new)
        self.count += len(new)

    def require_open(self, epoch: int | None = None) -> None:
        """Raise BudgetError when nothing more may be charged, or when a later resume took over."""
        if not self.open:
            raise BudgetError(f"the reservation of run {self.run!r} is closed: reserve again under a new run")
        if epoch is not None and epoch != self.epoch:
            raise BudgetError(
                f"run {self.run!r} was resumed by another process, which now holds its reservation: stop this one"
            )

    def close(self) -> None:
        """Close; keys are not needed any more."""
        self.open = False
        self.charged = {}
