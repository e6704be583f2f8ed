"""Passes over disjoint public batches: charged once, with the first fold, and watched so that they stay one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError

if TYPE_CHECKING:
    from vfl.messages import Query
    from vfl.privacy.events import Event


class Folds:
    """Says what a query is charged as. A pass costs one event only while every record takes part in one release of it.

    private : whether repeating a release makes another one; seeded noise repeats itself to the bit.
    """

    def __init__(self, private: bool) -> None:
        self._private = private
        self._last: Query | None = None
        self._before: Query | None = None
        self._earlier = False

    def lost(self) -> None:
        """Take note that the answer to the query charged last was lost: it may have been released."""
        self._last, self._earlier = self._before, self._private

    def replayed(self, query: Query) -> None:
        """Take note of a fold that an earlier process released: the next may have been released there too."""
        if query.batch is not None:
            self._last, self._earlier = query, self._private

    def charged(self, query: Query) -> tuple[Event | None, ...]:
        """Return the events to be charged for it; None stands for a release without noise.

        Raises PrivacyError for a fold that does not follow the one before it in the same pass, under the same event; and
        for a query that releases something and names no event for it.
        """
        events, batch = query.events(), query.batch
        self._before = self._last
        if query.sizes() and not events:
            raise PrivacyError(f"{type(query).__name__} would release what nothing is charged for")
        if batch is None or None in events:
            return events
        before, self._last = self._last, query
        again, self._earlier = self._earlier, False
        if batch.number == 0:
            return events
        if before is None or before.batch != replace(batch, number=batch.number - 1) or before.events() != events:
            raise PrivacyError("a batch does not follow the one before it in its pass, so nothing has paid for it")
        return events if again else ()
