"""Passes over disjoint public batches: charged once, with the first fold, and watched so that they stay one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfl.errors import PrivacyError
from vfl.messages import Backward

if TYPE_CHECKING:
    from vfl.messages import Query
    from vfl.privacy.events import Event


class Folds:
    """Says what a query is charged as. A pass costs one event only while every record takes part in one release of it.

    private : whether repeating a release makes another one; seeded noise repeats itself to the bit.
    """

    def __init__(self, private: bool) -> None:
        self._private = private
        self._last: Backward | None = None
        self._earlier = False

    def replayed(self, query: Query) -> None:
        """Take note of a fold that an earlier process released: the next may have been released there too."""
        if isinstance(query, Backward) and query.fold is not None:
            self._last, self._earlier = query, self._private

    def charged(self, query: Query) -> tuple[Event | None, ...]:
        """Return the events to be charged for it.

        Raises PrivacyError for a fold that does not follow the one before it in the same pass, under the same event.
        """
        if not isinstance(query, Backward) or query.fold is None or query.event is None:
            return query.events()
        before, self._last = self._last, query
        again, self._earlier = self._earlier, False
        if query.fold.number == 0:
            return query.events()
        if (
            before is None
            or before.fold is None
            or (before.fold.of, before.fold.seed) != (query.fold.of, query.fold.seed)
            or before.fold.number + 1 != query.fold.number
            or before.event != query.event
        ):
            raise PrivacyError("a batch does not follow the one before it in its pass, so nothing has paid for it")
        return (query.event,) if again else ()
