"""A histogram of residuals, released between two passes, and the record cap that it makes best.

A declared range does not describe residuals, and neither does the labels' spread where much of it is explained: the best cap
differs by a factor of ten between symmetric and skewed residuals. All but the histogram is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.evaluation.estimates import on_simplex
from vfl.evaluation.statistics import GRID
from vfl.messages import Tally
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import Gaussian
from vfl.solvers.releases.smoothness import require_bearable
from vfl.types import Adjacency

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfl.messages import Query
    from vfl.solvers.protocol import Released
    from vfl.types import Integers, Vector

_HALF = 2.0 ** np.arange(-5.0, 3.6, 0.5)
EDGES = np.concatenate([-_HALF[::-1], [0.0], _HALF])
"""Of the bins, in units of the labels' spread."""
CAPS = 2.0 ** np.arange(-4.0, 3.3, 0.25)
"""Caps among which the best is taken."""
CLEAR = 4.0
"""Bins below so many standard deviations of their noise count as empty."""
MARGIN = 1.2
"""Factor of the best cap. The one constant of this rule that was fitted."""
LARGEST = 4.5
STILL_FREE = 0.15
"""Share of the records that a cap has to leave as they are."""


@dataclass(frozen=True, slots=True)
class ResidualCounts:
    """Number of residuals y − v in each bin between EDGES, in units of `unit`; those beyond count in the outer bins.

    Replacing a record takes one from a bin and adds one to another: Δ = √2.
    """

    unit: float

    grid: ClassVar[float] = GRID
    dimension: ClassVar[int] = EDGES.size + 1
    sensitivity: ClassVar[float] = math.nextafter(math.sqrt(2.0), math.inf)

    def __call__(self, margins: Vector, labels: Vector) -> Integers:
        """Return the counts in steps of GRID; NaN counts in the last bin."""
        with np.errstate(all="ignore"):
            bins = np.searchsorted(EDGES, (labels - margins) / self.unit, side="right")
        return np.bincount(bins, minlength=self.dimension).astype(np.int64) * round(1.0 / GRID)


def residuals_event(mu: float) -> Gaussian:
    """Return the event of releasing the histogram: μ-GDP."""
    z = noise_multiplier(mu, 1)
    require_bearable(z * ResidualCounts.sensitivity)
    Δ = ResidualCounts.sensitivity
    return Gaussian(Adjacency.REPLACE_ONE, Δ, z * Δ, ResidualCounts.dimension)


def best_cap(
    unit: float, event: Gaussian, n_records: int, coordinates: int, signal: float
) -> Generator[Query, Released, float]:
    """Spend budget on the histogram; return c, the cap of a typical record, in units of `unit`.

    unit : the labels' spread. signal : ρ = μn/p of the passes to come.
    """
    (noisy,) = yield Tally(ResidualCounts(unit), event)
    return chosen(noisy, event.sigma, n_records, coordinates, signal)


def chosen(noisy: Vector, sigma: float, n_records: int, coordinates: int, signal: float) -> float:
    """Return the cap k with the least expected error, times MARGIN and at most LARGEST.

    With r the residuals, b the root of E clip(r − b, ±k) = 0, h = P(|r − b| < k) and m their mean,

        error(k) = 2k²/(ρ²h) + ½ max(0, (b − m)² − its noise) + p/(2n)·E (clip(r − b, ±k)/h − (r − m))²:

    noise, bias of the intercept where residuals are skewed, and distance from the minimiser of the sample.
    """
    share = on_simplex(noisy, n_records) / n_records
    deviation = sigma / n_records
    kept = np.where(share < CLEAR * deviation, 0.0, share)
    if not kept.sum() > 0.0:
        return LARGEST
    ends = np.concatenate([[EDGES[0] * 1.2], EDGES, [EDGES[-1] * 1.2]])
    middle = 0.5 * (ends[1:] + ends[:-1])
    # Residuals are spread evenly over each bin.
    r = (ends[:-1, None] + np.diff(ends)[:, None] * (np.arange(8) + 0.5) / 8).ravel()
    weight = np.repeat(kept / kept.sum() / 8.0, 8)
    mean = float(weight @ r)
    best, least = LARGEST, math.inf
    for k in CAPS:
        b = mean
        for _ in range(8):
            free = max(float(weight @ (abs(r - b) < k)), 0.02)
            b += float(weight @ np.clip(r - b, -k, k)) / free
        free = float(weight @ (abs(r - b) < k))
        if free < STILL_FREE:
            continue
        noise = deviation * float(np.linalg.norm(np.clip(middle - b, -k, k) / free - (middle - mean)))
        apart = float(weight @ (np.clip(r - b, -k, k) / free - (r - mean)) ** 2)
        error = 2.0 * k * k / (signal**2 * free) + 0.5 * max(0.0, (b - mean) ** 2 - noise**2)
        error += coordinates / (2.0 * n_records) * apart
        if error < least:
            best, least = float(k), error
    return min(LARGEST, MARGIN * best)
