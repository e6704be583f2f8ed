"""Ranges of measures expected of a linear model for a given signal, from public facts alone. Nine of ten runs lie in a range.

A run's margins are those of the best linear model plus an error. Let T be the variance of this error, in units of the
variance of the best model's margins, and z = Φ⁻¹(AUC of the best model). If scores are normal, the margins of a class have
variance 2z², and

    AUC = Φ(c·z)       c = (1 + k√T·g) / √((1 + k√T·g)² + T·(1 − 1/√p))       k = CHANCE / p^¼
    loss = H − (1 − left)·G

g is −1, 0 and 1 for the low end, the middle and the high end of the range. k√T is the part of the error along the direction
of the best model: since columns are correlated, a random direction overlaps this direction as if there were √p independent
columns. H is the entropy of the labels, G the gain of the best model over a constant model, and `left` the share of G that
the run misses. T and `left` are powers of ρ = μn/p and of the signal (`Power`).

The constants nearly minimise the mean interval score of 90 % ranges, over real and simulated records with ε from 0.1 to 10
and n from 30 to 10,000. `python -m tests.benchmarks.forecast` compares forecasts with outcomes on held-out problems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from vfl.solvers.rules.record_defaults import clear, signal_to_noise

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Vector


@dataclass(frozen=True, slots=True)
class Power:
    """Power law a·ρ^−b·s^−g, for the signal s = G in nats."""

    a: float
    b: float
    g: float

    def at(self, ratio: float, signal: float) -> float:
        """Return the error due to noise, the number of steps and the cap; 0 without noise, where ρ is infinite."""
        return 0.0 if math.isinf(ratio) else self.a * ratio**-self.b * signal**-self.g


@dataclass(frozen=True, slots=True)
class Ends:
    """Power laws of T, or of `left`, for the low end, the middle and the high end of a range."""

    low: Power
    middle: Power
    high: Power


AUC = Ends(Power(3.6, 2.0, 0.75), Power(6.3, 1.85, 1.3), Power(5.0, 1.1, 0.75))
LOSS = Power(7.4, 2.55, -0.35), Power(0.55, 0.95, 1.8)
CHANCE = 1.3
FLOORS = {"auc": 0.01, "loss": 0.005}
"""Smallest half-width of a range, per measure."""
GAIN_LOW, GAIN_HIGH = 0.97, 1.1
"""Range of the gain G of the best model, in units of the gain for normal scores."""
WORSE, WORST = (0.09, 2.25), 0.7
"""Most by which a model is worse than a constant model, in nats: a + (b/μn)² for (a, b), at most WORST. b stands for the noise
in the mean of the labels.
"""

_normal = NormalDist()
_nodes, _weights = np.polynomial.hermite_e.hermegauss(60)


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a measure, with the best possible value and the value that a constant model has."""

    low: float
    high: float
    best: float
    constant: float

    def __str__(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True, slots=True)
class Facts:
    """Public facts for a forecast. ratio : ρ = μn/p. clear : μn."""

    n: int
    p: int
    ratio: float
    clear: float

    @classmethod
    def of(cls, problem: Problem) -> Facts:
        """Return the facts for this problem."""
        return cls(problem.n_records, problem.layout.n_coordinates, signal_to_noise(problem), clear(problem))


def gain_of(auc: float, share: float) -> tuple[float, float]:
    """Return (H, G) for normal scores in both classes: the loss of a constant model, and how much lower the best loss is."""
    margins, weights = margins_of(auc, share)
    losses = np.logaddexp(0.0, np.repeat([-1.0, 1.0], len(_nodes)) * margins)
    entropy = -share * math.log(share) - (1.0 - share) * math.log1p(-share)
    return entropy, entropy - float(weights @ losses)


def margins_of(auc: float, share: float) -> tuple[Vector, Vector]:
    """Return margins of the best model for normal scores in both classes, and the margins' probabilities, which add up to 1."""
    z = _normal.inv_cdf(auc)
    base, half, spread = math.log(share / (1.0 - share)), z * z, math.sqrt(2.0) * z
    margins = np.concatenate([base + half + spread * _nodes, base - half + spread * _nodes])
    return margins, np.concatenate([share * _weights, (1.0 - share) * _weights]) / _weights.sum()


def missed(facts: Facts, signal: float, share: float) -> float:
    """Return the share, from 0 to 1, of the explainable effect that a model is expected to miss.

    signal : AUC of the best linear model. share : share of positive labels.
    """
    gain = gain_of(signal, share)[1]
    error = max(AUC.middle.at(facts.ratio, gain), facts.p / (2.0 * facts.n) / gain)
    return 1.0 - _aligned(error, facts.p, 0) ** 2


def ranges(facts: Facts, signal: float, share: float) -> dict[str, Range]:
    """Return the range of each measure. Arguments as for `missed`."""
    entropy, gain = gain_of(signal, share)
    return {"auc": _auc(facts, signal, gain), "loss": _loss(facts, entropy, gain)}


def _auc(facts: Facts, signal: float, gain: float) -> Range:
    z, p = _normal.inv_cdf(signal), facts.p
    most = max(AUC.high.at(facts.ratio, gain), p / facts.n / gain)
    least = min(AUC.low.at(facts.ratio, gain), most)
    low = min(_aligned(least, p, -1), _aligned(most, p, -1))
    high = max(_aligned(least, p, 1), _aligned(most, p, 1), _aligned(least, p, 0))
    floor = FLOORS["auc"]
    return Range(max(0.0, _normal.cdf(low * z) - floor), min(1.0, _normal.cdf(high * z) + floor), signal, 0.5)


def _aligned(error: float, p: int, chance: int) -> float:
    """Return c, the correlation of a run's margins with the best model's margins, if T = error."""
    free = math.sqrt(p)
    along = 1.0 + chance * CHANCE * math.sqrt(error / free)
    across = error * (1.0 - 1.0 / free)
    return along / math.sqrt(along * along + across) if along or across else 0.0


def _loss(facts: Facts, entropy: float, gain: float) -> Range:
    most = max(LOSS[1].at(facts.ratio, gain), facts.p / facts.n / gain)
    least = min(1.0, LOSS[0].at(facts.ratio, gain))
    high = (
        min(entropy - (GAIN_LOW - most) * gain, entropy + min(WORST, WORSE[0] + (WORSE[1] / facts.clear) ** 2))
        + FLOORS["loss"]
    )
    low = max(0.0, entropy - (GAIN_HIGH - least) * gain - FLOORS["loss"])
    return Range(min(low, high - 2.0 * FLOORS["loss"]), high, entropy - gain, entropy)
