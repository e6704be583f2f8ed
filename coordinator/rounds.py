"""The round loop: a schedule asks, the executor answers, and whoever watches sees a record of it go by."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from vfl.messages import Query
    from vfl.privacy.events import Event
    from vfl.solvers.protocol import Released, Schedule
    from vfl.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One query that was answered. Public: it holds released values only.

    number : running number of the query, from 0.
    kind : name of the query.
    parties : who answered.
    released : what they released.
    events : what was charged for it.
    seconds : from the charge to the last reply.
    """

    number: int
    kind: str
    parties: tuple[str, ...]
    released: Released
    events: tuple[Event, ...]
    seconds: float


def rounds(schedule: Schedule, execute: Callable[[Query], Released]) -> Generator[Round, None, Vector]:
    """Run a schedule to its end, one record a query; returns its w (p,)."""
    released: Released | None = None
    number = 0
    while True:
        try:
            query = schedule.send(released) if released is not None else next(schedule)
        except StopIteration as end:
            w: Vector = end.value
            return w
        start = time.perf_counter()
        released = execute(query)
        seconds = time.perf_counter() - start
        events = tuple(event for event in query.events() if event is not None)
        yield Round(number, type(query).__name__, tuple(query.shares()), released, events, seconds)
        number += 1
