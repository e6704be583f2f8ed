"""Execution of one query: charge it, send it to the parties, and update the margins."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from coordinator.states.linear_predictors import StateLost
from vfl.errors import BudgetExceeded, PartyLost, PrivacyError
from vfl.privacy.mechanisms import release

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from coordinator.charging.charger import Charger, Charges
    from coordinator.secure import Transport
    from coordinator.states.iterate import Iterate
    from coordinator.states.linear_predictors import LinearPredictors
    from coordinator.states.shards import LinearPredictorShards
    from vfl.privacy.events import ReleaseKey
    from vfl.queries import Query, Reply
    from vfl.queries.protocol import Released

    State: TypeAlias = LinearPredictors | LinearPredictorShards | Iterate
    """State of a run between its queries: margins and labels, or the public model alone."""


class NoAnswer(Exception):
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
    release. A caller that repeats a query after `NoAnswer` makes a new attempt, with new noise and a new charge, on the
    margins from before the query. Seeded noise is equal in each attempt, so all attempts then make the same release.

    margins : the state that queries read and change: margins, or only the public model (coordinator.states.linear_predictors).
    charger : charges each query, and decides which releases need a new charge.
    expand : True to send every step of a `Descend` query as its own query, for trust settings that do not allow `Descend`.
    together : with `expand`, True to send all steps at equal margins as one query, in which each block has its own part number.
    turn : function from the number of a subsample to the state at the start of its training; None for a run without
        subsamples. `margins` is the state of the first subsample.
    reload : function that resets `margins` to the start of the run, after a part of them was lost; None if none can be lost.
    """

    def __init__(
        self,
        transport: Transport,
        margins: State,
        charger: Charger,
        *,
        expand: bool = False,
        together: bool = False,
        turn: Callable[[int], State] | None = None,
        reload: Callable[[], None] | None = None,
    ) -> None:
        self._transport, self._margins, self._charger = transport, margins, charger
        self._expand, self._together = expand, together
        self._turn, self._reload = turn, reload
        self._subsample = None if turn is None else 0
        self._round = 0
        self.lost_any = False
        self._left: set[str] = set()
        # Changes of the state by answered queries since the last reset, and the number applied; None if the state is lost.
        self._changes: list[tuple[Query, ReleaseKey]] = []
        self._applied: int | None = 0

    def __call__(self, query: Query) -> tuple[Released, Charges]:
        """Charge a query, send it, and return released values and charges.

        Raises `NoAnswer` if a party or a part of the state is lost. The next call then rebuilds a lost state first, from
        released values. This releases nothing.
        """
        try:
            self._turn_to(query)
            self._catch_up()
        except PartyLost as still:
            raise NoAnswer(still, ()) from still
        number, self._round = self._round, self._round + 1
        query, key, charges, sample = self._charger.charge(query, number)
        before: Any = None
        try:
            if sample is not None:
                self._repeat(*sample)
                self._keep(*sample)
            before = self._margins.state()
            released = self._answered(query, key)
        except PartyLost as failed:
            self._charger.lost()
            self._round, self.lost_any = number, True
            lost = self._undone(failed, before)
            raise NoAnswer(lost, charges) from lost
        self._keep(query.replay(released), key)
        return released, charges

    def replay(self, query: Query, released: Released) -> None:
        """Note the change of the state that a query of an earlier process made. Nothing is released or charged.

        The next call repeats all changes since the last reset, without the parties that were given up in the meantime.
        """
        self._turn_to(query)
        self._note(query.replay(released), self._charger.replayed(query, self._round))
        self._round += 1

    def refuse(self) -> NoReturn:
        """Count a query that did not fit the budget in an earlier process of this run, and raise BudgetExceeded again."""
        self._round += 1
        raise BudgetExceeded("this release did not fit the budget in an earlier process of this run")

    def give_up(self, query: Query, party: str) -> None:
        """Count a query that stays unanswered because its party was lost."""
        self._left.add(party)
        self._charger.given_up(query, self._round)
        self._round += 1

    def newly_opened(self) -> Released:
        """Return the products of columns that the transport has opened since the last call (`Transport.newly_opened`)."""
        return self._transport.newly_opened()

    def _answered(self, query: Query, key: ReleaseKey) -> Released:
        if (drawn := self._drawn(query, key)) is not None:
            return drawn
        if (statistic := query.tallied) is not None and not self._margins.shares(query):
            sums, (event,) = self._margins.tally(query), query.events()  # type: ignore[arg-type]  # it has a statistic
            grid, noise = statistic.grid / self._margins.units, self._charger.noise
            return (release(sums, grid, event, noise, key, statistic.sensitivity),)  # type: ignore[arg-type]
        ask = partial(self._ask, key=key)
        return query.expanded(ask, together=self._together) if self._expand else query.combine(ask(query))

    def _drawn(self, query: Query, key: ReleaseKey) -> Released | None:
        """Return the releases of a query that the coordinator answers itself; None for any other query."""
        if (answer := query.drawn(self._margins.counts, self._charger.noise, key)) is None:
            return None
        self._margins.absorb(query.target, answer[1])
        return answer[0]

    def _ask(self, query: Query, key: ReleaseKey, without: Collection[str] = frozenset()) -> dict[str, Reply]:
        shares = {party: share for party, share in self._margins.shares(query).items() if party not in without}
        replies = dict(self._transport.ask(shares, self._margins.records(query), key))
        self._margins.take(query, replies)
        return replies

    def _turn_to(self, query: Query) -> None:
        """Replace the state if the query starts a new subsample. PrivacyError if only one of run and query has subsamples."""
        if (self._turn is None) != (query.subsample is None):
            raise PrivacyError("a query names a subsample if the run trains on subsamples, and only then")
        if self._turn is not None and query.subsample is not None and query.subsample != self._subsample:
            self._margins = self._turn(query.subsample)
            self._subsample, self._changes, self._applied = query.subsample, [], 0
            self._charger.begin()

    def _keep(self, again: Query | None, key: ReleaseKey) -> None:
        """Note a change that the state has, if the state can be lost."""
        if self._reload is not None:
            self._note(again, key)
            self._applied = len(self._changes)

    def _note(self, again: Query | None, key: ReleaseKey) -> None:
        """Note a query that repeats a change of the state; None for no change. A reset of Xw makes earlier changes obsolete.

        Weightings from before a reset are then repeated on the margins after the reset. This is harmless: SVRG replaces the
        vectors that it keeps after each reset of Xw, and SCD, which relies on vectors kept earlier, never resets Xw.
        """
        if again is None:
            return
        if again.target == "reset":
            self._changes = [change for change in self._changes if change[0].target not in ("add", "reset")]
        self._changes.append((again, key))

    def _catch_up(self) -> None:
        """Repeat the changes that the state lacks after a loss, or in a new process. Nothing is released or charged."""
        if self._applied is None:
            if self._reload is None:
                raise StateLost("the state of this run cannot be rebuilt; continue with: vfl resume")
            self._reload()
            self._applied = 0
        while self._applied < len(self._changes):
            before = self._margins.state()
            try:
                self._repeat(*self._changes[self._applied])
            except PartyLost as failed:
                raise self._undone(failed, before) from failed
            self._applied += 1
        if self._reload is None:
            self._changes, self._applied = [], 0

    def _repeat(self, again: Query, key: ReleaseKey) -> None:
        if self._drawn(again, key) is None:
            self._ask(again, key, without=self._left)

    def _undone(self, lost: PartyLost, before: Any) -> PartyLost:
        """Undo a failed query. Return `lost`, or StateLost if the state was lost, too."""
        try:
            if isinstance(lost, StateLost):
                raise lost
            self._margins.restore(before)
        except StateLost as gone:
            self._applied = None
            return gone
        return lost
