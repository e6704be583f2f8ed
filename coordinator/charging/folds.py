"""Charges for passes over disjoint public batches. The first batch is charged; every later batch must continue the pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from vfl.messages import Query
    from vfl.privacy.events import Event


class Folds:
    """Charges for queries on batches. A whole pass is charged as one event, because each record is in one batch of the pass.

    private : False for seeded noise, which repeats a release to the bit.
    """

    def __init__(self, private: bool) -> None:
        self._private = private
        self._last: Query | None = None
        self._before: Query | None = None
        self._earlier = False

    def lost(self) -> None:
        """Record that the answer to the last charged query was lost. The answer may have been released."""
        self._last, self._earlier = self._before, self._private

    def unpaid(self) -> None:
        """Record that the charge of the last query was refused, so that no later batch of the pass relies on this charge."""
        self._last = None

    def replayed(self, query: Query) -> None:
        """Record a batch that an earlier process released. The next batch may be released, too, so it needs a new charge."""
        if query.batch is not None:
            self._last, self._earlier = query, self._private

    def charged(self, query: Query) -> tuple[Event | None, ...]:
        """Return the events to charge for a query; None among them stands for a release without noise.

        Raises PrivacyError for a batch that does not follow the previous batch of its pass under the same event, and for a
        query that releases values without an event.
        """
        events, batch = query.events(), query.batch
        self._before = self._last
        if query.sizes() and not events:
            raise PrivacyError(f"{type(query).__name__} would release values without a charge")
        if batch is None or None in events:
            return events
        before, self._last = self._last, query
        again, self._earlier = self._earlier, False
        if batch.number == 0:
            return events
        if before is None or before.batch != replace(batch, number=batch.number - 1) or before.events() != events:
            raise PrivacyError("a batch does not follow the previous batch of its pass, so the batch was not charged")
        return events if again else ()
