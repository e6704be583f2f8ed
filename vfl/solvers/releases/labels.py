"""Private mean and spread of the labels, for a small share of μ². They give the start of the intercept and the clip's unit.

A declared range bounds the labels but does not describe their distribution. Once the intercept absorbs the labels' mean,
residuals are at most about as large as the labels' spread. So a clip in units of the spread suits any declared range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.schema import MOST_CLASSES
from vfl.queries import ExactTally, Tally
from vfl.queries.protocol import bearable
from vfl.queries.statistics import BinCounts, LabelMean, Positives, on_simplex

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Integers, Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries import Statistic
    from vfl.queries.protocol import Exchange

APART = 0.2
"""Prior standard deviation of a mean from the middle of its range, as a share of the range. A share of positive labels has this
deviation from ½.
"""
BINS = 32
"""Number of bins, of equal width, over the declared range."""
MOST = 0.95
"""Share of the labels that a range returned by `narrow` must hold."""
FINEST = 1e-7
"""End of the first bin of `Magnitudes`, as a share of the largest distance."""
SURE = 4.0
"""Number of standard deviations of the noise that are subtracted from a count before the count is compared."""


@dataclass(frozen=True, slots=True)
class LabelCounts(BinCounts):
    """Histogram of the labels over BINS equal parts of the declared range. Labels outside count in the first or the last bin.

    low, high : the declared range.
    """

    low: float
    high: float

    labels_only: ClassVar[bool] = True
    dimension: ClassVar[int] = BINS

    def bin_of(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the bin of each label."""
        return np.asarray(np.searchsorted(np.linspace(self.low, self.high, BINS + 1)[1:-1], labels, side="right"))


