"""Choice of SkGD's record cap during a run, from releases made once after the early passes.

The releases are those of vfl.solvers.releases.excess, and `Shares` plans their events. The
choice is post-processing. The cap changes only between two passes, each of which is charged for its own cap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.solvers.blocks.shares import Shares
from vfl.solvers.releases.excess import chosen as widened
from vfl.solvers.releases.excess import sums_of
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfl.messages import Query
    from vfl.solvers.blocks.presence import Presence
    from vfl.solvers.blocks.visits import Walk
    from vfl.solvers.protocol import Released
    from vfl.solvers.skgd import SkGD
    from vfl.types import Vector


def choose_cap(solver: SkGD, walk: Walk, number: int, present: Presence, w: Vector) -> Generator[Query, Released, None]:
    """Choose the record cap by releases made once, between the early passes and the others.

    w : as in `Presence.put`.
    """
    if walk.measured:
        return
    early = record_defaults.early_passes(walk.n_passes)
    if number < early:
        if solver.excess_share and 2 * number >= early:
            walk.settled.setdefault(number, w.copy())
        return
    walk.measured = True
    yield from _by_excess(solver, walk, present, w)


def _by_excess(solver: SkGD, walk: Walk, present: Presence, w: Vector) -> Generator[Query, Released, None]:
    """Widen the cap if sums of what it cuts show a bias above the noise of a wider cap. Keep it after the loss of a party.

    The sums are taken at the average of the last early passes, because they would follow the noise of a single iterate.
    """
    events, cap = Shares(solver, walk.problem).excess_events, walk.cap()
    if not events or cap is None or not present.mask.all():
        return
    sums = []
    yield from present.rebuilt(np.mean([*walk.settled.values(), w], axis=0))
    if not present.mask.all():
        w[:] = yield from present.rebuilt(w)
        return
    for query in sums_of(walk.problem.loss, cap.cap, cap.rows, events, walk.problem.layout.n_coordinates):
        released = yield from present.put(query, w)
        if released is None:
            return
        sums.append(np.concatenate(released))
    w[:] = yield from present.rebuilt(w)
    z, count = walk.multipliers[-1]
    walk.factor *= widened(sums, [event.sigma for event in events], 2.0 * z / math.sqrt(count))
