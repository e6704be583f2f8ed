"""Public rules for standard errors: which runs may have them, and how noisy the released curvature may be.

All rules use n, p, ε, δ, loss, penalty and options only, never data or released values: a refusal that depended on a noisy
standard error would lower the coverage of the remaining intervals.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.errors import SpecificationError
from vfl.privacy.gaussian_dp import epsilon_of, mu_of
from vfl.solvers.blocks.shares import Budget
from vfl.solvers.releases import counts, products
from vfl.solvers.releases.once import Phase
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.solvers.blocks.options import BlockOptions

LEAST = 1.5
"""Smallest ratio of the curvature to its noise for intervals. Below it, hardly any coefficient would have a standard error."""
SETTLED = 20.0
"""Smallest ρ = μn/p for intervals. Runs with a lower ρ stop early, which biases coefficients by more than a standard error."""
SETTLED_CURVED = 50.0
"""Smallest ρ of a subsample if the loss is not squared. At lower ρ, the longest run that noise allows does not converge."""
LARGEST_RIDGE = 1.0
"""Largest nλ of an L2 penalty for intervals: scikit-learn's default C = 1.

A larger penalty would bias coefficients by a notable part of a standard error.
"""


def require(solver: BlockOptions, problem: Problem) -> None:
    """Raise SpecificationError, which names the remedy, if the standard errors of a resolved solver would mislead."""
    unfit = _unfit(solver, problem)
    if unfit:
        what, remedy = unfit
        raise SpecificationError(f"intervals need {what}: {remedy}, or leave intervals out")
    _require_signal(solver, problem)


def _require_signal(solver: BlockOptions, problem: Problem) -> None:
    """Raise SpecificationError if noise would outweigh gradients or curvature. The message names a sufficient n, ε or p."""
    ρ, P = record_defaults.signal_to_noise(problem), math.inf
    if problem.inference is not None:
        event, _ = products.events_of(problem, Budget(solver, problem).spent(Phase.END))
        P = products.clearness(problem, event, products.longer(problem, event))
    settled = SETTLED if problem.subsamples == 1 or problem.loss.quadratic else SETTLED_CURVED
    if ρ >= settled and P >= LEAST:
        return
    n, p = problem.n_records * problem.subsamples, problem.layout.n_columns
    total, delta = problem.mu, problem.delta
    if total is None or delta is None:
        return
    short = max(settled / ρ, LEAST / P)
    enough = n * short
    if abs(delta * n**2 - 1.0) < 0.01:  # at the default δ = 1/n², the same ε allows a smaller μ for more records
        for _ in range(10):
            enough = n * short * total / mu_of(problem.epsilon or 0.0, enough**-2.0)
    fewest = int(min(p * ρ / settled, p * (P / LEAST) ** (2.0 / 3.0)))
    each = f", {problem.subsamples} subsamples" if problem.subsamples > 1 else ""
    fewer = f", or about {fewest} coefficients" if fewest > 1 else ""
    drowned = "the gradients" if ρ < settled else "the curvature that they rest on"
    raise SpecificationError(
        f"intervals would mislead at n = {n:,}{each}, {p} coefficients and ε = {problem.epsilon:.3g}: most of "
        f"{drowned} would be noise. Use about n = {_rounded(enough):,} records or ε = "
        f"{epsilon_of(total * short, delta):.2g}{fewer}, or leave intervals out"
    )


def _rounded(count: float) -> int:
    digit: int = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / digit) * digit


def _unfit(solver: BlockOptions, problem: Problem) -> tuple[str, str] | None:
    loss, penalty = problem.loss, problem.penalty
    n = problem.n_records * problem.subsamples
    ridge = n * penalty.convexity
    unbiased = (
        (
            not loss.multinomial,
            "one margin per record",
            "use logistic loss for a one-vs-rest model, classes=((A, B), C)",
        ),
        (
            math.isfinite(loss.curvature) and (loss.log_odds or not loss.classification),
            "logistic, squared or Huber loss, or a loss with a log link",
            "choose one of them",
        ),
        (
            loss.power is None or problem.inference is not None,
            "intervals=True for a loss with a log link",
            "take it instead of subsamples",
        ),
        (
            loss.power is None or counts.has_counts(problem),
            "an intercept and declared bounds of the label for a loss with a log link",
            "declare both",
        ),
        (penalty.name in ("none", "l2"), "coefficients without the bias of a penalty", "use no penalty"),
        (
            ridge <= LARGEST_RIDGE,
            f"an L2 penalty of at most {LARGEST_RIDGE:g}/n",
            f"lower its strength to {LARGEST_RIDGE / n:.2g}",
        ),
    )
    linear = (
        (solver.by_pass, "clip='record'", "leave clip and sampling out, or declare an intercept"),
        (
            solver.parallel == 1 and solver.sampling in ("shuffled", "cyclic"),
            "blocks that move in turn",
            "leave parallel out",
        ),
        (solver.noise_geometry == "scaled", "noise_geometry='scaled'", "leave it out"),
        (solver.iterate == "tail", "the average of the last iterates", "use SkGD with iterate='tail'"),
    )
    for met, what, remedy in (*unbiased, *(linear if problem.inference is not None else ())):
        if not met:
            return what, remedy
    return None
