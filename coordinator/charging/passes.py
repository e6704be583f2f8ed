"""Passes over disjoint blocks. Each coordinate is released once per pass, and the pass is charged once, as one release."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError
from vfl.messages import Descend, Paid

if TYPE_CHECKING:
    from vfl.messages import Query, RecordCap
    from vfl.privacy.events import Gaussian, ReleaseKey


def paid_by_pass(query: Query) -> tuple[Descend, RecordCap] | None:
    """Return (query, cap) for a noisy visit under a record cap, since one charge pays for a pass; None for other queries."""
    if not isinstance(query, Descend) or query.capped is None or None in query.events():
        return None
    return query, query.capped


class Passes:
    """Decides when a query under a record cap needs a new charge.

    Guarantee. A charge covers each coordinate at most once, under one cap with one scale. After a loss, and in a new process,
    the charge covers no further release: it is then unknown which of its releases were made, so all of them count as made. A
    retry therefore makes the next charge of the plan, which also covers all blocks that follow.

    private : False for seeded noise, which repeats a release to the bit.
    """

    def __init__(self, private: bool) -> None:
        self._private = private
        self._number = 0
        self._paid: Paid | None = None
        self._released: frozenset[int] = frozenset()
        self._cap: RecordCap | None = None
        self._over = False
        self._before: tuple[int, Paid | None, frozenset[int], RecordCap | None] = (0, None, frozenset(), None)

    def begin(self) -> None:
        """Save the current state of the charges, so that `lost` can return to this state."""
        self._before = self._number, self._paid, self._released, self._cap

    def charged(self, query: Descend, cap: RecordCap, key: ReleaseKey) -> tuple[tuple[Gaussian, ...], Descend]:
        """Return the events to charge under `key`, and the query with the charge that covers it in `capped.paid`.

        No event is returned if an earlier charge of the pass already covers the query. Raises PrivacyError for a query that
        releases a coordinate twice, or with less noise than was charged.
        """
        paid, new = self._take(query, cap, key)
        cap = replace(cap, paid=paid)
        cap.require_covered((step.clip, step.event) for step in query.ordered())
        return ((paid.event,) if new else ()), replace(query, capped=cap)

    def unpaid(self) -> None:
        """Record that the charge of the last query was refused, so that no later query relies on this charge."""
        self._paid = None

    def replayed(self, query: Query, key: ReleaseKey) -> None:
        """Record releases of an earlier process. With seeded noise, repeats of these releases need no new charge."""
        found = paid_by_pass(query)
        if found is not None and not self._private:
            self._take(*found, key)

    def earlier(self, charges: int) -> None:
        """Skip the charges that an earlier process made for one query. They cover no further release."""
        self._number += charges
        self._paid = None

    def lost(self) -> None:
        """Record that the answer to the last query was lost. Its releases may have been made."""
        if self._private:
            self._over = True
        else:
            self._number, self._paid, self._released, self._cap = self._before

    def given_up(self, query: Query, key: ReleaseKey) -> None:
        """Record that a lost query is not repeated, so that the charge of the query pays for no further release."""
        self.replayed(query, key)
        self._over = True

    def _take(self, query: Descend, cap: RecordCap, key: ReleaseKey) -> tuple[Paid, bool]:
        """Record the query's coordinates as released. Return the charge that covers them, and True if this charge is new."""
        blocks = [step.block.coordinates for step in query.ordered()]
        coordinates = frozenset(j for S in blocks for j in range(S.start, S.stop))
        if len(coordinates) < sum(S.stop - S.start for S in blocks):
            raise PrivacyError("a query releases a coordinate twice, and it was charged for one release")
        holds = not self._over and self._cap is cap and self._released.isdisjoint(coordinates)
        if self._paid is not None and holds:
            self._released |= coordinates
            return self._paid, False
        self._paid = Paid(key, cap.price(self._number))
        self._number += 1
        self._released, self._cap, self._over = coordinates, cap, False
        return self._paid, True
