"""Training of regressions with a log link near the mean of the labels. A released histogram of the labels gives the mean.

The declared `margin` bounds the curvature of Poisson loss by exp(margin), where `margin` is 20 by default. For counts of mean
0.3 the actual curvature is 0.3, so steps of 1/M_j would be 70 times too short. A private run therefore spends a share of μ²
on a histogram of the counts, and

    starts the intercept at v₀ = log(mean), the constant model;
    takes steps for the curvature at v₀, which is exp(v₀);
    caps records in units of the spread of the counts;
    makes the loss linear beyond v₀ + REACH, which bounds the gradient at margins that noise has moved far out.

For gamma and Tweedie loss of power p the histogram counts amounts, in steps of the largest amount divided by STEPS. The
curvature is exp((2 − p)v₀), the spread of the residuals is exp((1 − p)v₀) times that of the amounts, and the loss is linear
on both sides. Poisson loss is p = 1.

With exposure, v₀ = log(mean count / mean exposure) is the log of a rate, and a record's margin is v₀ + log(exposure). The
histogram then has one further number, the sum of the exposures.

All of this is post-processing of the released histogram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.losses import COUNTS
from vfl.queries import ExactTally, Statistic, Tally
from vfl.queries.statistics import GRID, steps_of
from vfl.solvers.releases.labels import Spread
from vfl.solvers.rules.defaults import typical_spread

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Integers, Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange
    from vfl.solvers.releases.curvature import Curvature

BINS = 32
SEEN = 3.5
"""A noisy count is used unchanged if it exceeds this many standard deviations of the noise."""
EXPOSURES = 0.5
"""Weight a of the sum of the exposures, Σ e/e_max, relative to the counts of the bins."""
STEPS = 10_000.0
"""Number of histogram steps up to the largest amount. Poisson labels with a declared range below 1 count as amounts."""
MOST = 1e9
"""Largest declared count that is counted in steps of 1; larger ranges have this number of steps."""
RARE = 1.5
"""Largest unit of residuals over curvature, in margins, for which `time` applies unchanged: the value at a mean of 0.44.

With means of 0.003 to 10, 4,000 and 40,000 records and ε of 0.3 to 4, a factor of 1 lost a quarter of D² at a mean of 0.3,
and 2 a quarter at 0.01. Without short steps, models of rare counts (mean 0.003) predicted up to 2,000 times the mean.
"""
REACH_EXACTLY = 3.0
"""Value of `near` for runs without privacy; it allows predicted means of up to 20 times the mean label."""
FITS = 200
"""Number of candidates for the mean of the fitted distribution."""
SHAPES = (1.0, 5.0)
"""Shapes r of the fitted negative binomial distributions, whose variance is m + m²/r: geometric, and nearly Poisson.

On five kinds of counts at μn = 24 and 75, fitting both shapes changed the constant model's excess loss by factors of 0.16 to
1.1, compared with fitting only the first shape.
"""


@dataclass(frozen=True, slots=True)
class CountHistogram(Statistic):
    """Histogram of counts in BINS bins over 0, 1, …: first single values, then ranges that widen with the value.

    Replacing a record moves one count from one bin to another: Δ = √2. Labels above `high` count in the last bin. If records
    have exposures e, a last number is the sum of a·e/e_max with a = EXPOSURES, and Δ² = 2 + a². Each e is computed as
    exp(margin), since a record's margin before training is log(e). Each e is limited to e_max: a record adds 0 to a.

    high : the largest declared count. exposure : e_max, the largest declared exposure; 0 without exposure.
    unit : step in which the labels are counted.
    """

    high: float
    exposure: float = 0.0
    unit: float = 1.0

    grid: ClassVar[float] = GRID

    @property
    def dimension(self) -> int:
        """Return BINS, or BINS + 1 with exposure."""
        return BINS + (self.exposure > 0.0)

    @property
    def sensitivity(self) -> float:
        """Return Δ."""
        return math.nextafter(math.sqrt(2.0 + (EXPOSURES**2 if self.exposure > 0.0 else 0.0)), math.inf)

    @property
    def edges(self) -> tuple[int, ...]:
        """Return the BINS + 1 edges of the bins. They are computed with integers, so all machines agree."""
        growth, end = 0, math.ceil(self.high) + 1
        while True:
            edges = [0]
            for _ in range(BINS):
                edges.append(edges[-1] + 1 + (edges[-1] * growth >> 8))
            if edges[-1] >= end:
                return tuple(edges)
            growth += 1

    def __call__(self, margins: Vector, labels: Vector) -> Integers:
        """Return the counts, (BINS,), in steps of GRID; with exposure, also the sum of the exposures."""
        inner = np.array(self.edges[1:-1]) - 0.5
        bins = np.searchsorted(inner, labels if self.unit == 1.0 else labels / self.unit, side="right")
        counts = np.bincount(bins, minlength=BINS).astype(np.int64) * round(1.0 / GRID)
        if not self.exposure > 0.0:
            return counts
        with np.errstate(all="ignore"):
            shares = np.exp(np.minimum(margins, math.log(self.exposure))) / self.exposure
        return np.append(counts, steps_of(shares, round(EXPOSURES / GRID)))


@dataclass(frozen=True, slots=True)
class Sums(Statistic):
    """Sums of the labels and of the exposures (or of ones), without noise, for runs without privacy."""

    grid: ClassVar[float] = 1.0
    dimension: ClassVar[int] = 2
    sensitivity: ClassVar[float] = math.inf

    def __call__(self, margins: Vector, labels: Vector) -> Vector:
        """Return Σ max(y, 0) and Σ exp(v), (2,). Before training, a margin v is the log of the exposure."""
        return np.array([np.maximum(labels, 0.0).sum(), np.exp(margins).sum()])


def has_counts(problem: Problem) -> bool:
    """Return True for a private regression with a log link, a declared range of labels, and an unpenalised intercept."""
    most = problem.label_low + problem.label_range
    return problem.private and problem.loss.start == COUNTS and problem.centred and 0.0 < most < math.inf


def residual_of(problem: Problem, spread: float) -> float:
    """Return a typical |ℓ'| for labels of this spread, of which the mean is about as large: spread^(2 − p)."""
    return float(spread ** (2.0 - (problem.loss.power or 1.0)))


