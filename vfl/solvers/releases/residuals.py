"""Histogram of residuals, released once between two passes, from which a run chooses its record cap.

Guarantee. Replacing a record moves one count from one bin to another: Δ = √2. Choosing the cap is post-processing.

Neither the declared range nor the spread of the labels describes residuals. Residuals are small if columns explain the label
well, and skewed if residuals grow with the prediction. A wide cap adds noise; a narrow cap adds bias if residuals are skewed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.privacy.calibration import noise_multiplier
from vfl.queries import Tally
from vfl.queries.statistics import BinCounts, on_simplex
from vfl.solvers.releases.labels import noised
from vfl.solvers.releases.once import OneTime, Phase
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Integers, Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange
    from vfl.solvers.releases.once import Run

_SIDE = 2.0 ** np.arange(-4.0, 3.1, 0.5)
EDGES = np.concatenate([-_SIDE[::-1], _SIDE])
"""Edges of the bins, in units of the labels' spread, or of the threshold of Huber loss."""
MIDDLES = np.convolve(np.concatenate([EDGES[:1] * 1.6, EDGES, EDGES[-1:] * 1.6]), (0.5, 0.5), "valid")
CAPS = 2.0 ** np.arange(-4.0, 2.6, 0.25)
"""Candidates for the cap of a typical record, in the units of EDGES."""
CLEAR = 2.0
"""Standard deviations of noise up to which the count of a bin is taken for 0."""
FREE = 0.3
"""Smallest share of the residuals that a cap leaves unclipped."""
DEARER = 2.0
"""Weight of the error due to noise."""


@dataclass(frozen=True, slots=True)
class ResidualCounts(BinCounts):
    """Histogram of the residuals y − v, in units of `unit`: bins between EDGES, and two outer bins. NaN counts in the last bin.

    unit : positive and public or released.
    """

    unit: float

    dimension: ClassVar[int] = EDGES.size + 1

    def __post_init__(self) -> None:
        if not 0.0 < self.unit < math.inf:
            raise ValueError(f"a histogram of residuals needs a positive unit, not {self.unit!r}")

    def bin_of(self, margins: Vector, labels: Vector, *kept: Vector) -> Integers:
        """Return the bin of each residual."""
        with np.errstate(all="ignore"):
            return np.asarray(np.searchsorted(EDGES, (labels - margins) / self.unit, side="right"))


def row(problem: Problem, share: float, cap: float, early_share: float) -> OneTime:
    """Return the release of the histogram, between the early passes and the others.

    cap : C/√p in units of √M_j, before the choice. early_share : share of the passes' μ² that is spent by then.
    """

    def make(run: Run, events: tuple[Gaussian, ...]) -> Exchange[None]:
        (event,), typical = events, record_defaults.typical_residual(problem)
        query = Tally(ResidualCounts(typical * run.known.unit), event)
        if counts := (yield from run.present.put(query, run.w)):
            width = 1.0 if math.isfinite(problem.loss.slope) else math.inf
            signal = record_defaults.signal_to_noise(problem) * math.sqrt(1.0 - early_share)
            found = chosen(counts[0], event.sigma, problem.n_records, problem.layout.n_used, signal, width)
            run.walk.factor = found * typical / (cap * math.sqrt(problem.loss.curvature))

    def events(mu: float) -> tuple[Gaussian, ...]:
        return (noised(ResidualCounts(1.0), noise_multiplier(mu, 1)),)

    said = f"histogram of residuals for {100 * share:.2g} % of the budget left: C follows their size and skewness."
    return OneTime(Phase.BETWEEN, share, events, make, said)


def chosen(noisy: Vector, sigma: float, n_records: int, coordinates: int, signal: float, width: float) -> float:
    """Return the entry k of CAPS with the least estimated error.

    Let b be the root of E clip(r − b, ±k) = 0 for residuals r, h = P(|r − b| < k), and m, h∞ the same for k = width. Then

        error(k) = DEARER·k²/(ρ²h) + ½(b − m)² + p/(2n)·E (clip(r − b, ±k)/h − clip(r − m, ±width)/h∞)²:

    noise, bias where residuals are skewed, and distance from the minimiser of these records.

    noisy : counts with noise of deviation sigma. width : largest |derivative| of the loss, in units of the bins.
    """
    share = on_simplex(noisy, n_records)
    share = np.where(share < CLEAR * sigma, 0.0, share)
    if not share.any():
        share = np.ones(share.size)
    share /= share.sum()
    k = np.append(CAPS[width >= CAPS], min(width, -2.0 * MIDDLES[0]))[:, None]
    b = np.zeros(k.shape)
    for _ in range(10):
        free = np.maximum((abs(MIDDLES - b) < k) @ share, 0.05)[:, None]
        b += np.clip((np.clip(MIDDLES - b, -k, k) @ share)[:, None] / free, -1.0, 1.0)
    moves = np.clip(MIDDLES - b, -k, k) / free
    errors = DEARER * k**2 / (signal**2 * free) + 0.5 * (b - b[-1]) ** 2
    errors[:, 0] += coordinates / (2.0 * n_records) * ((moves - moves[-1]) ** 2 @ share)
    errors[free < FREE] = math.inf
    return float(k[:-1][errors[:-1].argmin(), 0])
