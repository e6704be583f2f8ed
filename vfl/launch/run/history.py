"""History of a run's releases, rebuilt by replaying its schedule on the values in its log.

The log holds only numbers. A schedule is a deterministic function of released values, so replaying the schedule on the log
gives the query, the blocks and the noise of each line. A replay sends no query to a party and charges nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vfl.errors import BudgetExceeded, PartyLost
from vfl.privacy.events import on_part
from vfl.queries import Backward, Descend, Ranges, Select

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from coordinator.rounds import Log
    from vfl.base.columns import Bounds
    from vfl.base.problem import Block
    from vfl.base.types import Vector
    from vfl.measures import Findings
    from vfl.planning import Plan
    from vfl.privacy.events import Event, ReleaseKey
    from vfl.queries import Query
    from vfl.queries.protocol import Released


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """Released sum of clipped gradients over one block, (s,), with noise N(0, σ²) on every entry."""

    block: Block
    values: Vector
    sigma: float


@dataclass(slots=True, eq=False)
class History:
    """History of a run, read from its log.

    charged : charged events, by round. gradients : released gradients, in the order of release.
    chosen : {coordinate of w: how often a private selection chose the coordinate}.
    noise : {coordinate of w: standard deviation of the noise in its last update, before the penalty's prox}, on the scaled
        features. Given only for solvers whose queries carry the rule of the update.
    findings : results of evaluations (releases after training), by name.
    iterates : {party: the party's coordinates of w before each message to it}, for solvers that update one party at a time.
    repeated : number of rounds that were repeated because a process or a party was lost between charge and log.
    left : {round: party that was left out from this round on}.
    seen : {column of a curve whose knots the run chose: stretches in which the column's histogram shows records}.
    whole : True if the schedule used every line of the log.
    """

    charged: list[tuple[Event, ...]] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    chosen: Counter[int] = field(default_factory=Counter)
    noise: dict[int, float] = field(default_factory=dict)
    findings: Mapping[str, Findings] = field(default_factory=dict)
    iterates: dict[str, list[Vector]] = field(default_factory=dict)
    repeated: int = 0
    left: Mapping[int, str] = field(default_factory=dict)
    seen: Mapping[str, tuple[Bounds, ...]] = field(default_factory=dict)
    whole: bool = True


def history(plan: Plan, log: Log, charged: Mapping[ReleaseKey, Event] | None = None) -> History:
    """Return the history of this plan's run. The log of a sealed run gives only the number of rounds.

    charged : {key: event} of all charges in the run's ledger. None assumes that passes under a record cap were charged in the
        plan's order. This assumption is wrong after a loss during the first pass.
    """
    told, passes, attempt, subsample = History(left=log.left), 0, 0, None
    for number, query, released in _asked(plan, log, told):
        if query.subsample != subsample:
            passes, subsample = 0, query.subsample
        if released is None:
            told.charged.append(())
            continue
        if tuple(map(len, released)) != query.sizes():
            told.whole = False
            break
        keys = log.charged[number]
        if keys:  # a process that resumes a run uses a higher attempt for all of its rounds
            told.repeated += keys[0].attempt > attempt
            attempt = keys[0].attempt
        events = [event for event in query.events() if event is not None]
        if isinstance(query, Descend) and query.capped is not None and keys:
            events, passes = [query.capped.price(passes)], passes + 1
        planned = tuple(on_part(event, plan.split, query.charged_on) for event in events[: len(keys)])
        told.charged.append(tuple((charged or {}).get(key, event) for key, event in zip(keys, planned, strict=True)))
        if isinstance(query, Ranges) and query.of_curves and plan.knots:
            told.seen = plan.knots.seen(released)
        if isinstance(query, Select):
            told.chosen[int(released[0][0])] += 1
        told.gradients += _gradients(query, released)
        if query.subsample is None:  # with subsamples, w is a mean of models that each have this noise
            told.noise |= _noise(query)
        if isinstance(query, Descend):
            for party, steps in query.steps.items():
                if any(step.block.start == 0 for step in steps):  # one iterate per pass, however many messages it has
                    told.iterates.setdefault(party, []).append(query.start[party])
    return told


def _asked(plan: Plan, log: Log, told: History) -> Iterator[tuple[int, Query, Released | None]]:
    """Yield (round, query, released values). The values are None if the query was refused or a party was lost."""
    schedule = plan.schedule()
    query = next(schedule)
    for number, answer in enumerate(log.released):
        released = None if number in log.left else answer
        yield number, query, released
        try:
            if number in log.left:
                query = schedule.throw(PartyLost("it was given up", log.left[number]))
            elif released is None:
                query = schedule.throw(BudgetExceeded("refused"))
            else:
                query = schedule.send(released)
        except StopIteration as end:
            told.findings = end.value.findings
            told.whole = number + 1 == len(log.released)
            return
        except (BudgetExceeded, PartyLost):  # the schedule would have ended here without a model
            told.whole = False
            return


def _gradients(query: Query, released: Released) -> Iterator[Gradient]:
    if isinstance(query, Descend):
        parts = [(step.block, step.event) for step in query.ordered()]
    elif isinstance(query, Backward):
        parts = [(block, query.event) for block in query.blocks]  # type: ignore[misc]
    else:
        return
    for (block, event), values in zip(parts, released, strict=True):
        if event is not None:
            yield Gradient(block, values, event.sigma)


def _noise(query: Query) -> Iterator[tuple[int, float]]:
    """Yield (coordinate, σ of the noise in its update). A rule with a `gain` multiplies the update's noise by the gain."""
    for step in query.ordered() if isinstance(query, Descend) else ():
        gain = getattr(step.rule, "gain", None)
        if gain is not None and step.event is not None:
            S = step.block.coordinates
            yield from zip(range(S.start, S.stop), (float(g) * step.event.sigma for g in gain), strict=True)
