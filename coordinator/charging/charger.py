"""Charging of queries: which charge covers a query's releases, and which releases need a new charge."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from coordinator.charging.budget import Earlier
from vfl.errors import PrivacyError
from vfl.privacy.cover import Answer, Cover, Frame
from vfl.privacy.events import ReleaseKey, on_part
from vfl.privacy.noise import CryptographicNoise
from vfl.queries import Need, Paid
from vfl.queries.passes import counted

if TYPE_CHECKING:
    from vfl.privacy.events import Event
    from vfl.privacy.ledger import Reservation
    from vfl.privacy.noise import NoiseSource
    from vfl.queries import Fold, Query, RecordCap

    Charges = tuple[tuple[ReleaseKey, Event], ...]


class PaidQuery(NamedTuple):
    """A query whose releases are paid for.

    query : a query of a pass names the charge that covers it. key : key of its releases. charges : new charges.
    sample : secret sample that must be drawn again before the query is sent, and the key of its stream; None if there is none.
    """

    query: Query
    key: ReleaseKey
    charges: Charges
    sample: tuple[Query, ReleaseKey] | None


class Charger:
    """Charges the releases of a run's queries before they are made.

    Guarantee. The charges together cover all releases, of lost attempts and earlier processes too (`Cover`):

    - A pass under a record cap is charged once. Each coordinate is released once per charge, under one cap with one scale. A
      query that the last charge does not cover takes the next charge of the plan, which also covers the blocks that follow.
    - A pass over disjoint batches is charged with its first batch. A batch that does not follow the one before is refused.
    - A release that is charged as sampled needs a secret sample of its rate that no release has used: a
      `PoissonSubsampledGaussian` is accounted as if its sample were independent of all others.

    A lost answer may have been released. With private noise, a repetition is another release: it has a new key, takes the next
    charge of a pass, pays again for its batch, and needs a new sample. A charge of an earlier process then covers nothing.
    Seeded noise repeats a release to the bit, so a loss leaves all charges as they were before the query.

    reservation : the reserved budget; None for a run without privacy, which charges nothing.
    noise : source of noise of the run; None for the operating system's source.
    exact : kinds of query that the job declares to be released without noise. Any other release without noise raises
        PrivacyError.
    split : name of the public split of the records; None if every query works on all records.
    earlier : charges of earlier processes of the run.
    held : True if an earlier process charged a pass over batches, and the transport holds all of its releases already.
    """

    def __init__(
        self,
        reservation: Reservation | None,
        *,
        noise: NoiseSource | None = None,
        exact: tuple[type[Query], ...] = (),
        split: str | None = None,
        earlier: Earlier | None = None,
        held: bool = False,
    ) -> None:
        earlier = earlier or Earlier()
        self.noise = noise or CryptographicNoise()
        self._reservation, self._exact, self._split = reservation, exact, split
        self._earlier = dict(earlier.charges)
        self._first, self._asked, self._retries = earlier.attempts, -1, 0
        self._renews = self.noise.private and not held
        self.begin()

    def begin(self) -> None:
        """Start a run or a subsample. A charge covers only releases on one subsample."""
        self._passes, self._batches, self._samples = Cover(), Cover(), Cover()
        self._number = 0  # number of the next charge of a pass
        self._paid: Paid | None = None
        self._sample: tuple[Query, ReleaseKey] | None = None
        self._again = self._redraw = False

    def charge(self, query: Query, number: int) -> PaidQuery:
        """Charge the releases of a query, durably if the budget is durable.

        Raises BudgetExceeded, and PrivacyError for a release that nothing pays for.

        number : number of the query. The same number again repeats the query after a loss.
        """
        self._retries = self._retries + self.noise.private if number == self._asked else 0
        self._asked = number
        key = ReleaseKey(number, attempt=self._first + self._retries)
        self._skip(query, number)
        covers = self._passes.copy(), self._batches.copy(), self._samples.copy()
        self._before = *covers, self._number, self._paid, self._sample
        sample = self._sample_for(query, key)
        try:
            return self._charged(query, key, sample)
        except BaseException:  # no charge was made, so later queries must not rely on it
            self._passes.void()
            self._batches.void()
            raise

    def _charged(self, query: Query, key: ReleaseKey, sample: tuple[Query, ReleaseKey] | None) -> PaidQuery:
        events, query = self._due(query, key)
        if None in events and not isinstance(query, self._exact):
            raise PrivacyError(f"{type(query).__name__} would release without noise, which the job does not declare")
        query.check()
        charges = tuple(
            (replace(key, part=part), on_part(event, self._split, query.charged_on))
            for part, event in enumerate(events)
            if event is not None
        )
        if charges:
            if self._reservation is None:
                raise PrivacyError(f"{type(query).__name__} is to be charged, and nothing was reserved for this run")
            self._reservation.charge(charges)
        return PaidQuery(query, key, charges, sample)

    def lost(self) -> None:
        """Record that the answer to the last query was lost. Its releases may have been made."""
        passes, self._batches, samples, number, paid, sample = self._before  # the next query repeats this batch
        self._again, self._redraw = self._renews, self.noise.private
        if self.noise.private:
            self._passes.void()
        else:
            self._passes, self._samples = passes, samples
            self._number, self._paid, self._sample = number, paid, sample

    def given_up(self, query: Query, number: int) -> None:
        """Record that a lost query is not repeated. Later queries deviate from the plan and get new keys."""
        self.replayed(query, number)
        self._passes.void()
        if query.draws is not None:
            self._samples.void()  # the query's sample was not drawn
        self._first += 1

    def replayed(self, query: Query, number: int) -> ReleaseKey:
        """Record a query that an earlier process sent, and return the key under which its change of the state is repeated."""
        key = ReleaseKey(number, attempt=self._first)
        self._skip(query, number)
        self._draw(query, key)
        self._use(query)
        if query.batch is not None:
            self._batches.renew(_frame(query, query.batch), [query.batch.number])
            self._again = self._renews
        if query.by_pass and query.capped is not None and not self.noise.private:
            self._take(query, query.capped, key)
        return key

    def _skip(self, query: Query, number: int) -> None:
        """Skip the charges that earlier processes made for a query of a pass. Those charges cover no further release."""
        if query.by_pass and (charges := self._earlier.pop(number, 0)):
            self._number += charges
            self._passes.void()

    def _due(self, query: Query, key: ReleaseKey) -> tuple[tuple[Event | None, ...], Query]:
        """Return the events to charge, None for a release without noise, and the query with the charge that covers it."""
        events, batch, cap = query.events(), query.batch, query.capped
        if cap is not None and query.by_pass:
            due, times = self._take(query, cap, key)
            cap = replace(cap, paid=self._paid)
            cap.require_covered(((term.clip, term.event) for term in query.terms()), times)
            return due, replace(query, capped=cap)  # type: ignore[call-arg]
        if cap is not None and any(event is not None for event in events):
            raise PrivacyError(
                "a noised sum under a record cap is charged as a part of its pass: ask for it in a Descend query"
            )
        if cap is None and query.sizes() and not events:
            raise PrivacyError(f"{type(query).__name__} would release values without a charge")
        return (events if batch is None or None in events else self._of_batch(query, batch)), query

    def _take(self, query: Query, cap: RecordCap, key: ReleaseKey) -> tuple[tuple[Event, ...], int]:
        """Record the coordinates that a query of a pass releases, under the charge `_paid`.

        Return the charge's event if the charge is new, and the largest number of releases of one coordinate.
        """
        blocks = [term.block.coordinates for term in query.terms()]
        coordinates, times = counted(j for S in blocks for j in range(S.start, S.stop))
        frame = Frame(query.subsample, None, cap)  # caps compare by identity
        if self._passes.admit(frame, coordinates) is Answer.COVERED:
            return (), times
        self._passes.renew(frame, coordinates)
        self._paid = Paid(key, cap.price(self._number))
        self._number += 1
        return (self._paid.event,), times

    def _of_batch(self, query: Query, batch: Fold) -> tuple[Event | None, ...]:
        frame, number = _frame(query, batch), batch.number
        again, self._again = self._again, False
        if number == 0:
            self._batches.renew(frame, [number])
            return query.events()
        if self._batches.admit(frame, [number], after=number - 1) is not Answer.COVERED:
            raise PrivacyError("a batch does not follow the previous batch of its pass, so the batch was not charged")
        return query.events() if again else ()

    def _draw(self, query: Query, key: ReleaseKey) -> None:
        """Record the sample that a query draws, if any, and the key of the stream from which it is drawn."""
        if query.draws is not None:
            self._samples.renew(Frame(None, {query.draws}, None), ())
            self._sample, self._redraw = (query, key), False

    def _use(self, query: Query) -> Answer | None:
        """Use the sample for a query. Return None for a query that is not charged as sampled."""
        if not (rates := query.sampled):
            return None
        if query.need is not Need.WEIGHTS or len(query.events()) > 1:
            raise PrivacyError(f"{type(query).__name__} is charged as sampled, and is no single sum over a sample")
        return self._samples.admit(Frame(None, rates, None), ["use"])

    def _sample_for(self, query: Query, key: ReleaseKey) -> tuple[Query, ReleaseKey] | None:
        """Return the sample to draw again before this attempt at a query; None if the query needs no new sample."""
        self._draw(query, key)
        answer = self._use(query)
        if answer is None:
            return None
        redraw, self._redraw = self._redraw, False
        if answer is Answer.COVERED:
            return None
        if answer is not Answer.TWICE or self._sample is None:
            self._samples.void()
            raise PrivacyError(f"{type(query).__name__} is charged as sampled, and no sample of its rate was drawn")
        if not redraw:
            raise PrivacyError(f"{type(query).__name__} would use a secret sample that another release has used")
        sample, drawn = self._sample
        self._draw(sample, replace(drawn, attempt=drawn.attempt + 1))
        self._use(query)
        return self._sample


def _frame(query: Query, batch: Fold) -> Frame:
    """Return the frame of a pass over batches: all of its batches release under the same events."""
    return Frame(query.subsample, query.events(), replace(batch, number=0))