def squared_spread(problem: Problem, known: Curvature) -> float:
    """Return the square of the released spread of residuals, in units of the typical one, at most 1."""
    if not has_counts(problem):
        return min(1.0, known.unit**2)
    typical = typical_spread(problem)
    return min(1.0, float(known.smoothness[0]) * (known.unit * typical / residual_of(problem, typical)) ** 2)


def is_exact(problem: Problem) -> bool:
    """Return True for a regression with a log link without privacy, whose start is the exact mean."""
    return not problem.private and problem.loss.start == COUNTS


def share(clear: float) -> float:
    """Return the share of μ² for the histogram, between 1/200 and 1/5. clear : μn.

    The share solves √2/(√share·μn) = 0.003, which keeps the noise of a bin at 0.3 % of the records.
    """
    return min(max((472.0 / clear) ** 2, 0.005), 0.2)


def histogram(problem: Problem) -> CountHistogram:
    """Return the histogram statistic over the declared range of counts or amounts."""
    most = 0.0 if problem.exposure is None else problem.exposure[1]
    high = problem.label_low + problem.label_range
    if problem.loss.power == 1.0 and high >= 1.0:
        unit = max(1.0, high / MOST)
        return CountHistogram(high / unit, most, unit)
    return CountHistogram(STEPS, most, high / STEPS)


def at_the_mean(problem: Problem, known: Curvature) -> Exchange[tuple[Curvature, float, Loss]]:
    """Return the results of `near_the_mean` for the exact mean of a run without privacy."""
    (sums,) = yield ExactTally(Sums(), None)
    start, loss = nearby(problem.loss, sums, problem.exposure)
    if not isinstance(problem.smoothness, str):
        return known, start, loss
    return replace(known, smoothness=known.smoothness * (loss.curvature / problem.loss.curvature)), start, loss


def nearby(loss: Loss, sums: Vector, exposure: tuple[float, float] | None) -> tuple[float, Loss]:
    """Return log(Σy / Σexposure), and the loss of a run without privacy. sums : (2,) of `Sums`."""
    total, exposed = map(float, sums)
    low, high = exposure or (1.0, 1.0)
    start = math.log(total / exposed) if 0.0 < total < math.inf else 0.0
    return start, loss.near(start + math.log(high), start + math.log(low), REACH_EXACTLY)


