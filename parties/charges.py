"""Charges of one party's releases in a run: the party itself refuses a release that the job's plan does not cover.

`PartyBook` keeps the charges on disk, under its owner's cap; `RunCount` keeps them in memory. Both are in parties.book.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import BudgetExceeded, ConsentRefused
from vfl.messages import Backward, Descend, Gram, Piece, Query
from vfl.privacy.events import on_part

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.messages import Paid
    from vfl.planning import Plan
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger import Reservation
    from vfl.types import Vector


def _extent(query: Gram) -> tuple[object, ...]:
    """Return the piece, columns and clip that define a share's sum; the party compares cap and noise separately."""
    number = None if query.batch is None else (query.batch.number, query.batch.of)
    return number, query.part, query.blocks, query.held, query.own, type(query.clip), query.clip.dimension


def _rows(query: Gram) -> Vector:
    """Return centres and scales of a share's columns, (2, s)."""
    return np.array([query.centres[0], query.scales[0]])


class Charges:
    """Charges a party's releases to a reservation of the job's plan, before their noise is drawn.

    Guarantee. The releases recorded here jointly cost at most the plan's cost, and no key is charged for two releases.

    The party itself checks that a release carries enough noise for its sum.
    """

    _reservation: Reservation | None

    def __init__(self, job: Job, party: str) -> None:
        self._job = job
        self._party = party
        self._reservation = None
        self._plan: Plan | None = None
        self._made: set[ReleaseKey] = set()
        self._passes: set[ReleaseKey] = set()
        self._last: Query | None = None
        self._rows: Vector | None = None
        # Seeded noise is the same for the same key, so a repetition is the same release.
        self._repeats = job.privacy is not None and job.privacy.noise is not None

    def record(self, query: Query, key: ReleaseKey) -> None:
        """Charge all releases that the answer to a query makes, in one transaction.

        Raises ConsentRefused for a release beyond the reservation, a repeated release, or a piece of a joint release that
        the plan does not contain.
        """
        if isinstance(query, Gram) or isinstance(query.batch, Piece):
            self._require_planned(query)
        capped = query.capped if isinstance(query, Descend | Backward) else None
        if capped is not None and capped.paid is not None:
            self._record_pass(query, capped.paid)
            return
        events = self._events(query)
        if not events:
            return
        first = query.parts.get(self._party, 0) if isinstance(query, Descend) else getattr(query, "part", 0)
        try:
            own = ((replace(key, part=first + k), event) for k, event in enumerate(events) if event is not None)
            self.charge([(each, self._placed(event, query)) for each, event in own])
        except BaseException:
            self._last = None  # no later batch may rest on a charge that was refused
            raise

    def _record_pass(self, query: Query, paid: Paid) -> None:
        """Charge a whole pass with the first block that this party is asked for; the party checks the other blocks.

        A pass that an earlier process of this party began is refused, because its released blocks are unknown.
        """
        if not query.events() or paid.key in self._passes:
            return
        self.charge([(paid.key, self._placed(paid.event, query))])
        self._passes.add(paid.key)

    def _placed(self, event: Event, query: Query) -> Event:
        """Return the event. If the query has a subsample, the event covers only its rows; the party answers on them alone.

        A hold-out does not restrict the event: the event is charged as if it used all records, since the party releases
        nothing on the held-out part.
        """
        if query.subsample is None or self._plan is None:
            return event
        return on_part(event, self._plan.split, query.charged_on)

    def charge(self, items: list[tuple[ReleaseKey, Event]]) -> None:
        """Charge releases in one transaction; ConsentRefused for a repeated or unplanned release.

        A key with a negative round is refused: otherwise OTHERS could look charged already, and closing would not charge the
        rest of the plan.
        """
        if self._reservation is None:
            raise ConsentRefused(f"party {self._party!r} keeps a book, and this run was not announced to it")
        if any(each.round < 0 for each, _ in items):
            raise ConsentRefused(f"party {self._party!r} was asked for a release of round {items[0][0].round}")
        if not self._repeats and any(each in self._made for each, _ in items):
            raise ConsentRefused(
                f"party {self._party!r} made the release of round {items[0][0].round}, attempt {items[0][0].attempt} "
                "before: repeating it is another release, under a new attempt"
            )
        try:
            self._reservation.charge(items)
        except BudgetExceeded as error:
            raise ConsentRefused(
                f"party {self._party!r} refuses a release beyond the plan of its job: {error}"
            ) from error
        self._made.update(each for each, _ in items)

    def _require_planned(self, query: Query) -> None:
        """Raise ConsentRefused for a piece that differs from the planned piece of its number: one charge pays for all pieces.

        The party compares the summands of its own sum and the number of pieces. Columns that a run centres and scales by
        released values must keep the centres and scales of the first piece. The party trusts the coordinator to bound all
        parties' shares together by the weights, as in every release of several parties.
        """
        batch, solver = query.batch, self._plan.solver if self._plan is not None else None
        pieces = getattr(solver, "pieces", None)
        if pieces is not None and self._plan is not None and batch is not None and isinstance(query, Gram):
            planned = {piece.fold.number: piece.shares() for piece in pieces(self._plan.problem)}
            own = planned.get(batch.number, {}).get(self._party)
            if own is not None and _extent(query) == _extent(own):
                rows = _rows(query)
                if solver is None or not solver.infers:
                    self._rows = _rows(own)
                elif batch.number == 0 or self._rows is None:
                    self._rows = rows
                if np.array_equal(rows, self._rows):
                    return
        raise ConsentRefused(
            f"party {self._party!r} was asked for a piece of a joint release that the job's plan does not have: all pieces "
            "are paid for by one charge"
        )

    def _events(self, query: Query) -> tuple[Event | None, ...]:
        """Return the events charged for a query; a pass over disjoint batches is charged once, with its first batch.

        A batch that does not continue the same pass under the same event is charged separately. With seeded noise, two more
        kinds of batch need no further charge: a repeated batch, and the first batch that a restarted party is asked for.
        """
        events, batch = query.events(), query.batch
        if batch is None or None in events:
            return events
        before, self._last = self._last, query
        if batch.number == 0:
            return events
        if before is None:
            return () if self._repeats and self._made else events
        numbers = (batch.number - 1, batch.number) if self._repeats else (batch.number - 1,)
        follows = any((before.batch, before.events()) == (replace(batch, number=k), events) for k in numbers)
        return () if follows and before.subsample == query.subsample else events
