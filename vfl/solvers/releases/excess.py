"""Release of sums of the gradient parts that the record cap cuts off, between two passes. Large sums call for a wider cap.

Guarantee. `Excess` bounds each record's contribution to one sum over all coordinates by norm 1 (docs/mathematics.md has the
proof). So replacing a record moves the sum by at most 2, and by `Clip(1, p).sensitivity` with rounding to the grid.

A cap biases the fixed point of the iteration unless the cut parts cancel. For logistic loss the cut parts cancel if the model
is right. So the sum of the cut parts shows the bias, whereas the number of cut records does not. Choosing the cap from the
released sums is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.kernels.geometry import capped, record_limits
from vfl.privacy.calibration import noise_multiplier, split
from vfl.privacy.geometry import Clip
from vfl.queries import Backward, Weighting
from vfl.queries.protocol import require_bearable
from vfl.solvers.releases.once import OneTime, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.parts import Scaled
    from vfl.queries.protocol import Exchange
    from vfl.solvers.releases.once import Run

FACTORS = (1.0, 1.6, 2.6)
"""Candidates for the cap, in units of the current cap."""
FIRST = 0.8
"""Share of the sums' budget for the first sum, between caps of 1 and 1.6 units. The second sum gets the rest."""
SURE = 1.0
"""A coordinate's threshold is √(2 ln p) + SURE noise deviations; √(2 ln p) is the typical maximum of p normal variables."""
RARE = 0.005
"""Probability with which the norm of pure noise exceeds the threshold on norms."""
GOES_ON = 0.2
"""Smallest share of the squared bias that is assumed to remain with the next wider cap."""
DEARER = 2.0
"""Weight of the error due to noise, relative to the squared bias."""


@dataclass(frozen=True, slots=True)
class Excess(Weighting):
    """Weights r_i = (ρ_i(wide) − ρ_i(narrow))/(wide − narrow). ρ_i(C) is the residual of record i under the record cap C.

    Guarantee. |r_i|·‖x_i‖ ≤ 1 for all margins, labels and records, with the norms ‖x_i‖² that the coordinator keeps.

    narrow, wide : two record caps, 0 < narrow < wide.
    """

    loss: Loss
    narrow: float
    wide: float

    cap: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.narrow < self.wide < math.inf:
            raise ValueError(f"a cap of {self.wide!r} is not wider than one of {self.narrow!r}")

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and {}, since this weighting keeps no per-record state."""
        r, norms = self.loss.derivative(margins, labels), kept["norms"]
        within = [capped(r, record_limits(norms, cap), self.loss.kernel) for cap in (self.wide, self.narrow)]
        limits = record_limits(norms, self.cap)
        return np.clip((within[0] - within[1]) / (self.wide - self.narrow), -limits, limits), {}


def clip_of(dimension: int) -> Clip:
    """Return the geometry of an `Excess` sum over `dimension` coordinates. The cap of the geometry is 1."""
    return Clip(Excess.cap, dimension)


def excess_events(mu: float, dimension: int) -> tuple[Gaussian, ...]:
    """Return the events of the sums, one per two neighbouring FACTORS. Together the events are μ-GDP."""
    clip = clip_of(dimension)
    found = []
    for share in split(mu, FIRST):
        z = noise_multiplier(share, 1)
        require_bearable(z * clip.sensitivity)
        found.append(clip.event(z))
    return tuple(found)


def sums_of(
    loss: Loss, cap: float, rows: Mapping[str, Scaled], events: Sequence[Gaussian], dimension: int
) -> tuple[Backward, ...]:
    """Return the queries for the sums, one per two neighbouring FACTORS.

    cap : record cap C. rows : {party: (block, centres, scales)} under the record cap, without lost parties.
    """
    blocks, centres, scales = zip(*rows.values(), strict=True)
    return tuple(
        Backward(Excess(loss, cap * low, cap * high), blocks, centres, scales, clip_of(dimension), event)
        for (low, high), event in zip(pairwise(FACTORS), events, strict=True)
    )


def row(problem: Problem, share: float, *, joined: bool) -> OneTime:
    """Return the release of the sums, made once, between two passes. Each pass is charged by its own cap.

    joined : True if the run rebuilds the margins before the next pass in any case.
    """
    p, sums, rebuilds = problem.layout.n_coordinates, len(FACTORS) - 1, 2 - joined
    said = (
        f"sums of the clipping bias for {100 * share:.2g} % of the budget left: sums above their noise raise the cap C."
    )
    return OneTime(
        Phase.BETWEEN,
        share,
        lambda mu: excess_events(mu, p),
        widen,
        said,
        messages=sums + rebuilds,
        out=sums,
        back=rebuilds,
    )


def widen(run: Run, events: tuple[Gaussian, ...]) -> Exchange[None]:
    """Release the sums. Widen the cap if the sums show a bias that exceeds the noise of a wider cap.

    The sums are taken at an average of early models, since at a single model the sums mostly follow that model's noise. If a
    party has been lost, the cap is left unchanged.
    """
    walk, present, w, cap = run.walk, run.present, run.w, run.walk.cap()
    if cap is None or not present.mask.all():
        return
    sums = []
    yield from present.rebuilt(np.mean([*run.settled.values(), w], axis=0))
    if not present.mask.all():
        w[:] = yield from present.rebuilt(w)
        return
    for query in sums_of(run.problem.loss, cap.cap, cap.rows, events, run.problem.layout.n_coordinates):
        released = yield from present.put(query, w)
        if released is None:
            return
        sums.append(np.concatenate(released))
    w[:] = yield from present.rebuilt(w)
    z, count = walk.multipliers[-1]
    walk.factor *= chosen(sums, [event.sigma for event in events], 2.0 * z / math.sqrt(count))


def chosen(sums: Sequence[Vector], sigmas: Sequence[float], deviation: float) -> float:
    """Return the entry of FACTORS with the smallest expected error in the remaining passes.

    In units of the narrow cap, a cap of factor f has two errors: ½p(f·deviation)² from noise, with weight DEARER, and ½‖b‖²
    from bias, where b is the part of the gradient that the cap still cuts. ‖b‖² is estimated from below: noise is subtracted
    from each coordinate, or from the norm.

    sums : (p,) released sums, with noise of standard deviation `sigmas`.
    deviation : standard deviation of the noise in the average over the remaining passes, at f = 1.
    """
    steps = np.diff(FACTORS)
    least = [0.0] * len(FACTORS)
    for k in range(len(steps)):
        for end in range(k + 1, len(steps) + 1):
            part = slice(k, end)
            d = np.sum([step * u for step, u in zip(steps[part], sums[part], strict=True)], axis=0)
            s = math.hypot(*(step * σ for step, σ in zip(steps[part], sigmas[part], strict=True)))
            least[k] = max(least[k], _squares_from_below(d, s))
        if k:
            least[k] = max(least[k], GOES_ON * least[k - 1])
    p = sums[0].size
    errors = [bias + DEARER * p * (f * deviation) ** 2 for bias, f in zip(least, FACTORS, strict=True)]
    return FACTORS[int(np.argmin(errors))]


def _squares_from_below(d: Vector, deviation: float) -> float:
    """Return a low estimate of the squared norm of d, whose entries have noise of standard deviation `deviation`."""
    from scipy.special import chdtri  # imported here, since only the coordinator needs it

    p = d.size
    threshold = (math.sqrt(2.0 * math.log(p)) + SURE) * deviation
    single = float((np.maximum(abs(d) - threshold, 0.0) ** 2).sum())
    whole = float(d @ d) - float(chdtri(p, RARE)) * deviation**2
    return max(single, whole, 0.0)
