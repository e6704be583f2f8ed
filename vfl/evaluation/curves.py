"""ROC, precision–recall, calibration and lift of a classifier, from released histograms. Post-processing costs no privacy.

Each point is a threshold between two bins, so nothing is interpolated. The 95 % interval of a point covers the noise and
the sampling error of that point alone. A rate is shown unless the noise hides the number of records that the rate refers to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.evaluation.confusion import FN, TP, Confusion
from vfl.evaluation.estimates import SEEN, Estimate, share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.evaluation.histogram import Histogram


@dataclass(frozen=True, slots=True)
class Calibrated:
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

    threshold : a probability if margins are log-odds, else a margin.
    tpr : share of the positives that are predicted positive, which is the recall and the height of the lift curve.
    flagged : share of the records that are predicted positive. lift : precision divided by the share of positives.
    """

    threshold: float
    flagged: Estimate
    tpr: Estimate | None
    fpr: Estimate | None
    precision: Estimate | None
    lift: Estimate | None


def calibration(histogram: Histogram, n_records: int) -> tuple[Calibrated, ...]:
    """Return the bins whose counts the noise does not hide, in order; () unless margins are log-odds."""
    if not histogram.logistic:
        return ()
    ends = (0.0, *map(histogram.shown, histogram.edges), 1.0)
    cells = 2 * len(histogram.positive)
    shift = (n_records - math.fsum(histogram.negative) - math.fsum(histogram.positive)) / cells
    found = []
    for k, (negative, positive) in enumerate(zip(histogram.negative, histogram.positive, strict=True)):
        n, σ = negative + positive + 2.0 * shift, histogram.sigma
        if n <= max(SEEN * math.sqrt(2.0) * σ, 1.0):
            continue
        share = share_of(positive + shift, n, (positive + shift, negative + shift), σ, cells)
        found.append(Calibrated(ends[k], ends[k + 1], share, n))
    return tuple(found)


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
