"""The round loop: a schedule asks, the executor answers, and whoever watches sees a record of it go by."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from vfl.errors import BudgetExceeded

if TYPE_CHECKING:
    from collections.abc import Generator

    from coordinator.executor import Charges, Executor
    from vfl.messages import Query
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.solvers.protocol import Released

Ended = TypeVar("Ended")


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One query that was answered: what it released and was charged for.

    number : running number of the query, from 0.
    kind : name of the query.
    parties : who answered.
    resets : whether it rebuilt Xw, so that nothing before it matters to the margins.
    released : what they released.
    charges : ((key, event), ...), what was charged for it, and under which keys.
    seconds : from the charge to the last reply. The one field that is not released: time depends on data, a little, and
        is for those who run the job.
    refused : whether the budget of a resumed run no longer paid for it, so that nothing was done.
    """

    number: int
    kind: str
    parties: tuple[str, ...]
    resets: bool
    released: Released
    charges: Charges
    seconds: float
    refused: bool = False

    @property
    def events(self) -> tuple[Event, ...]:
        """What was charged for it, without the keys."""
        return tuple(event for _, event in self.charges)


@dataclass(frozen=True, slots=True)
class Made:
    """All releases of a run are made; it is settled when whoever watches asks for more, having noted the last."""


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """What the first queries of a run released, in an earlier process; None for one that was refused.

    charged : the keys under which each of them was charged.
    rebuilt : number of the last of them that rebuilt Xw.
    n_records : n of that process, None when it did not get that far.
    resumed : whether there was an earlier process.
    """

    released: tuple[Released | None, ...] = ()
    charged: tuple[tuple[ReleaseKey, ...], ...] = ()
    rebuilt: int = 0
    n_records: int | None = None
    resumed: bool = False


def rounds(
    schedule: Generator[Query, Released, Ended], execute: Executor, log: Log | None = None, *, sealed: bool = False
) -> Generator[Round, None, tuple[Ended, bool]]:
    """Run a schedule to its end, one record a query; returns what it ends with, and whether the budget lasted.

    log : what the first queries released in an earlier process: the schedule is told, and nothing is released again.
    sealed : records hold nothing of what the queries return, because it is not noised.

    A budget that ends early (a resumed run has paid for releases that were lost) is thrown into the schedule, which may
    finish with what it has, or ask for something else.
    """
    log = log or Log()
    query, lasted = next(schedule), True
    for number in range(1 << 62):
        start = time.perf_counter()
        try:
            if number < len(log.released):
                known = log.released[number]
                if known is None:
                    execute.refuse()
                released = known
                execute.replay(query, released, margins=number >= log.rebuilt)
            else:
                released, charges = execute(query)
                yield _record(number, query, () if sealed else released, charges, time.perf_counter() - start)
            query = schedule.send(released)
        except StopIteration as end:
            return end.value, lasted
        except BudgetExceeded as error:
            if not log.resumed:  # a plan that does not cover its own run is a defect, never to be smoothed over
                raise
            lasted = False
            if number >= len(log.released):
                kind, parties = type(query).__name__, tuple(query.shares())
                yield Round(number, kind, parties, False, (), (), time.perf_counter() - start, refused=True)
            try:
                query = schedule.throw(error)
            except StopIteration as end:
                return end.value, False
    raise AssertionError("a schedule without end")


def _record(number: int, query: Query, released: Released, charges: Charges, seconds: float) -> Round:
    kind, resets = type(query).__name__, query.target == "reset"
    return Round(number, kind, tuple(query.shares()), resets, released, charges, seconds)