@dataclass(frozen=True, slots=True)
class ClassCounts(BinCounts):
    """Number of labels of each class. A label that is no class counts as the nearest class, and NaN as the last class.

    classes : K. Labels are coded 0 to K − 1.
    """

    classes: int

    labels_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= MOST_CLASSES:
            raise ValueError(f"labels are counted for 2 to {MOST_CLASSES} classes, not {self.classes!r}")

    @property
    def dimension(self) -> int:
        """Return K."""
        return self.classes

    def bin_of(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the class of each label."""
        return np.clip(np.nan_to_num(labels, nan=self.classes - 1), 0, self.classes - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of the labels. They are computed from released noisy counts, so they are public."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Magnitudes(BinCounts):
    """Histogram of labels by their distance from an origin, in 2·SIDE bins whose widths grow with the distance on either side.

    Labels outside count in the first or the last bin, and NaN in the last.

    origin : 0 if the declared range holds it, else the end nearest to 0. reach : largest distance within the declared range.
    """

    origin: float
    reach: float

    dimension: ClassVar[int] = 96

    @property
    def edges(self) -> Vector:
        """Return the ends of the bins, (dimension + 1,): the origin ± reach·FINEST to reach, each 1.4 times the one before."""
        side = self.reach * np.append(0.0, np.geomspace(FINEST, 1.0, self.dimension // 2))
        return self.origin + np.concatenate([-side[:0:-1], side])

    def bin_of(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the bin of each label."""
        return np.asarray(np.searchsorted(self.edges[1:-1], labels, side="right"))


def magnitudes_of(problem: Problem) -> Magnitudes:
    """Return the statistic over the declared range of the label."""
    low, high = problem.label_low, problem.label_low + problem.label_range
    origin = min(max(0.0, low), high)
    return Magnitudes(origin, max(high - origin, origin - low))


def seeks_spread(problem: Problem) -> bool:
    """Return True if the run finds centre and spread of the labels, in whose units the loss is measured."""
    return problem.loss.seeks_spread and problem.centred and 0.0 < problem.label_range < math.inf


def centre_and_spread(problem: Problem, event: Gaussian | None) -> Exchange[Spread]:
    """Find median and spread (interquartile range/1.35) of the labels from their `Magnitudes`, with noise or exactly.

    Only bins whose counts exceed the noise by SURE standard deviations are used. If they hold fewer than half of the records,
    the result is the mean, shrunk towards the middle of the declared range, and the spread that this range suggests.
    """
    statistic, n = magnitudes_of(problem), problem.n_records
    (noisy,) = yield ExactTally(statistic, None) if event is None else Tally(statistic, event)
    edges, sigma = statistic.edges, 0.0 if event is None else event.sigma
    share = np.where(noisy > SURE * sigma, noisy, 0.0)
    if share.sum() < 0.5 * n:
        middles = (edges[1:] + edges[:-1]) / 2.0 - problem.label_centre
        noise = sigma * float(np.linalg.norm(middles)) / (n * problem.label_range)
        apart = min(max(shrunk(float(noisy @ middles) / (n * problem.label_range), noise), -0.5), 0.5)
        return Spread(problem.label_centre + problem.label_range * apart, problem.loss.slope / 1.35)
    below = np.append(0.0, np.cumsum(share)) / share.sum()
    low, median, high = np.interp([0.25, 0.5, 0.75], below, edges)
    width = float(np.diff(edges)[np.searchsorted(below[1:], 0.5)])
    return Spread(float(median), max((high - low) / 1.35, width / 7.2))


def counts_of(problem: Problem) -> LabelCounts:
    """Return the histogram statistic over the declared range of the label."""
    half = problem.label_range / 2.0
    return LabelCounts(problem.label_centre - half, problem.label_centre + half)


def noised(statistic: Statistic, z: float) -> Gaussian:
    """Return the event of releasing a label statistic with σ = zΔ. The release is 1/z-GDP."""
    return bearable(statistic.sensitivity, z, statistic.dimension)


def mean_and_spread(problem: Problem, event: Gaussian) -> Exchange[Spread]:
    """Release the counts. Return mean and standard deviation, which are post-processing."""
    statistic = counts_of(problem)
    (noisy,) = yield Tally(statistic, event)
    return spread_of(noisy, statistic, problem.n_records)


def asked_by(query: Tally) -> tuple[LabelCounts, float] | None:
    """Return the label histogram that a query asks for, and the standard deviation of its noise; None for other queries."""
    if not isinstance(query.statistic, LabelCounts) or query.event is None:
        return None
    return query.statistic, query.event.sigma


def spread_of(noisy: Vector, statistic: LabelCounts, n_records: int) -> Spread:
    """Return mean and standard deviation of the labels, from noisy counts.

    Noisy counts are first projected onto nonnegative counts that add up to n. Labels are assumed to be spread evenly within
    their bins, so the standard deviation is at least that of one bin.

    noisy : (BINS,) counts with noise.
    """
    width = (statistic.high - statistic.low) / BINS
    middle = statistic.low + width * (np.arange(BINS) + 0.5)
    share = on_simplex(noisy, n_records) / n_records
    mean = float(share @ middle)
    return Spread(mean, math.sqrt(float(share @ (middle - mean) ** 2) + width**2 / 12.0))


def narrow(noisy: Vector, statistic: LabelCounts, n_records: int, sigma: float) -> tuple[float, float] | None:
    """Return the narrowest range of bins that holds at least MOST of the labels; None if noise could explain every such range.

    The noise of a sum of m counts has standard deviation σ√m. SURE of these deviations are subtracted from the sum, so that
    noise below this amount cannot make a range qualify.

    noisy : (BINS,) counts with noise of deviation sigma.
    """
    edges = np.linspace(statistic.low, statistic.high, BINS + 1)
    sums = np.concatenate([[0.0], np.cumsum(noisy)])
    for m in range(1, BINS + 1):
        held = sums[m:] - sums[:-m]
        first = int(held.argmax())
        if held[first] - SURE * sigma * math.sqrt(m) >= MOST * n_records:
            return float(edges[first]), float(edges[first + m])
    return None


def mean_of(problem: Problem) -> LabelMean:
    """Return the statistic for the mean of the labels within the declared range."""
    half = problem.label_range / 2.0
    return LabelMean(problem.label_centre - half, problem.label_centre + half)


def mean(problem: Problem, event: Gaussian) -> Exchange[float]:
    """Release the labels' mean. Shrink it towards the middle of the declared range, according to the noise."""
    ((noisy,),) = yield Tally(mean_of(problem), event)
    apart = shrunk(float(noisy) / problem.n_records - 0.5, event.sigma / problem.n_records)
    return problem.label_centre + problem.label_range * min(max(apart, -0.5), 0.5)


def shrunk(apart: float, noise: float) -> float:
    """Shrink a noisy distance from the middle by APART²/(APART² + noise²), the share that is probably signal."""
    return apart * APART**2 / (APART**2 + noise**2)


def balance_of(problem: Problem) -> Positives | ClassCounts:
    """Return the statistic that determines the constant model of a classification."""
    classes = len(problem.layout.classes)
    return ClassCounts(classes) if classes else Positives()


def constant(problem: Problem, event: Gaussian) -> Exchange[float | Vector]:
    """Release the shares of the classes. Return the margin of the best constant model, at which a run starts.

    The share of positives is shrunk towards one half, according to the noise. With K classes, the K margins of the constant
    model are repeated for every column, (p·K,).
    """
    if problem.layout.classes:
        (counts,) = yield Tally(balance_of(problem), event)
        margins = class_margins(counts / problem.n_records, event.sigma / problem.n_records)
        return np.tile(margins, problem.layout.n_columns)
    ((noisy,),) = yield Tally(Positives(), event)
    noise = event.sigma / problem.n_records
    share = 0.5 + shrunk(float(noisy) / problem.n_records - 0.5, noise)
    return problem.loss.constant(share, noise)


def class_margins(shares: Vector, noise: float) -> Vector:
    """Return log(share) of every class, (K,), minus the mean of all: the best constant model of multinomial loss.

    Shares are shrunk towards 1/K according to their noise; their prior distance from 1/K is 2·APART/K. One standard deviation
    of the noise is added to each share. Otherwise noise could make a share small, and the logarithm of the share far too low.

    shares : (K,) with noise of standard deviation `noise`.
    """
    K = shares.size
    apart, equal = 2.0 * APART / K, 1.0 / K
    drawn = equal + (on_simplex(shares, 1.0) - equal) * apart**2 / (apart**2 + noise**2)
    margins = np.log(np.maximum(drawn + noise, 0.02 * equal))
    return np.asarray(margins - margins.mean())
