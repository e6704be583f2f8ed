"""Protocols of a privacy account and its reservations. Before each release, the executor charges a reservation.

An account's total is never too small: a release that `charge` could not record must not be made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vfl.errors import WITHOUT_PRIVACY, PrivacyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.types import Adjacency
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger.composition import Plan


@dataclass(frozen=True, slots=True)
class Preview:
    """Cost of a plan that is not reserved yet. Every ε is at the account's δ, rounded up.

    cap, delta : the account's (ε, δ).
    spent : ε of all charges so far and of all open reservations together.
    asked : ε of the plan alone.
    left : ε of the largest plan that would still fit. Values of ε do not add up; the account adds μ² or ρ.
    fits : True if `reserve` would grant the plan now.
    accounting : "gdp" (exact for Gaussian releases), "zcdp" (mixed releases), or "pld" or "selection" (plans fixed beforehand).
    scope : extent of the guarantee, in words.
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
    """Facts about a settled run, for its certificate.

    spent : ε of all charges together. reserved : ε of the reservation.
    releases : number of charges.
    stopped_early : True if the data decided when to stop.
    scope : extent of the guarantee, in words.
    entries, head : number of ledger entries, and chain head, after settling; 0 and '' for an account in memory.
    flags : one sentence for each change of the cap after releases.
    """

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
    flags: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """ε to state at `delta`: `reserved` if the data decided when to stop, since a privacy filter is not an odometer."""
        return self.reserved if self.stopped_early else self.spent


@runtime_checkable
class Reservation(Protocol):
    """Reserved plan of a run. Another process may take the reservation over; only one process may use it at a time."""

    @property
    def run(self) -> str:
        """Id of the run that holds the reservation."""
        ...

    def charge(self, items: Sequence[tuple[ReleaseKey, Event]]) -> None:
        """Record all charges or none of them, durably. Draw the noise only after this call has returned.

        A key that was charged before with the same event is ignored: to repeat a *release*, use a new attempt. Raises
        BudgetExceeded, with nothing recorded, if the sum would exceed the reservation. Raises LedgerError if a key was
        charged with another event, or if the account cannot be written.
        """
        ...

    def charged(self) -> frozenset[ReleaseKey]:
        """Return the keys charged so far. After a crash, the release of each key may have been made."""
        ...

    def settle(self, *, stopped_early: bool = False) -> Statement:
        """Close the reservation and free its uncharged part. Repeated calls return the same statement.

        stopped_early : True if the data decided when the run stopped.
        """
        ...

    def refund(self) -> None:
        """Cancel a reservation without charges. Raises BudgetError if there are charges."""
        ...


@runtime_checkable
class PrivacyBudget(Protocol):
    """Privacy account that reserves plans under an (ε, δ) cap."""

    def preview(self, plan: Plan) -> Preview:
        """Return the cost of a plan. Nothing is recorded."""
        ...

    def reserve(self, plan: Plan, *, job: str, run: str) -> Reservation:
        """Reserve the whole plan, before any data are read.

        plan : events with counts. job : digest of the job. run : id of the run, which is unique in the account. Raises
            BudgetExceeded if the plan does not fit. The message has the ε spent, asked and left.
        """
        ...


def adjacency_of(plan: Plan) -> Adjacency:
    """Return the adjacency of a plan. Raises PrivacyError for an empty plan, a bad count or mixed adjacencies."""
    if not plan:
        raise PrivacyError(f"a plan without any release has nothing to reserve: plan one, or {WITHOUT_PRIVACY}")
    for _, count in plan:
        if not isinstance(count, int) or count < 1:
            raise PrivacyError(f"a plan counts each event at least once, not {count!r} times")
    adjacencies = {event.adjacency for event, _ in plan}
    if len(adjacencies) > 1:
        raise PrivacyError(
            f"a plan mixes adjacencies ({', '.join(sorted(adjacencies))}), whose ε cannot be combined: "
            "restate all events for one adjacency"
        )
    return adjacencies.pop()
