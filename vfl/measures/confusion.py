"""Confusion matrix and measures at one threshold, and the curves of all thresholds. Post-processing costs no privacy.

Every interval inverts a test, as in vfl.measures.estimates. If a threshold was chosen among m thresholds by its cost, the
intervals at that threshold hold for all m thresholds at once (Bonferroni). So the choice cannot make the intervals too narrow.
Each point of a curve (ROC, precision–recall, lift) is a threshold between two bins, so nothing is interpolated. The 95 %
interval of a point covers the noise and the sampling error of that point alone. A rate is shown unless the noise hides the
number of records that the rate refers to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vfl.measures.estimates import (
    ROUGH,
    SEEN,
    SELECTED,
    WIDTH,
    Estimate,
    around,
    bounded_mean,
    mean_interval,
    rough,
    scaled,
    share_error,
    share_interval,
)
from vfl.queries.statistics import CELLS, GRID, on_simplex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.base.types import Vector
    from vfl.measures.estimates import Histogram
    from vfl.queries.statistics import CellsAndLoss

NAMES = ("tn", "fp", "fn", "tp")
"""True and false negatives and positives, in the order of the counts."""
TN, FP, FN, TP = range(CELLS)
ERROR = 0.05
TWO = 0.26
"""Width added to each of two intervals so that both hold together. For every error probability α that `width_of` allows,
Φ⁻¹(1 − α/4) exceeds the width of one interval by less than TWO.
"""


def width_of(tests: int) -> float:
    """Return the half-width, in standard deviations, at which `tests` intervals hold together with probability 0.95."""
    from scipy.special import ndtri  # imported here so that an actor starts faster

    return max(WIDTH, float(ndtri(1.0 - ERROR / (2.0 * tests))))


@dataclass(frozen=True, slots=True)
class Confusion:
    """Noisy counts of records by label and prediction. The sum of the true counts is the number of records, which is public.

    noisy : (s,) with noise N(0, bins·sigma²): with two classes s = 4, in the order of NAMES, else any cells whose shares and
        rates are of interest. bins : (s,) number of released counts that each entry sums.
    width : half-width of an interval, in standard deviations.
    """

    noisy: tuple[float, ...]
    bins: tuple[int, ...]
    sigma: float
    n_records: int
    width: float = WIDTH

    @classmethod
    def at(cls, histogram: Histogram, edge: int, n_records: int, width: float = WIDTH) -> Confusion:
        """Return the counts at the threshold `histogram.edges[edge]`."""
        below, noisy = edge + 1, []
        for own in (histogram.negative, histogram.positive):
            noisy += [math.fsum(own[:below]), math.fsum(own[below:])]
        return cls(tuple(noisy), 2 * (below, len(histogram.positive) - below), histogram.sigma, n_records, width)

    @property
    def raw(self) -> Vector:
        """Return the counts (s,), each shifted in proportion to its variance so that their sum is n. Some may be negative."""
        bins = np.array(self.bins)
        return np.asarray(np.array(self.noisy) + (self.n_records - sum(self.noisy)) * bins / bins.sum())

    @property
    def possible(self) -> Vector:
        """Return the nearest nonnegative counts (s,) with the public sum."""
        return on_simplex(np.array(self.noisy), self.n_records)

    def noise(self, weights: Sequence[float]) -> float:
        """Return the standard deviation of the noise of a weighted sum of `raw`. weights : (s,)."""
        a, k = np.array(weights, dtype=float), np.array(self.bins, dtype=float)
        return self.sigma * math.sqrt(max(float(a * a @ k) - float(a @ k) ** 2 / float(k.sum()), 0.0))

    def share(self, *cells: int) -> Estimate:
        """Return the share of all records that lie in the named cells."""
        return self.mean([float(k in cells) for k in range(len(self.bins))])

    def mean(self, weights: Sequence[float]) -> Estimate:
        """Return the mean of a quantity whose value is weights[k], in [0, 1], for each record in cell k."""
        a, n = np.array(weights), self.n_records
        value, noise = min(max(float(a @ self.possible) / n, 0.0), 1.0), self.noise(weights) / n
        within = mean_interval(float(a @ self.raw) / n, noise, n, width=self.width)
        error = share_error(value, noise, n)
        return Estimate(value, error, within=around(value, within))

    def rate(self, hits: int, misses: int, known: float | None = None) -> Estimate | None:
        """Return the share hits/(hits + misses) of two cells; None if the noise hides the number of records in both cells.

        known : the number of these records by a release with other noise, which decides if the rate is reported. With None, the
            noisy number itself decides, and the interval is wider.
        """
        counts, raw = self.possible, self.raw
        count = float(counts[hits] + counts[misses])
        seen = count if known is None else min(max(known, 0.0), float(self.n_records))
        if not (count > 0.0 and seen > SEEN * self.noise([float(k in (hits, misses)) for k in range(len(self.bins))])):
            return None
        rate = min(max(float(counts[hits]) / count, 0.0), 1.0)
        slope = np.zeros(len(self.bins))
        slope[[hits, misses]] = (1.0 - rate) / count, -rate / count
        error = share_error(rate, self.noise(slope.tolist()), count)
        bins = self.bins[hits], self.bins[misses]
        width = self.width if known is not None else max(self.width, SELECTED)
        ends = share_interval(float(raw[hits]), float(raw[misses]), self.sigma, sum(self.bins), bins, width)
        withheld = share_error(0.5, self.sigma * math.sqrt(max(bins)) / seen, seen) > ROUGH
        return Estimate(rate, error, within=around(rate, ends), withheld=withheld)

    def measures(
        self, positives: float | None = None, flagged: float | None = None, cost: Mapping[str, float] | None = None
    ) -> dict[str, Estimate]:
        """Return accuracy, true and false positive rate, precision, the share predicted positive, and the mean cost if given.

        A rate is left out if the noise hides the number of records that the rate refers to. The baseline of the cost is that of
        the cheaper of two constant predictions.

        positives, flagged : numbers of positive records and of those predicted positive, by a release with other noise. They
            decide which rates are reported; None takes the noisy numbers.
        """
        n, shares = self.n_records, (self.share(FN, TP), self.share(FP, TP))
        positive, predicted = (share.value for share in shares)
        known = positive if positives is None else min(max(positives / n, 0.0), 1.0)
        rates = (
            ("tpr", TP, FN, positives, predicted, 1.0),
            ("fpr", FP, TN, None if positives is None else n - positives, predicted, 0.0),
            ("precision", TP, FP, flagged, positive, 1.0),
        )
        accuracy, base = self.share(TN, TP), max(known, 1.0 - known)
        withheld = rough(base, self.noise([1.0, 0.0, 0.0, 1.0]) / n, n)
        found = {"accuracy": replace(accuracy, baseline=max(positive, 1.0 - positive), withheld=withheld)}
        for name, hits, misses, count, baseline, best in rates:
            if (rate := self.rate(hits, misses, count)) is not None:
                found[name] = replace(rate, baseline=baseline, best=best)
        if cost is not None:
            unit = max(cost.values())
            weights = [0.0, cost["false_alarm"] / unit, cost["missed"] / unit, 0.0]
            baseline, base = (min(weights[FN] * p, weights[FP] * (1.0 - p)) for p in (positive, known))
            withheld = rough(base, self.noise(weights) / n, n, best=0.0)
            mean = scaled(self.mean(weights), unit)
            found["cost"] = replace(mean, baseline=unit * baseline, best=0.0, withheld=withheld)
        return found | {"flagged": shares[1]}

    def lift(self) -> Estimate | None:
        """Return the lift, precision divided by the share of positive records; None if the noise hides precision or share.

        The intervals of precision and share hold together, so the interval of the quotient holds too.
        """
        both = replace(self, width=self.width + TWO)
        precision, share = both.rate(TP, FP), both.share(FN, TP)
        if precision is None or share.interval[0] <= 0.0:
            return None
        value = precision.value / share.value
        within = around(value, (precision.interval[0] / share.interval[1], precision.interval[1] / share.interval[0]))
        return Estimate(value, (within[1] - within[0]) / (2.0 * both.width), baseline=1.0, within=within)

    def cells(self) -> dict[str, Estimate]:
        """Return the numbers of true and false negatives and positives."""
        return {name: scaled(self.share(k), self.n_records) for k, name in enumerate(NAMES)}


def cheapest(histogram: Histogram, edges: Sequence[int], cost: Mapping[str, float], n_records: int) -> int:
    """Return the position of the edge with the smallest noisy cost; if several edges have that cost, the first of them."""
    return min(edges, key=lambda edge: Confusion.at(histogram, edge, n_records).measures(cost=cost)["cost"].value)


def of_outcomes(released: Vector, statistic: CellsAndLoss, n_records: int, sigma: float) -> Confusion:
    """Return the confusion matrix, computed from the first release of an evaluation.

    released : (s + 1,) noisy sums, the losses last. sigma : standard deviation of the noise of each sum; 0 without noise.
    """
    a = statistic.steps[0] * GRID
    return Confusion(tuple((released[:-1] / a).tolist()), (1,) * (released.size - 1), sigma / a, n_records)


def mean_loss(released: Vector, statistic: CellsAndLoss, n_records: int, sigma: float, base: float) -> Estimate:
    """Return the mean clamped loss. base : loss of the best constant prediction. Other arguments as for `of_outcomes`."""
    b, cap = statistic.steps[1] * GRID, statistic.cap
    noise = sigma / b / n_records
    loss = bounded_mean(float(released[-1]) / b / n_records, noise, n_records, cap)
    # The noise of the counts, which give the baseline, is independent of the noise of the losses.
    return replace(loss, baseline=base, best=0.0, cap=cap, withheld=rough(base / cap, noise, n_records, best=0.0))


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """One bin of a calibration curve: predicted probabilities from `low` to `high`, and the observed share of positives.

    records : noisy number of records in the bin.
    """

    low: float
    high: float
    share: Estimate
    records: float

    @property
    def agrees(self) -> bool:
        """Return True if the interval of the observed share overlaps the range of predicted probabilities."""
        return self.share.interval[0] <= self.high and self.low <= self.share.interval[1]


@dataclass(frozen=True, slots=True)
class Point:
    """Measures of the decisions at one threshold. A measure is None if the noise hides the measure's records.

    threshold : a probability if scores are log-odds, else a score.
    tpr : share of the positives that are predicted positive, which is the recall and the height of the lift curve.
    flagged : share of the records that are predicted positive. lift : precision divided by the share of positives.
    """

    threshold: float
    flagged: Estimate
    tpr: Estimate | None
    fpr: Estimate | None
    precision: Estimate | None
    lift: Estimate | None


def calibration(histogram: Histogram, n_records: int) -> tuple[CalibrationBin, ...]:
    """Return the bins whose counts the noise does not hide, in order; () unless scores are log-odds."""
    if not histogram.logistic:
        return ()
    ends = (0.0, *map(histogram.shown, histogram.edges), 1.0)
    m = len(histogram.positive)
    cells = Confusion((*histogram.negative, *histogram.positive), (1,) * (2 * m), histogram.sigma, n_records)
    records = cells.raw.reshape(2, m).sum(axis=0)
    shares = ((k, cells.rate(m + k, k)) for k in range(m) if records[k] > 1.0)
    return tuple(CalibrationBin(ends[k], ends[k + 1], own, float(records[k])) for k, own in shares if own is not None)


def points(histogram: Histogram, n_records: int, edges: Sequence[int] | None = None) -> tuple[Point, ...]:
    """Return the measures at these edges, from the highest threshold to the lowest; None takes all edges."""
    found = []
    for edge in sorted(range(len(histogram.edges)) if edges is None else edges, reverse=True):
        own = Confusion.at(histogram, edge, n_records)
        all_measures = own.measures()
        tpr, fpr, precision = (all_measures.get(name) for name in ("tpr", "fpr", "precision"))
        threshold = histogram.shown(histogram.edges[edge])
        found.append(Point(threshold, all_measures["flagged"], tpr, fpr, precision, own.lift()))
    return tuple(found)


def base_rate(histogram: Histogram, n_records: int) -> Estimate:
    """Return the share of positive records."""
    return Confusion.at(histogram, 0, n_records).share(FN, TP)
