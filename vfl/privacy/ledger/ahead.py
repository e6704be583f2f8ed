"""Charging ahead: one durable transaction for the next few releases of a schedule that is known."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from vfl.errors import BudgetExceeded, PrivacyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger.book import Reservation, Statement


class ChargeAhead:
    """A reservation that charges up to `batch` upcoming releases at once: every release was charged before it is made.

    After a crash up to `batch` − 1 releases are charged that never were made: it over-counts, never under-counts. A
    release that is not among the upcoming ones is charged by itself. Implements `Reservation`.

    upcoming : (key, event) in the order in which they will be asked for; read lazily.
    batch : releases in one transaction, at least 1.
    """

    def __init__(
        self, reservation: Reservation, upcoming: Iterable[tuple[ReleaseKey, Event]], *, batch: int = 32
    ) -> None:
        if batch < 1:
            raise PrivacyError(f"batch must be at least 1, not {batch!r}")
        self._reservation = reservation
        self._upcoming = iter(upcoming)
        self._batch = batch
        self._held: dict[ReleaseKey, Event] = {}
        self._pending: deque[tuple[ReleaseKey, Event]] = deque()

    @property
    def run(self) -> str:
        """The run that it was granted to."""
        return self._reservation.run

    def charge(self, items: Sequence[tuple[ReleaseKey, Event]]) -> None:
        """Return when all of these are charged, durably; see `Reservation.charge`."""
        wanted = [(key, event) for key, event in items if self._held.get(key) != event]
        if not wanted:
            return
        keys = {key for key, _ in wanted}
        room = max(0, self._batch - len(wanted))
        while len(self._pending) < room + len(wanted):
            more = list(islice(self._upcoming, room + len(wanted)))
            if not more:
                break
            self._pending.extend(more)
        ahead = [item for item in self._pending if item[0] not in keys and item[0] not in self._held][:room]
        try:
            self._reservation.charge([*wanted, *ahead])
        except BudgetExceeded:
            # The releases asked for may still fit where those after them do not.
            if not ahead:
                raise
            ahead = []
            self._reservation.charge(wanted)
        self._held.update(wanted)
        self._held.update(ahead)
        self._pending = deque(item for item in self._pending if item[0] not in self._held)

    def charged(self) -> frozenset[ReleaseKey]:
        """Return the keys charged so far, those ahead included."""
        return self._reservation.charged()

    def settle(self, *, stopped_early: bool = False) -> Statement:
        """Close; see `Reservation.settle`. Releases charged ahead and not made count as spent."""
        return self._reservation.settle(stopped_early=stopped_early)

    def refund(self) -> None:
        """Close a reservation that was never charged."""
        self._reservation.refund()
