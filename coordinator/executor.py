"""Execution of one query: charge it, send it to the parties, and update the margins."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from coordinator.charging.folds import Folds
from coordinator.charging.passes import Passes, paid_by_pass
from coordinator.charging.samples import Samples
from coordinator.states.margins import StateLost
from vfl.errors import BudgetExceeded, PartyLost, PrivacyError
from vfl.messages import Backward, Descend, Forward, Local, Sample, Tally
from vfl.privacy.events import ReleaseKey, on_part
from vfl.privacy.mechanisms import release
from vfl.privacy.noise import CryptographicNoise
from vfl.privacy.sensitivity import check

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from coordinator.secure import Transport
    from coordinator.states.margins import State
    from vfl.messages import Query, Reply
    from vfl.privacy.events import Event
    from vfl.privacy.ledger import Reservation
    from vfl.privacy.noise import NoiseSource
    from vfl.solvers.protocol import Released
    from vfl.types import Vector

    Charges = tuple[tuple[ReleaseKey, Event], ...]


class Unanswered(Exception):
    """Raised if a party is lost during a query. The query has no result, and its charges stay.

    lost : error that names the party and the cause. charges : charges of the failed attempt.
    """

    def __init__(self, lost: PartyLost, charges: Charges) -> None:
        super().__init__(str(lost))
        self.lost = lost
        self.charges = charges


class Executor:
    """Executor of queries. Every release is charged before any party is asked for it, durably if the budget is durable.

    After a failure, a charged release stays charged. This class repeats nothing, because a second attempt is a second
    release. A caller that repeats a query after `Unanswered` makes a new attempt, with new noise and a new charge, on the
    margins from before the query. Seeded noise is equal in each attempt, so all attempts then make the same release.

    margins : the state that queries read and change: margins, or only the public model (coordinator.states.margins).
    reservation : the reserved budget; None for a run without privacy, which charges nothing.
    noise : source of noise for queries that the coordinator answers itself; None for the operating system's source.
    unnoised : kinds of query that the job declares to be released without noise. Any other release without noise raises
        PrivacyError.
    expand : True to send every step of a `Descend` query as its own query, for trust settings that do not allow `Descend`.
    together : with `expand`, True to send all steps at equal margins as one query, in which each block has its own part number.
    split : name of the public split of the records; None if every query works on all records.
    attempts : function from a round to its attempt number, which is above 0 if an earlier process may have made the release.
    earlier : function from a round to the number of charges that earlier processes made.
    reload : function that resets `margins` to the start of the run, after a part of them was lost; None if none can be lost.
    held : True if an earlier process charged a pass, and the transport holds all releases of this pass already.
    turn : function from the number of a subsample to the state at the start of its training; None for a run without
        subsamples. `margins` is the state of the first subsample.
    """

    def __init__(
        self,
        transport: Transport,
        margins: State,
        reservation: Reservation | None,
        *,
        noise: NoiseSource | None = None,
        unnoised: tuple[type[Query], ...] = (),
        expand: bool = False,
        together: bool = False,
        split: str | None = None,
        attempts: Callable[[int], int] = lambda _: 0,
        earlier: Callable[[int], int] = lambda _: 0,
        reload: Callable[[], None] | None = None,
        held: bool = False,
        turn: Callable[[int], State] | None = None,
    ) -> None:
        self._transport = transport
        self._margins = margins
        self._reservation = reservation
        self._noise = noise or CryptographicNoise()
        self._unnoised = unnoised
        self._expand, self._together = expand, together
        self._split = split
        self._attempts = attempts
        self._earlier = earlier
        self._counted = -1
        self._round = 0
        self._retries = 0  # of the current query
        self._n_given_up = 0  # queries that stayed unanswered
        self.lost_any = False
        self._held, self._turn = held, turn
        self._subsample = None if turn is None else 0
        self._reload = reload
        self._begin()
        self._left: set[str] = set()
        self._stale = False

    def _begin(self) -> None:
        """Drop earlier charges, at the start of a run or subsample. A charge covers only releases on one subsample."""
        self._folds = Folds(self._noise.private and not self._held)
        self._passes = Passes(self._noise.private)
        self._samples = Samples(self._noise.private)
        self._effects: list[tuple[Query, ReleaseKey]] = []

    def _turn_to(self, query: Query) -> None:
        """Replace the state if the query starts a new subsample. PrivacyError if only one of run and query has subsamples."""
        if (self._turn is None) != (query.subsample is None):
            raise PrivacyError("a query names a subsample if the run trains on subsamples, and only then")
        if self._turn is not None and query.subsample is not None and query.subsample != self._subsample:
            self._margins = self._turn(query.subsample)
            self._subsample, self._stale = query.subsample, False
            self._begin()

    def replay(
        self, query: Query, released: Released, *, margins: bool = True, gone: Collection[str] = frozenset()
    ) -> None:
        """Repeat the changes that a query of an earlier process made to the margins. Nothing is released or charged.

        gone : parties that were given up later. They are not asked, and a later query undoes their changes.
        margins : False if a later reset undid the change of Xw. Changes of vectors that are kept by name are always repeated.
        """
        key = ReleaseKey(self._round)
        self._turn_to(query)
        self._count_earlier(query)
        self._round += 1
        self._folds.replayed(query)
        self._passes.replayed(query, key)
        again = query.replay(released)
        if again is None or not (margins or again.target not in ("add", "reset")):
            return
        self._note(again, key)
        if isinstance(again, Local):
            self._answer(again, key)
        else:
            self._ask(again, key, without=gone)

    def refuse(self) -> NoReturn:
        """Count a query that did not fit the budget in an earlier process of this run, and raise BudgetExceeded again."""
        self._round += 1
        raise BudgetExceeded("this release did not fit the budget in an earlier process of this run")

    def give_up(self, query: Query, party: str) -> None:
        """Count a query that stays unanswered because its party was lost.

        Later queries deviate from the plan and get new keys.
        """
        self._left.add(party)
        self._count_earlier(query)
        self._folds.replayed(query)
        self._passes.given_up(query, ReleaseKey(self._round))
        self._round += 1
        self._retries = 0
        self._n_given_up += 1

    def __call__(self, query: Query) -> tuple[Released, Charges]:
        """Send a query. Return released values and charges. Raises `Unanswered` if a party or a part of the state is lost.

        If a part of the state was lost in an earlier query, the state is first rebuilt from released values. This releases
        nothing.
        """
        try:
            self._turn_to(query)
            if self._stale:
                self._rebuild()
        except PartyLost as still:
            raise Unanswered(still, ()) from still
        attempt = self._attempts(self._round) + self._retries + self._n_given_up
        key = ReleaseKey(self._round, attempt=attempt)
        self._count_earlier(query)
        self._round += 1
        sample = self._samples.next_for(query)
        query, charges = self._charge(query, key)
        before: Any = None
        try:
            if sample is not None:
                self._draw(*sample)
                self._note(*sample)
            before = self._margins.state()
            released = self._asked(query, key)
        except PartyLost as failed:
            self.lost_any = True
            lost = self._undone(failed, before)
            self._folds.lost()
            self._passes.lost()
            self._samples.lost()
            self._round -= 1
            self._retries += self._noise.private
            raise Unanswered(lost, charges) from lost
        self._retries = 0
        if (again := query.replay(released)) is not None:
            self._note(again, key)
        return released, charges

    def newly_opened(self) -> Released:
        """Return the products of columns that the transport has opened since the last call (`Transport.newly_opened`)."""
        return self._transport.newly_opened()

    def _note(self, again: Query, key: ReleaseKey) -> None:
        """Record a query's change of the state, so that the state can be rebuilt. A reset of Xw makes earlier changes obsolete.

        A rebuild repeats weightings from before a reset on the margins after the reset. This is harmless: SVRG replaces the
        vectors that it keeps after each reset of Xw, and SCD, which relies on vectors kept earlier, never resets Xw.
        """
        if self._reload is None:
            return
        if again.target == "reset":
            self._effects = [effect for effect in self._effects if effect[0].target not in ("add", "reset")]
        self._effects.append((again, key))

    def _undone(self, lost: PartyLost, before: Any) -> PartyLost:
        """Undo a failed query. Return `lost`, or StateLost if the state was lost, too."""
        try:
            if isinstance(lost, StateLost):
                raise lost
            self._margins.restore(before)
        except StateLost as gone:
            self._stale = True
            return gone
        return lost

    def _rebuild(self) -> None:
        """Load the state again, and repeat the changes of all answered queries. Nothing is released or charged.

        Raises StateLost if repeating a change would draw noise again under a used charge. Only `vfl resume` may draw it again.
        """
        charged = any(isinstance(again, Local) and again.events() for again, _ in self._effects)
        if self._reload is None or (charged and self._noise.private):
            raise StateLost("the state of this run cannot be rebuilt; continue with: vfl resume")
        self._reload()
        for again, key in self._effects:
            if isinstance(again, Local):
                self._draw(again, key)
            else:
                self._ask(again, key, without=self._left)
        self._stale = False

    def _count_earlier(self, query: Query) -> None:
        """Skip the charges that earlier processes made for a query of a pass. This happens once per round."""
        if self._counted < self._round:
            self._counted = self._round
            if paid_by_pass(query) is not None and (charges := self._earlier(self._round)):
                self._passes.earlier(charges)

    def _asked(self, query: Query, key: ReleaseKey) -> Released:
        if isinstance(query, Local):
            return self._answer(query, key)
        if isinstance(query, Tally) and not self._margins.shares(query):
            return (self._tally(query, key),)
        if self._expand and isinstance(query, Descend):
            return self._expanded(query, key)
        return query.combine(self._ask(query, key))

    def _tally(self, query: Tally, key: ReleaseKey) -> Vector:
        statistic, sums = query.statistic, self._margins.tally(query)
        return release(sums, statistic.grid, query.event, self._noise, key, statistic.sensitivity)

    def _answer(self, query: Local, key: ReleaseKey) -> Released:
        released = self._draw(query, key)
        if isinstance(query, Sample):
            self._samples.drawn(query, key)
        return released

    def _draw(self, query: Local, key: ReleaseKey) -> Released:
        released, pieces = query.answer(self._margins.counts, self._noise, key)
        self._margins.absorb(query.target, pieces)
        return released

    def _charge(self, query: Query, key: ReleaseKey) -> tuple[Query, Charges]:
        """Charge a query's releases, and return the query. A query that the charge of its pass covers names this charge."""
        self._passes.begin()
        events: tuple[Event | None, ...]
        if (by_pass := paid_by_pass(query)) is not None:
            events, query = self._passes.charged(*by_pass, key)
        elif isinstance(query, Backward) and query.capped is not None and query.event is not None:
            raise PrivacyError(
                "a noised sum under a record cap is charged as a part of its pass: ask for it in a Descend query"
            )
        elif isinstance(query, Descend) and query.capped is not None:
            events = query.events()
        else:
            events = self._folds.charged(query)
        if any(event is None for event in events) and not isinstance(query, self._unnoised):
            raise PrivacyError(f"{type(query).__name__} would release without noise, which the job does not declare")
        check(query)
        charges = tuple(
            (replace(key, part=part), on_part(event, self._split, query.charged_on))
            for part, event in enumerate(events)
            if event is not None
        )
        if charges:
            if self._reservation is None:
                raise PrivacyError(f"{type(query).__name__} is to be charged, and nothing was reserved for this run")
            try:
                self._reservation.charge(charges)
            except BaseException:
                self._folds.unpaid()
                self._passes.unpaid()
                raise
        return query, charges

    def _ask(self, query: Query, key: ReleaseKey, without: Collection[str] = frozenset()) -> dict[str, Reply]:
        shares = {party: share for party, share in self._margins.shares(query).items() if party not in without}
        replies = dict(self._transport.ask(shares, self._margins.records(query), key))
        self._margins.take(query, replies)
        return replies

    def _expanded(self, query: Descend, key: ReleaseKey) -> Released:
        """Run a `Descend` query as single queries with the same releases and keys: per step a sum, the update, and a `Forward`.

        If the transport releases blocks together, all steps at equal margins share one `Backward` query.
        """
        released: list[Vector] = []
        w = {party: start.copy() for party, start in query.start.items()}
        pending: list[Forward] = []
        own: dict[str, Any] = {"knots": query.knots, "subsample": query.subsample}
        ordered = query.ordered()
        at_once = max(1, len(ordered)) if self._together and not query.sweep else 1
        for part in range(0, len(ordered), at_once):
            steps = ordered[part : part + at_once]
            blocks, centres, scales = zip(*((step.block, step.centre, step.scale) for step in steps), strict=True)
            clip, event = steps[0].clip, steps[0].event  # equal under a record cap
            backward = Backward(query.weighting, blocks, centres, scales, clip, event, part, capped=query.capped, **own)
            released += backward.combine(self._ask(backward, key))
            for step, u in zip(steps, released[part:], strict=True):
                party = step.block.party
                delta = step.moved(w[party], u, query.push.get(party))
                w[party][step.block.local] += delta
                pending.append(Forward({party: (step.block, delta)}, shifts={party: step.shift(delta)}, **own))
            if query.sweep:
                self._ask(pending.pop(), key)
        for forward in pending:
            self._ask(forward, key)
        return tuple(released)
