"""Expected widths of the intervals of coefficients, from public facts and declared guesses, before any data are read.

For uncorrelated columns of standard deviation 1, the variance of a coefficient is the sum of

    sampling φ/(n h̄)        noise (2 z C)²/(n h̄)²/T

h̄ is the mean curvature at the margins of the guessed signal, φ the residuals' variance divided by h̄, C the cap, z the noise
multiplier, and T the number of passes over which the run averages. Correlated columns have wider intervals, above all with
much noise. A mean over m subsamples has 1/m of the variance of one subsample, and a quantile of Student's t replaces the
normal quantile. The noise in the released matrices H and J also widens intervals: simulated releases, from a public seed,
pass through the estimator that a run uses (vfl.inference.matrices).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.inference.matrices import Noisy
from vfl.inference.summary import quantile
from vfl.planning.quality import margins_of
from vfl.solvers.blocks.shares import Budget
from vfl.solvers.releases import products
from vfl.solvers.releases.once import Phase
from vfl.solvers.releases.smoothness import Curvature
from vfl.solvers.rules import record_defaults
from vfl.solvers.rules.defaults import typical_spread

if TYPE_CHECKING:
    from vfl.problem import Problem
    from vfl.types import Vector

NORMAL = 1.959963984540054
CORRELATED = 0.5
"""Correlation of neighbouring columns that is assumed for the wider of the two expected widths."""
REPEATS, DRAWS, ENOUGH = 8, 16, 400
"""Largest number of simulated releases of H and J, and of draws from the posterior of each release. For p columns,
1 + ENOUGH // p are enough, since every draw has p diagonal entries.
"""


@dataclass(frozen=True, slots=True)
class Width:
    """Expected half-width of the 95 % interval of a coefficient, in units of 1/(standard deviation of its column).

    half : half-width for uncorrelated columns, in log-odds, or in standard deviations of the label. correlated : half-width
    if
    neighbouring columns have correlation CORRELATED. over : `half` divided by the half-width without privacy.
    """

    half: float
    correlated: float
    over: float


def width_of(solver: Any, problem: Problem, signal: float, share: float | None) -> Width | None:
    """Return the expected width for a signal; None for a run without intervals, and for a loss without a rule.

    signal : AUC or R² of the best linear model. share : share of positive labels; None without classes.
    """
    if not problem.inferred or not (problem.loss.log_odds or problem.loss.quadratic):
        return None
    solver, n, L = solver.resolve(problem), problem.n_records, problem.loss.curvature
    walk = Budget(solver, problem).walk(Curvature.flat(problem))
    z, later = walk.multipliers[-1]
    averaged = max(1, min(later, walk.n_passes - record_defaults.early_passes(walk.n_passes)))
    clip = (solver.decided.record_clip or 0.0) * math.sqrt(problem.layout.n_coordinates * L)
    if share is None:
        clip, curvature, variance = clip / typical_spread(problem), 1.0, 1.0 - signal
    else:
        margins, weights = margins_of(signal, share)
        π = 1.0 / (1.0 + np.exp(-margins))
        curvature = variance = float(weights @ (π * (1.0 - π)))
    sampling = variance / (n * curvature**2)
    noise = (2.0 * z * clip / (n * curvature)) ** 2 / averaged
    m = problem.subsamples
    reach = quantile(0.95, None if m == 1 else m - 1)
    sigmas = (0.0, 0.0)
    if problem.inference is not None:
        cap = clip / math.sqrt(L)
        events = products.events_of(problem, Budget(solver, problem).spent(Phase.END))
        bounds = (products.bounds_of(problem, cap)[0], cap**2)
        sigmas = (events[0].sigma * bounds[0] * L / n / curvature, events[1].sigma * bounds[1] * L / n / variance)

    def half(correlation: float) -> float:
        """Return the half-width for a typical column if neighbouring columns have this correlation."""
        rng, p = np.random.default_rng(0), problem.layout.n_coordinates
        H, J = (_drawn(correlation, σ, p, rng) for σ in sigmas)
        inverse = np.linalg.inv(H)
        total = sampling * (inverse @ J @ inverse) + noise * (inverse @ inverse)
        return reach * math.sqrt(float(np.median(np.diagonal(total.mean(axis=1), axis1=-2, axis2=-1))) / m)

    return Width(half(0.0), half(CORRELATED), half(0.0) * math.sqrt(m / sampling) / NORMAL)


def _drawn(correlation: float, sigma: float, p: int, rng: np.random.Generator) -> Vector:
    """Simulate noisy releases of a correlation matrix; return draws (releases, draws, p, p) from its posterior.

    correlation : r, in the entries r^|i−j| of the matrix. sigma : σ of the noise.
    """
    whole, found = correlation ** abs(np.subtract.outer(np.arange(p), np.arange(p))), []
    for _ in range(min(REPEATS, 1 + ENOUGH // p)):
        noise = np.tril(rng.normal(scale=sigma / math.sqrt(2.0), size=(p, p)))
        released = whole + (noise + noise.T) / np.where(np.eye(p), math.sqrt(2.0), 1.0)
        found.append(Noisy(released, sigma).drawn(min(DRAWS, 1 + ENOUGH // p), rng))
    return np.array(found)
