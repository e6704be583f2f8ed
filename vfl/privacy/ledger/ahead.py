"""Charging ahead: one durable transaction for the next few releases of a schedule that is known."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

from vfl.errors import BudgetExceeded, PrivacyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger.reservation import Reservation, Statement

    Items = list[tuple[ReleaseKey, Event]]


class ChargeAhead:
    """A reservation that charges up to `batch` upcoming releases at once: every release was charged before it is made.

    After a crash up to `batch` − 1 releases (with `overlap`, 2·batch − 1) are charged that never were made: it
    over-counts, never under-counts. A release that is not among the upcoming ones is charged by itself. Implements
    `Reservation`.

    upcoming : (key, event) in the order in which they will be asked for; read lazily.
    batch : releases in one transaction, at least 1.
    overlap : write the next batch in a thread while the releases of this one are made. Nothing is made before the
        write that charges it has returned.
    """

    def __init__(
        self,
        reservation: Reservation,
        upcoming: Iterable[tuple[ReleaseKey, Event]],
        *,
        batch: int = 32,
        overlap: bool = False,
    ) -> None:
        if batch < 1:
            raise PrivacyError(f"batch must be at least 1, not {batch!r}")
        self._reservation = reservation
        self._upcoming = iter(upcoming)
        self._batch = batch
        self._held: dict[ReleaseKey, Event] = {}
        self._asked = 0
        self._pending: deque[tuple[ReleaseKey, Event]] = deque()
        self._writer = ThreadPoolExecutor(1, "charge-ahead") if overlap else None
        self._writing: tuple[Items, Future[None]] | None = None

    @property
    def run(self) -> str:
        """The run that it was granted to."""
        return self._reservation.run

    def charge(self, items: Sequence[tuple[ReleaseKey, Event]]) -> None:
        """Return when all of these are charged, durably; see `Reservation.charge`."""
        if self._missing(items):
            self._written()
        wanted = self._missing(items)
        if wanted:
            self._charge(wanted)
        self._asked += len(items)
        if self._writer is not None and self._writing is None and len(self._held) - self._asked < self._batch:
            following = self._following(self._batch)
            if following:
                self._writing = following, self._writer.submit(self._reservation.charge, following)

    def stray(self) -> None:
        """Charge nothing ahead any more; see `Reservation.stray`."""
        self._written()
        self._upcoming = iter(())
        self._pending.clear()

    def charged(self) -> frozenset[ReleaseKey]:
        """Return the keys charged so far, those ahead included."""
        self._written()
        return self._reservation.charged()

    def settle(self, *, stopped_early: bool = False) -> Statement:
        """Close; see `Reservation.settle`. Releases charged ahead and not made count as spent."""
        self._end()
        return self._reservation.settle(stopped_early=stopped_early)

    def refund(self) -> None:
        """Close a reservation that was never charged."""
        self._end()
        self._reservation.refund()

    def _missing(self, items: Sequence[tuple[ReleaseKey, Event]]) -> Items:
        return [(key, event) for key, event in items if self._held.get(key) != event]

    def _charge(self, wanted: Items) -> None:
        ahead = self._following(self._batch - len(wanted), besides={key for key, _ in wanted})
        try:
            self._reservation.charge([*wanted, *ahead])
        except BudgetExceeded:
            # The releases asked for may still fit where those after them do not.
            if not ahead:
                raise
            ahead = []
            self._reservation.charge(wanted)
        self._held.update([*wanted, *ahead])

    def _following(self, count: int, besides: frozenset[ReleaseKey] | set[ReleaseKey] = frozenset()) -> Items:
        """Return the next releases that are not charged, at most `count` of them; they stay pending."""
        count = max(0, count)
        self._pending = deque(item for item in self._pending if item[0] not in self._held)
        self._pending.extend(islice(self._upcoming, max(0, count + len(besides) - len(self._pending))))
        return [item for item in self._pending if item[0] not in besides][:count]

    def _written(self) -> None:
        """Wait for the batch that is being written, if any; a failure to write it is raised here."""
        if self._writing is None:
            return
        items, future = self._writing
        self._writing = None
        try:
            future.result()
        except BudgetExceeded:  # what is asked for of it may fit by itself
            return
        self._held.update(items)

    def _end(self) -> None:
        self._written()
        if self._writer is not None:
            self._writer.shutdown()
