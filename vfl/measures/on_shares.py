"""Measures of held-out records on secret shares: those of `HeldOut` and `Score`, with sums that all holders open together.

The sums are those of functions on a circle whose angle holds label and score (vfl.secure.measures). Cells, losses and bins are
therefore smoothed; the kernel of a bin is a few bins wide. Smoothing biases the measures and does not affect their privacy.
Intervals do not include the bias. `explain` states the smoothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vfl.base.holdout import Side
from vfl.errors import PrivacyError
from vfl.measures import estimates
from vfl.measures.evaluations import DECIDING, NOISED, HeldOut, event_of
from vfl.measures.score import Score
from vfl.queries import SharedTally
from vfl.secure.measures import SLACK, Moments

if TYPE_CHECKING:
    from vfl.base.types import Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries import Statistic
    from vfl.queries.protocol import Exchange
    from vfl.queries.statistics import Lost

SMOOTHED = "; scores are smoothed, a bias that intervals do not cover"
SHARES = {"cells": 0.2, "loss": 0.2, "scores": 0.6}
"""Shares of μ². Smoothed bins have more noise than others, so scores get more than in vfl.measures.evaluations."""
LOWERED = {64: 0.018, 128: 0.004, 256: 0.001}
"""{bins: twice the bias of the area under the curve by smoothing}, for ten kinds of scores that spread over a tenth of V. No
interval covers this bias, so it counts twice. Bounds that are far too wide make scores spread over less, and the bias larger:
0.03 with 128 bins at a fortieth of V.
"""


def _charged(statistic: Statistic, mu: float | None, room: float = SLACK) -> Gaussian:
    """Return the event of releasing a smoothed statistic as a μ-GDP vector. room : factor for rounded coefficients."""
    event = event_of(statistic, mu)
    if event is None:
        raise PrivacyError("measures on shares are released with noise only")
    return replace(event, sensitivity=event.sensitivity * room, sigma=event.sigma * room)


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
