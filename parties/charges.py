"""Charges for one party's releases in a run. The party refuses a release that the plan of the job does not cover.

`PartyLedger` keeps the charges on disk, in the party ledger; `RunCount` keeps them in memory (parties.ledger).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfl.errors import BudgetExceeded, ConsentRefused
from vfl.privacy.cover import Answer, Cover, Frame
from vfl.privacy.events import on_part

if TYPE_CHECKING:
    from vfl.job import Job
    from vfl.planning import Plan
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.privacy.ledger import Reservation
    from vfl.queries import Paid, Query


class Charges:
    """Charges a party's releases to a reservation for the job's plan, before the noise of these releases is drawn.

    Guarantee. The recorded releases together cost at most as much as the plan, and no key is charged for two releases.

    The party itself checks that a release carries enough noise for its sum.
    """

    _reservation: Reservation | None

    def __init__(self, job: Job, party: str) -> None:
        self._job = job
        self._party = party
        self._reservation = None
        self._plan: Plan | None = None
        self._made: set[ReleaseKey] = set()
        # Seeded noise is the same for the same key, so a repeated release reveals nothing new.
        self._repeats = job.privacy is not None and job.privacy.noise is not None
        self._passes, self._batches, self._parts = Cover(), Cover(repeats=self._repeats), Cover()

    def record(self, query: Query, key: ReleaseKey) -> None:
        """Charge all releases in the answer to a query, in one transaction.

        Raises ConsentRefused for a release that exceeds the reservation, for a repeated release, and for a part of a larger
        release that differs from the plan.
        """
        self._require_planned(query)
        paid = None if query.capped is None else query.capped.paid
        try:
            due = self._due(query, key) if paid is None else self._due_of_pass(query, paid)
            if due:
                self.charge([(each, self._placed(event, query)) for each, event in due])
        except BaseException:
            self._batches.void()
            if paid is not None:
                self._passes.void(paid.key)
            raise

    def _due_of_pass(self, query: Query, paid: Paid) -> list[tuple[ReleaseKey, Event]]:
        """Return the charge of a whole pass, with the first block that is asked of this party, which checks all other blocks.

        A pass that began in an earlier process of this party is refused, because this process does not know its released
        blocks.
        """
        frame = Frame(query.subsample, paid.event, None)
        covered = not query.events() or self._passes.admit(frame, (), paid.key) is Answer.COVERED
        return [] if covered else [(paid.key, paid.event)]

    def _placed(self, event: Event, query: Query) -> Event:
        """Return the event of a release. With subsamples, or a hold-out on shares, it covers the query's part of the rows.

        The party then answers on these rows alone. Without shares, a hold-out does not restrict the event, which is charged as
        if it used all records: the party releases nothing about held-out records.
        """
        plan = self._plan
        parted = plan is not None and (plan.subsamples is not None or plan.sharing is not None)
        return on_part(event, plan.split, query.charged_on) if plan is not None and parted else event

    def charge(self, items: list[tuple[ReleaseKey, Event]]) -> None:
        """Charge releases in one transaction; ConsentRefused for a repeated or unplanned release.

        A key with a negative number is refused. Otherwise OTHERS could look charged already, and closing the run would not
        charge the rest of the plan.
        """
        if self._reservation is None:
            raise ConsentRefused(f"party {self._party!r} keeps a party ledger, and this run was not announced to it")
        for each, _ in items:
            if min(each.round, each.part, each.attempt) < 0:
                raise ConsentRefused(
                    f"party {self._party!r} was asked for a release of round {each.round}, part {each.part}, attempt "
                    f"{each.attempt}: a number is negative"
                )
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
        """Raise ConsentRefused for a part of a release that differs from the plan. All parts are charged once, together.

        The party compares the terms of its own sum and the number of parts with its plan. Cap, weights, centres and scales may
        depend on released values, so all parts must use those of the first one. The party relies on the coordinator for the
        weights, which bound the shares of all parties together, as in every release of several parties.
        """
        found, part = query.piece(), query.batch
        if found is None or part is None:
            return
        extent, common = found
        pieces = () if self._plan is None else self._plan.solver.pieces(self._plan.problem)
        planned = (share.piece() for piece in pieces for party, share in piece.shares().items() if party == self._party)
        if None not in query.events() and any(own is not None and own[0] == extent for own in planned):
            if part.number == 0:
                self._parts.void()
            if self._parts.admit(Frame(None, None, common), ()) in (Answer.NEW, Answer.COVERED):
                return
        raise ConsentRefused(
            f"party {self._party!r} was asked for a part of a release that the job's plan does not contain. All parts "
            "must be as planned, since they are charged together"
        )

    def _due(self, query: Query, key: ReleaseKey) -> list[tuple[ReleaseKey, Event]]:
        """Return the charges for a query. A pass over disjoint batches is charged once, with its first batch.

        A batch that does not continue the same pass under the same event is charged separately. With seeded noise, two more
        kinds of batch are not charged again: a repeated batch, and the first batch that a restarted party is asked for.
        """
        events, batch, first = query.events(), query.batch, query.first_part(self._party)
        if batch is not None and None not in events:
            frame, number = Frame(query.subsample, events, replace(batch, number=0)), batch.number
            if number and self._batches.admit(frame, [number], after=number - 1) is Answer.COVERED:
                return []
            restarted = number and self._repeats and self._made and None not in self._batches
            self._batches.renew(frame, [number])
            if restarted:
                return []
        return [(replace(key, part=first + k), event) for k, event in enumerate(events) if event is not None]
