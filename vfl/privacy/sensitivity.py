"""Sensitivity of a query's releases, computed again from the query itself.

Guarantee. `check` accepts a query only if each event of the query covers the sensitivity that follows from the query's
blocks, clips, bounds and columns. `check` trusts one claim of the sender: that the rows of a record cap are those of the
query's blocks. The executor, a party's record cap (`parties.record_cap`) and the holders of shares check this claim. Executor
and party call `check` on every query, before anything is charged or computed on data. A party also computes the Δ of its own
share. The executor checks that the event of the whole query covers the joint Δ of several parties.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from vfl.errors import PrivacyError
from vfl.messages import (
    Backward,
    Columns,
    Counts,
    Descend,
    Forward,
    Gram,
    Groups,
    Moments,
    Ranges,
    RecordNorms,
    Select,
    Tally,
)
from vfl.messages.kinds import vectors_of
from vfl.privacy import magnitudes
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip, joint_moments

if TYPE_CHECKING:
    from vfl.messages import Block, Query, Step
    from vfl.types import Vector

MOST_CELLS = 1024
"""Largest number of cells of a curve's histogram that a party computes."""


def check(query: Query) -> None:
    """Raise PrivacyError if the parts of a query are inconsistent, or if one of its events claims too small a sensitivity."""
    if isinstance(query, Descend | Backward) and query.capped is not None:
        paid = () if query.capped.paid is None else (query.capped.paid.event,)
        if any(event is not None and type(event) is not Gaussian for event in (*query.events(), *paid)):
            raise PrivacyError("releases under a record cap, and the charge that pays for them, must be Gaussian")
    if isinstance(query, Descend):
        for step in query.ordered():
            _check_step(step)
        for name, start in query.start.items():
            if any(step.block.stop > len(start) for step in query.steps.get(name, ())):
                raise PrivacyError("a query of steps starts from fewer coordinates than the steps change")
        if any(name not in query.start or len(push) != len(query.start[name]) for name, push in query.push.items()):
            raise PrivacyError("a query of steps has a momentum of a different length from its coordinates")
        return
    needed = required(query)
    for event in query.events():
        claimed = getattr(event, "sensitivity", None)
        if claimed is not None and needed is not None:
            cover(claimed, needed)


def cover(claimed: float, needed: float) -> None:
    """Raise PrivacyError unless the claimed sensitivity is at least the needed one."""
    if needed == math.inf:
        raise PrivacyError("only exact integer sums can be released under an event: clip them to a grid")
    if not claimed >= needed:
        raise PrivacyError(f"noise for a sensitivity of {claimed!r} does not cover sums of sensitivity {needed!r}")


def required(query: Query) -> float | None:
    """Return Δ of the joint release of a query.

    inf means that nothing bounds the contribution of one record, None that the query has no sums or its event no sensitivity.
    """
    match query:
        case Backward():
            return _sum(query)
        case Moments():
            return _moments(query)
        case Ranges():
            if any(len(set(indices)) < len(indices) for indices in query.columns.values()):
                raise PrivacyError("a query of histograms names a column twice")
            if not (1 <= query.cells <= MOST_CELLS and (query.of_curves or query.cells == magnitudes.CELLS)):
                raise PrivacyError(
                    f"a histogram has {magnitudes.CELLS} cells, or from 1 to {MOST_CELLS} for a curve, not {query.cells}"
                )
            return magnitudes.sensitivity(sum(map(len, query.columns.values())))
        case Counts():
            most = [query.most.get(party) for party in query.columns]
            if any(len(set(own)) < len(own) for own in query.columns.values()) or not all(
                type(m) is int and m >= 1 for m in most
            ):
                raise PrivacyError(
                    "a query of counts names a coordinate twice, or has no whole number of columns of a party"
                )
            return magnitudes.sensitivity(sum(query.most.values()))
        case Tally():
            return query.statistic.sensitivity
        case Select():
            _check_scores(query)
        case Forward():
            for block, w in query.coordinates.values():
                _fits(block, w)
        case Groups():
            columns = [column for own in query.columns.values() for column, _ in own]
            if len(set(columns)) < len(columns) or any(s < 1 for own in query.columns.values() for _, s in own):
                raise PrivacyError("a query of groups needs different columns, and strides of at least 1")
        case RecordNorms() | Columns():
            for block, centre, scale in query.rows.values():
                _fits(block, centre, scale)
    return None


def check_score(query: Select, w: Vector, n_records: int, party: str) -> None:
    """Raise PrivacyError if a party's scores can move by more than the sensitivity that the scores' rule claims.

    w : (s,) the party's coordinates of the model. n_records : number n of records in the sums.
    """
    if query.event is None:
        return
    if not query.clip.finite:
        raise PrivacyError("scores of sums without a finite clip cannot be selected from under an event")
    rule = query.rules[party]
    contribution = query.clip.sensitivity_of(query, 1) / 2.0
    cover(rule.sensitivity, rule.least(w, contribution, n_records))


@lru_cache(maxsize=2048)
def _check_step(step: Step) -> None:
    # Steps compare by identity, so the cache checks a step only once, even if every pass repeats the step.
    size = step.block.size
    _fits(step.block, step.centre, step.scale, *vectors_of(step.rule))
    if step.event is not None:
        query = Descend(None, {}, {})  # type: ignore[arg-type]  # clips read only the type of the query
        cover(step.event.sensitivity, step.clip.sensitivity_of(query, size))


def _sum(query: Backward) -> float:
    for block, centre, scale in zip(query.blocks, query.centres, query.scales, strict=True):
        _fits(block, centre, scale)
    if query.event is not None and type(query.clip) is Clip and isinstance(query, Gram):
        raise PrivacyError(
            "one charge pays for all products of columns, but the clip 'norm' bounds each sum alone: use another clip"
        )
    Δ = query.clip.sensitivity_of(query, sum(block.size for block in query.blocks))
    # A cap of the weights, or a record cap, bounds a record over all parties. Otherwise each party clips only its own share.
    caps = (getattr(bound, "cap", math.inf) for bound in (query.weighting, query.capped))
    joint = min(caps) <= query.clip.cap or isinstance(query, Gram)
    parties = 1 if joint else len({block.party for block in query.blocks})
    return Δ if parties == 1 else Δ * math.nextafter(math.sqrt(parties), math.inf)


def _moments(query: Moments) -> float:
    if query.reach is None:
        return math.inf
    if {party: len(reach) for party, reach in query.reach.items()} != dict(query.widths):
        raise PrivacyError("a query of moments needs a bound for each of its columns")
    if not all((reach > 0).all() for reach in query.reach.values()):
        raise PrivacyError("a query of moments needs a positive bound for each of its columns")
    with_means = sum(width for party, width in query.widths.items() if query.asks_means(party))
    return joint_moments(with_means, sum(query.widths.values()) - with_means)


def _check_scores(query: Select) -> None:
    if not query.coordinates.keys() == query.centres.keys() == query.scales.keys() == query.rules.keys():
        raise PrivacyError("a selection must name the same parties in all of its fields")
    for party, (block, w) in query.coordinates.items():
        _fits(block, w, query.centres[party], query.scales[party], *vectors_of(query.rules[party]))


def _fits(block: Block, *vectors: Vector) -> None:
    if any(len(vector) != block.size for vector in vectors):
        raise PrivacyError(f"a block of {block.size} columns came with a vector of another length")