def near_the_mean(
    problem: Problem, known: Curvature, event: Gaussian, ρ: float
) -> Exchange[tuple[Curvature, float, Loss]]:
    """Release the histogram. Return the curvature near the mean, the start of the intercept, and the loss.

    Declared smoothness constants are used unchanged. The unit of residuals is the spread of the counts, but at least 1/c, so
    that a residual of 1, a single count, passes a cap of c units. A smaller unit would cut every record with a nonzero count,
    and so lower the intercept. Noise moves margins by amounts proportional to unit/exp(v₀), which is large for rare counts.
    If unit/exp(v₀) exceeds RARE, steps are as short as `time` makes them at ρ divided by (unit/exp(v₀))/RARE.

    ρ : signal-to-noise ratio of the passes, from which the record cap follows.
    """
    statistic = histogram(problem)
    (noisy,) = yield Tally(statistic, event)
    found = spread_of(noisy[:BINS], statistic, problem.n_records, event.sigma)
    level = math.log(found.mean * statistic.unit)
    exposed, farthest, steeper = 0.0, 0.0, 1.0
    if problem.exposure is not None:
        share = float(noisy[BINS]) / (EXPOSURES * problem.n_records)
        share = min(max(share, problem.exposure[0] / problem.exposure[1]), 1.0)
        farthest, steeper = math.log(problem.exposure[1]), max(1.0, 0.5 / share)
        exposed = farthest + math.log(share)
    start = level - exposed
    p = problem.loss.power or 1.0
    deviation = found.deviation * statistic.unit * math.exp((1.0 - p) * level)
    one = min(1.0, problem.label_low + problem.label_range)
    residual = max(deviation, one / typical_cap(ρ)) if p == 1.0 else deviation
    unit = residual / typical_spread(problem)
    nearest = 0.0 if problem.exposure is None else math.log(problem.exposure[0])
    loss = problem.loss.near(start + farthest, start + nearest)
    if not isinstance(problem.smoothness, str):
        return replace(known, unit=unit), start, loss
    # The curvature of a column that is 1 only for the largest exposures is 1/share times that at the mean. Steps that are too
    # long by a factor of 2 still descend.
    flatter = problem.loss.curvature / (math.exp((2.0 - p) * min(level, problem.loss.highest)) * steeper)
    if p == 1.0:  # short steps for rare counts: their noise is large in units of the curvature
        flatter /= time(ρ) / time(ρ / max(1.0, residual / math.exp(level) / RARE))
    # Caps are C = c·√(p/L) with the declared L; scaled columns are longer by √(L/L₀) in units of the curvature L₀ at the start.
    return replace(known, smoothness=known.smoothness / flatter, unit=unit * math.sqrt(flatter)), start, loss


def spread_of(noisy: Vector, statistic: CountHistogram, n_records: int, sigma: float) -> Spread:
    """Return mean and standard deviation of the counts, estimated from their noisy histogram.

    Bins above the noise keep their counts. A negative binomial distribution with a shape from SHAPES is fitted to all bins.
    The fit distributes the remaining records over the other bins. Otherwise noise in far bins would dominate the mean. The
    standard deviation is at least that of a Poisson variable.

    noisy : (BINS,) counts with noise of standard deviation `sigma`.
    """
    from scipy.special import betainc

    edges = np.array(statistic.edges, dtype=np.float64)
    allowed = edges[:-1] <= max(statistic.high, 1.0)
    low, high = edges[:-1][allowed], np.minimum(edges[1:] - 1.0, max(math.ceil(statistic.high), 1.0))[allowed]
    found = noisy[allowed]
    means = np.geomspace(1.0 / n_records, max(statistic.high, 1.0), FITS)[:, None]
    below = [np.where(low > 0, betainc(r, np.maximum(low, 1.0), r / (r + means)), 0.0) for r in SHAPES]
    to = [betainc(r, high + 1.0, r / (r + means)) for r in SHAPES]
    fits = n_records * (np.concatenate(to) - np.concatenate(below))
    fit = fits[np.argmin(((fits - found) ** 2).sum(axis=1))]
    seen = found > SEEN * sigma
    rest = max(0.0, n_records - float(found[seen].sum()))
    share = np.where(seen, found, fit * (rest / max(float(fit[~seen].sum()), 1e-9 * n_records)))
    share /= share.sum()
    middle, width = (low + high) / 2.0, high - low + 1.0
    mean = max(float(share @ middle), 0.5 / n_records)
    variance = float(share @ ((middle - mean) ** 2 + (width**2 - 1.0) / 12.0))
    return Spread(mean, math.sqrt(max(variance, mean)))


def typical_cap(ρ: float) -> float:
    """Return c = 0.13 √ρ, between 0.2 and 4: the record cap, in units of √(p/L) times the spread of the counts.

    Counts are skewed, so the cap is wider than for squared loss: cutting only the large counts would move the intercept.
    """
    return min(4.0, max(0.2, 0.13 * math.sqrt(ρ)))


def time(ρ: float) -> float:
    """Return τ, the number of whole steps per coordinate: 0.004 ρ² if ρ < 37, else 0.15 ρ, at most 39.

    Below ρ = 37 the error from noise grows as τ², and the gain of the steps as τ. As ρ falls to 0, τ falls to 0, and the run
    stays at its start, the constant model.
    """
    return min(39.0, 0.15 * ρ, 0.004 * ρ**2)
