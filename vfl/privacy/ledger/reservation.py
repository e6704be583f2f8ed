"""Protocols of a book and of the reservations that it grants, which the executor charges before anything is released.

A book never under-counts: what `charge` could not record must not be released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vfl.errors import WITHOUT_PRIVACY, PrivacyError

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
        for a book that is not kept. flags : a sentence for each change of the cap after releases.
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
    flags: tuple[str, ...] = ()


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
        raise PrivacyError(f"a plan without any release has nothing to reserve: plan one, or {WITHOUT_PRIVACY}")
    for _, count in plan:
        if not isinstance(count, int) or count < 1:
            raise PrivacyError(f"a plan counts each event at least once, not {count!r} times")
    adjacencies = {event.adjacency for event, _ in plan}
    if len(adjacencies) > 1:
        raise PrivacyError(
            f"a plan mixes adjacencies ({', '.join(sorted(adjacencies))}); their ε do not add up: restate all for one"
        )
    return adjacencies.pop()


def require_adjacency(event: Event, adjacency: Adjacency) -> None:
    """Raise PrivacyError unless the event speaks of the book's adjacency."""
    if event.adjacency != adjacency:
        raise PrivacyError(
            f"the book counts under {adjacency} adjacency and this event under {event.adjacency}: "
            f"restate it for {adjacency}"
        )
