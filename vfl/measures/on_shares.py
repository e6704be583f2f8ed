"""Measures of held-out records on secret shares: those of `HeldOut` and `Score`, with sums that all holders open together.

The sums are those of functions on a circle whose angle holds label and score (vfl.secure.measures). Cells, losses and bins are
therefore smoothed; the kernel of a bin is a few bins wide. Smoothing biases the measures and does not affect their privacy.
Intervals do not include the bias. `explain` states the smoothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.base.holdout import Side
from vfl.errors import PrivacyError
from vfl.measures import estimates
from vfl.measures.evaluations import DECIDING, NOISED, HeldOut, event_of
from vfl.measures.score import Score
from vfl.queries import SharedTally
from vfl.secure.measures import SLACK, Moments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.types import Vector
    from vfl.measures.estimates import Estimate
    from vfl.privacy.events import Gaussian
    from vfl.queries import Statistic
    from vfl.queries.protocol import Exchange
    from vfl.queries.statistics import Lost

SMOOTHED = "; scores are smoothed, a bias that intervals do not cover"
NARROW = "; all but the loss is withheld, since scores may spread over too few bins of their bounds"
SPECTRUM, SPREAD = 0.155, 0.5
"""Scores count as spread over enough bins if their characteristic function, at SPECTRUM cycles per bin, is below SPREAD. Then
a normal distribution has a standard deviation of at least 1.2 bins, and smoothing moves the area by at most 0.025 in eight
kinds of scores; without the rule by up to 0.3.
"""
SHARES = {"cells": 0.2, "loss": 0.2, "scores": 0.6}
"""Shares of μ². Smoothed bins have more noise than others, so scores get more than in vfl.measures.evaluations."""
LOWERED = {64: 0.018, 128: 0.004, 256: 0.001}
"""{bins: twice the bias of the area under the curve by smoothing}, for ten kinds of scores that spread over a tenth of V. No
interval covers this bias, so it counts twice. Scores that spread over less have more; NARROW withholds their measures.
"""


def _charged(statistic: Statistic, mu: float | None, room: float = SLACK) -> Gaussian:
    """Return the event of releasing a smoothed statistic as a μ-GDP vector. room : factor for rounded coefficients."""
    event = event_of(statistic, mu)
    if event is None:
        raise PrivacyError("measures on shares are released with noise only")
    return replace(event, sensitivity=event.sensitivity * room, sigma=event.sigma * room)


def spread_over_bins(counts: Sequence[float], n_records: int, sigma: float) -> bool:
    """Return True if released counts show that scores spread over enough bins. sigma : noise of a bin, counted twice.

    The frequency is even, so the arcs of both classes add up. Cells are smoothed as if there were 128 bins.
    """
    cycles = 2 * round(SPECTRUM / 2 * min(len(counts), 128))
    shown = abs(np.fft.rfft(counts)[cycles]) + 2.0 * sigma * math.sqrt(len(counts) / 2.0)
    return bool(shown < SPREAD * n_records)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutOnShares(HeldOut):
    """Measures of a logistic model on held-out records, whose linear predictors and labels nobody sees.

    The first release has smoothed counts of outcomes and the sum of clamped losses. The second has moments of the scores, which
    the findings show as histograms (`Moments`).
    """

    @property
    def _parts(self) -> dict[str, float]:
        return DECIDING if self._several else SHARES

    @property
    def opened(self) -> tuple[tuple[Any, Gaussian], ...]:
        """Return the statistic and event of each release, in order."""
        first, moments = self._first, self._moments
        return (first, _charged(first, self._shares[0])), (moments, self._event_of_moments(moments))

    @property
    def _moments(self) -> Moments:
        """The histogram with the least error of the area under the curve. Public numbers alone give its bias and noise."""

        def error(bins: int) -> float:
            n, sigma = self.n_records / 2, self._noise_of(Moments(bins))
            return math.hypot(LOWERED[bins], estimates.area_noise(bins // 2, n, n, sigma))

        return Moments(min(LOWERED, key=error))

    def _event_of_moments(self, moments: Moments) -> Gaussian:
        return _charged(moments, self._shares[1], 1.0)

    def _noise_of(self, moments: Moments) -> float:
        """Return the standard deviation of a bin's noise."""
        return moments.deviation(self.price * self._event_of_moments(moments).sigma)

    @property
    def _events(self) -> tuple[Gaussian, ...]:
        return tuple(event for _, event in self.opened)

    @property
    def _first_event(self) -> Gaussian:
        return self._events[0]

    def _second_event(self) -> Gaussian:
        return self._events[1]

    @property
    def _binned(self) -> tuple[int, int, float]:
        moments = self._moments
        return moments.bins // 2, self.n_records, self._noise_of(moments)

    @property
    def _clamped(self) -> str:
        return SMOOTHED

    def _tallied(self, first: Any, event: Gaussian | None) -> Exchange[tuple[Vector, float]]:
        released, _ = yield SharedTally(first, event, Side.HELD_OUT, 0)
        return released, self.price * self._first_event.sigma

    def _histogram(self, w: Vector, rate: float, event: Gaussian | None) -> Exchange[tuple[Vector, Vector, float]]:
        moments = self._moments
        released, (V,) = yield SharedTally(moments, event, Side.HELD_OUT, 1)
        return moments.edges(float(V)), moments.histogram(released, self.n_records), self._noise_of(moments)

    def _measure(self, w: Vector, found: dict[str, Estimate], further: dict[str, Any]) -> Exchange[None]:
        yield from HeldOut._measure(self, w, found, further)
        histogram = further["histogram"]
        if not spread_over_bins([*histogram.negative, *histogram.positive], self.n_records, histogram.sigma):
            found |= {name: replace(own, withheld=True) for name, own in found.items() if name != "loss"}
            further["remark"] = NARROW

    def explain(self) -> str:
        """Return the sentence of `HeldOut`, and the smoothing."""
        width = f"over about 1/{self._moments.bins // 4} of their range"
        return HeldOut.explain(self) + SMOOTHED.replace("smoothed", f"smoothed {width}")


@dataclass(frozen=True, slots=True, eq=False)
class ScoreOnShares(Score):
    """One measure of a logistic model on held-out records, opened from shares."""

    @property
    def opened(self) -> tuple[tuple[Any, Gaussian], ...]:
        """Return the statistic and event of the release."""
        return ((self._lost, self._event),)

    @property
    def _event(self) -> Gaussian:
        return _charged(self._lost, self.mu)

    @property
    def _note(self) -> str:
        return NOISED + SMOOTHED

    def _tallied(self, lost: Lost, event: Gaussian) -> Exchange[Vector]:
        released, _ = yield SharedTally(lost, event, Side.HELD_OUT, 0)
        return released
