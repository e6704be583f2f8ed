"""The round loop: it gives each query of a schedule to the executor, yields records of answers, and handles lost parties."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from coordinator.executor import NoAnswer
from coordinator.states.linear_predictors import StateLost
from vfl.errors import BudgetExceeded, PartyLost

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from coordinator.charging.charger import Charges
    from coordinator.executor import Executor
    from coordinator.secure import Transport
    from vfl.job.site import Faults
    from vfl.network.messages import Greeting
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.queries import Query
    from vfl.queries.protocol import Released


Ended = TypeVar("Ended")


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Record of one answered query: its releases and its charges.

    number : running number of the query, from 0.
    kind : name of the query's class; LEFT if a party was given up during the query, which then released nothing.
    parties : names of the parties that answered.
    released : released values of the parties.
    charges : ((key, event), ...), the charges with their keys.
    seconds : time from the charge to the last reply, for operators. Only this field may depend on unreleased data.
    refused : True if the remaining budget of a resumed run did not cover the query, which then released nothing.
    products : releases of later queries that were opened and charged with this query (vfl.secure.gram), for the log of the run.
    """

    number: int
    kind: str
    parties: tuple[str, ...]
    released: Released
    charges: Charges
    seconds: float
    refused: bool = False
    products: Released = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """Return the charged events, without keys."""
        return tuple(event for _, event in self.charges)


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """Event: an attempt at a query failed because a party was lost. The charges of the attempt are not refunded.

    number : number of the query. party : the lost party. charges : ((key, event), ...) of the attempt. why : the cause.
    """

    number: int
    party: str
    charges: Charges
    why: str


LEFT = "Left"
"""Kind of a round during which a party was given up."""


@dataclass(frozen=True, slots=True)
class ReleasesComplete:
    """Event: all releases of a run have been made. The next request for an event closes the reservation."""


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """Log of an earlier process of a run: the releases of each query, or None for a query that the budget did not cover.

    charged : keys of the charges of each query.
    n_records : n in that process; None if the process ended before n was known.
    left : {number of a query: the party that was given up during the query}.
    flags : flags from that process, for the certificate.
    resumed : True if there was an earlier process.
    products : `Round.products` of the query that released products; () without such a query.
    """

    released: tuple[Released | None, ...] = ()
    charged: tuple[tuple[ReleaseKey, ...], ...] = ()
    n_records: int | None = None
    left: Mapping[int, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    resumed: bool = False
    products: Released = ()


LOSSES_A_QUERY = 3
"""Largest number of losses during one query after which the query is repeated. Each attempt is charged."""


class Recovery:
    """Applies the job's policy for lost parties.

    welcome : called with a returning party and its greeting, before any query; it raises an error if the greeting differs.
    keep : label party, which also holds the intercept. No run can continue without it.
    given_up : the parties without which the run continues, in the order of their loss.
    """

    def __init__(
        self, transport: Transport, faults: Faults, welcome: Callable[[str, Greeting], None], *, keep: str
    ) -> None:
        self._transport = transport
        self._faults = faults
        self._welcome = welcome
        self._keep = keep
        self.given_up: list[str] = []

    def restored(self, lost: PartyLost, losses: int) -> bool:
        """Return True if the party is back and the query can be repeated; False to continue without the party.

        A party that was given up is never restored, even if it shares a process with a party that is restored.

        losses : number of failed attempts at the query. Raises PartyLost if the run must end; it can be resumed later.
        """
        policy, party = self._faults.on_party_lost, lost.party
        if isinstance(lost, StateLost) and policy != "abort" and losses <= LOSSES_A_QUERY:
            return True  # the next attempt waits for the state, and rebuilds it
        if not party or policy == "abort":
            raise lost
        why = f"came back {losses - 1} times and was lost again over the same query"
        if losses <= LOSSES_A_QUERY:
            try:
                # Restore all remaining parties of a lost process at once, so that the loss costs one attempt.
                remaining = [name for name in self._transport.together(party) if name not in self.given_up]
                back = {name: self._transport.revive(name, self._faults.wait_timeout_s) for name in remaining}
            except PartyLost as still:
                why = f"did not come back within {self._faults.wait_timeout_s:g} s ({still})"
            else:
                for name, greeting in back.items():
                    self._welcome(name, greeting)
                return True
        if policy == "skip" and party != self._keep:
            self.given_up.append(party)
            return False
        raise PartyLost(
            f"party {party!r} was lost and {why}; once it runs again, continue with: vfl resume", party
        ) from lost


def rounds(
    schedule: Generator[Query, Released, Ended],
    execute: Executor,
    log: Log | None = None,
    *,
    sealed: bool = False,
    recovery: Recovery | None = None,
) -> Generator[Round | Lost, None, tuple[Ended, bool]]:
    """Run a schedule to its end, and yield one record per query. Return the schedule's result, and True if the budget lasted.

    log : releases of the first queries, from an earlier process. The schedule receives them, and nothing is released again.
    sealed : True to leave answers out of the records, because they have no noise.
    recovery : policy for lost parties; None to end the run at the first loss.

    Lost releases stay charged, so the budget may run out early. BudgetExceeded is then thrown into the schedule, which may
    return its current result or yield another query. If a party is given up, PartyLost is thrown into the schedule. A schedule
    that does not handle PartyLost ends the run.
    """
    log = log or Log()
    query, lasted = next(schedule), True
    for number in range(1 << 62):
        start = time.perf_counter()
        try:
            if number in log.left:
                execute.give_up(query, log.left[number])
                query = schedule.throw(PartyLost("it was given up", log.left[number]))
            elif number < len(log.released):
                known = log.released[number]
                if known is None:
                    execute.refuse()
                execute.replay(query, known)
                query = schedule.send(known)
            else:
                answer = yield from _answered(query, number, execute, recovery)
                seconds = time.perf_counter() - start
                if isinstance(answer, PartyLost):
                    query = schedule.throw(answer)
                    yield Round(number, LEFT, (answer.party,), (), (), seconds)  # the run continues
                else:
                    released, charges = answer
                    kind, parties = type(query).__name__, tuple(query.shares())
                    shown, products = ((), ()) if sealed else (released, execute.newly_opened())
                    yield Round(number, kind, parties, shown, charges, seconds, products=products)
                    query = schedule.send(released)
        except StopIteration as end:
            return end.value, lasted
        except BudgetExceeded as error:
            # Without losses or a resumption, the plan must cover the run. A shortfall is then a defect, so raise it.
            if not (log.resumed or execute.lost_any):
                raise
            lasted = False
            if number >= len(log.released):
                kind, parties = type(query).__name__, tuple(query.shares())
                yield Round(number, kind, parties, (), (), time.perf_counter() - start, refused=True)
            try:
                query = schedule.throw(error)
            except StopIteration as end:
                return end.value, False
    raise AssertionError("a schedule without end")


def _answered(
    query: Query, number: int, execute: Executor, recovery: Recovery | None
) -> Generator[Lost, None, tuple[Released, Charges] | PartyLost]:
    """Repeat a query until it is answered. Return its releases and charges, or the PartyLost of a party that was given up."""
    losses = 0
    while True:
        try:
            return execute(query)
        except NoAnswer as failed:
            losses += 1
            yield Lost(number, failed.lost.party, failed.charges, str(failed.lost))
            if recovery is None:
                raise failed.lost from None
            if not recovery.restored(failed.lost, losses):
                execute.give_up(query, failed.lost.party)
                return failed.lost
