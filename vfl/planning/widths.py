"""Expected widths of intervals, from public facts and declared guesses, before any data are read.

For columns of standard deviation 1 that are not correlated, a coefficient has the variance

    sampling φ/(n h̄)        noise (2 z C)²/(n h̄)²/T

h̄ is the mean curvature at the margins that the guessed signal gives, φ the residuals' variance over h̄, and C, z and T are cap,
noise multiplier and number of the passes that the run averages. Correlated columns have wider intervals, and more so by noise.
A mean over subsamples has the variance of one of them over their number, and Student's t for the normal quantile. The noise of
the releases H and J is left out. At n ≥ 20,000, measured widths were within 1.5 times these at 5 columns, but
4 times at 20 columns and ε = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vfl.inference.summary import quantile
from vfl.planning.quality import margins_of
from vfl.solvers.blocks.shares import Budget
from vfl.solvers.releases.smoothness import Curvature
from vfl.solvers.rules import record_defaults
from vfl.solvers.rules.defaults import typical_spread

if TYPE_CHECKING:
    from vfl.problem import Problem

NORMAL = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Width:
    """Expected half-width of a 95 % interval of a coefficient per standard deviation of its column.

    half : in log-odds, or in standard deviations of the label. over : factor over the half-width without privacy.
    """

    half: float
    over: float


def width_of(solver: Any, problem: Problem, signal: float, share: float | None) -> Width | None:
    """Return the expected width for a signal; None for a run without intervals, or a loss without a rule.

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
    return Width(reach * math.sqrt((sampling + noise) / m), reach / NORMAL * math.sqrt(1.0 + noise / sampling))
