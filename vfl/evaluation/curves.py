"""Calibration and lift of a classifier, from released histograms of its scores. Post-processing costs no privacy.

Both are rough, since bins are few and their counts noisy. A bin is shown if its count exceeds its noise. The positives among a
tenth of the records are interpolated within bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.types import Vector

SEEN = 3.0
"""A bin is shown if its noisy count exceeds this many standard deviations of its noise."""
TENTHS = 10


@dataclass(frozen=True, slots=True)
class Histogram:
    """Released counts of margins, one bin more than edges for each class, with noise N(0, sigma²) on every count.

    edges : (m,) increasing. negative, positive : (m + 1,).
    logistic : True if margins are log-odds.
    """

    edges: tuple[float, ...]
    negative: tuple[float, ...]
    positive: tuple[float, ...]
    sigma: float
    logistic: bool

    @classmethod
    def of(cls, edges: Vector, counts: Vector, sigma: float, *, logistic: bool) -> Self:
        """Return the histogram of released counts (2(m + 1),), the negative class first."""
        negative, positive = counts.reshape(2, -1).tolist()
        return cls(tuple(edges.tolist()), tuple(negative), tuple(positive), float(sigma), logistic)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `from_dict` gives the histogram back."""
        return {
            "edges": list(self.edges),
            "negative": list(self.negative),
            "positive": list(self.positive),
            "sigma": self.sigma,
            "logistic": self.logistic,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return the histogram that `to_dict` wrote; raise KeyError, TypeError or ValueError for other values."""
        edges, negative, positive = (tuple(map(float, plain[name])) for name in ("edges", "negative", "positive"))
        if not len(negative) == len(positive) == len(edges) + 1:
            raise ValueError("a histogram has one bin more than edges")
        return cls(edges, negative, positive, float(plain["sigma"]), bool(plain["logistic"]))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """One bin: the model's predicted probabilities, from `low` to `high`, and the observed share of positives.

    error : standard error of the share, noise and sampling together. records : noisy count.
    """

    low: float
    high: float
    share: float
    error: float
    records: float

    @property
    def agrees(self) -> bool:
        """True if the share lies within two standard errors of the predicted probabilities."""
        return self.low - 2 * self.error <= self.share <= self.high + 2 * self.error


@dataclass(frozen=True, slots=True)
class Gain:
    """Share `captured` of the positives among the highest-scored share `top` of the records, with its standard error."""

    top: float
    captured: float
    error: float

    @property
    def lift(self) -> float:
        """Return the number of positives in the top, divided by the number expected in a random choice of equal size."""
        return self.captured / self.top


def calibration(histogram: Histogram) -> tuple[Calibrated, ...]:
    """Return the bins that exceed their noise, in order; () unless margins are log-odds."""
    if not histogram.logistic:
        return ()
    from scipy.special import expit  # imported here so that an actor starts faster

    ends = (-math.inf, *histogram.edges, math.inf)
    found = []
    for k, (negative, positive) in enumerate(zip(histogram.negative, histogram.positive, strict=True)):
        n = negative + positive
        if n <= max(SEEN * math.sqrt(2.0) * histogram.sigma, 1.0):
            continue
        share = min(max(positive / n, 0.0), 1.0)
        noise = histogram.sigma * math.hypot(1.0 - share, share) / n
        error = math.hypot(noise, math.sqrt(share * (1.0 - share) / n))
        low, high = (float(expit(end)) for end in ends[k : k + 2])
        found.append(Calibrated(low, high, share, error, n))
    return tuple(found)


def gains(histogram: Histogram) -> tuple[Gain, ...]:
    """Return the shares of the positives in the top tenth, two tenths, ... of the records; () if noise hides the positives.

    Counts are taken from the highest bin down. Within a bin, positives are spread evenly.
    """
    σ, bins = histogram.sigma, len(histogram.positive)
    down = np.array([histogram.negative, histogram.positive])[:, ::-1]
    P, n = float(down[1].sum()), float(down.sum())
    if SEEN * σ * math.sqrt(bins) >= P or n <= P or P < 1.0:
        return ()
    records = np.maximum.accumulate(np.cumsum(down.sum(axis=0))) / n
    positives = np.cumsum(down[1]) / P
    found = []
    for tenth in range(1, TENTHS + 1):
        top = tenth / TENTHS
        captured = float(np.interp(top, np.concatenate([[0.0], records]), np.concatenate([[0.0], positives])))
        above = int(np.searchsorted(records, top)) + 1
        captured = min(max(captured, 0.0), 1.0)
        # Counts above and below are independent. With a bins above: Var = σ²(a(1 − c)² + (bins − a)c²)/P².
        below = max(0, bins - above)
        noise = σ * math.sqrt(min(above, bins) * (1.0 - captured) ** 2 + below * captured**2) / P
        found.append(Gain(top, captured, math.hypot(noise, math.sqrt(captured * (1.0 - captured) / P))))
    return tuple(found)
