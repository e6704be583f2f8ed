"""Public rules for options left at None: functions of n, p, ε, δ, loss and declared ranges, never of data.

The rules use one number, the signal-to-noise ratio ρ = μn/p. In units in which every column has M_j = 1, a run that spends μ
on P passes adds noise of standard deviation 2κ√(Pp)/(μn) to every coordinate's gradient, for any block size. With step γ and
averaging over the tail, the remaining error in F due to noise is about κ²p²/(μn)² = (κ/ρ)² for a well-conditioned problem.
This error grows with P·γ along directions that have not converged. With a higher ρ, the bias of clipping matters more than
noise, so κ and γ rise with ρ.

The constants were fitted by simulation to 69 problems on public and synthetic data, without any user's data.
tests/benchmarks/defaults.py compares the constants with an oracle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.problem import Problem
    from vfl.solvers.blocks.options import BlockOptions

REBUILD_EVERY = 10
"""Largest number of passes between rebuilds of Xw. A resumed run repeats at most this many passes."""

PRIVATE_PASSES = 50
CONVERGING_PASSES = 100
COLLINEAR_PASSES = 200
PUBLIC_PASSES = 1000
"""Largest number of passes without privacy. Most runs converge after 10 to 200 passes (vfl.solvers.iterates.convergence)."""


SPREAD_FROM = 100.0
"""Value of μn from which the labels' spread is released. At lower μn, the noise of a bin exceeds 6 % of the records."""


def signal_to_noise(problem: Problem) -> float:
    """Return ρ = μn/p, inf without privacy."""
    return math.inf if problem.mu is None else problem.mu * problem.n_records / problem.layout.n_used


def off_centre(problem: Problem) -> bool:
    """Return True if residuals may have a nonzero mean: squared loss without an intercept."""
    return not problem.loss.classification and not problem.centred


def nearly_parallel(problem: Problem) -> bool:
    """Return True if columns are probably nearly parallel: most have values of one sign, and no intercept centres them."""
    return problem.one_sided and not problem.centred


def has_spread(problem: Problem) -> bool:
    """Return True for squared loss with an intercept and a finite label range: residuals probably spread like the labels."""
    return problem.loss.quadratic and problem.centred and math.isfinite(problem.label_range)


def typical_spread(problem: Problem) -> float:
    """Return a typical standard deviation of labels, assumed to be a seventh of their declared range.

    `clip` uses a third of the declared range, which is 2.4 times this value.
    """
    return problem.label_range / 7.2


def label_share(problem: Problem) -> float:
    """Return the share of the μ² left by the moments that pays for the labels' spread; 0 releases no spread.

    The release is for squared loss with an intercept, which then starts at the released mean (vfl.solvers.releases.labels).
    Otherwise κ and the start would depend on the declared range, which is 3 to 20 spreads wide. The share is between 1/500
    and 1/20, and keeps the noise of a bin at 1.5 % of the records: √2/(√share μ) = 0.015 n. If μn < SPREAD_FROM, noise would
    dominate the histogram.
    """
    clear = (problem.mu or 0.0) * problem.n_records
    if not has_spread(problem) or clear < SPREAD_FROM:
        return 0.0
    return spread_share(clear)


def spread_share(clear: float) -> float:
    """Return the share of μ² for mean and spread of the labels, given μn (`clear`). Fewer records need a larger share."""
    return min(max((94.0 / clear) ** 2, 0.002), 0.05)


def clip(problem: Problem) -> float:
    """Return κ; inf without privacy.

    κ is a factor times a typical scaled gradient |r x_j|/√M_j, which is r/√L. The typical residual r is ½ for logistic loss,
    and a third of the declared label range for squared loss (7.2 spreads replace the range if the labels' spread is
    released). Factors:

        logistic                       0.45 ρ^0.3, between 0.4 and 8
        squared                        0.06 ρ^0.35, rising faster beyond ρ = 1000, between 0.13 and 3
        squared without an intercept   2.5; ρ/20 below ρ = 50

    Logistic: with little noise, the bias of clipping dominates. With much noise, a cap below the typical gradient loses a
    third of the signal but most of the noise. Squared: the range is many residuals wide. Without an intercept, residuals as
    large as the labels must pass unclipped, unless the noise of so large a cap exceeds these residuals. Noise adds up along
    nearly parallel columns. For such columns, the factor is multiplied by 0.7 for squared loss, and by (300/ρ)^0.3, between
    0.7 and 1, for logistic loss.
    """
    if not problem.private:
        return math.inf
    ρ = signal_to_noise(problem)
    if math.isfinite(problem.loss.slope):
        unit, times = problem.loss.slope / 2, min(max(0.45 * ρ**0.3, 0.4), 8.0)
    elif off_centre(problem):
        unit, times = problem.label_range / 3, min(2.5, ρ / 20.0)
    else:
        knee = max(1.0, ρ / 1000.0) ** 0.7
        unit, times = problem.label_range / 3, min(max(0.06 * ρ**0.35 * knee, 0.13), 3.0)
    if nearly_parallel(problem):
        times *= 0.7 if not problem.loss.classification else min(1.0, max(0.7, (300.0 / ρ) ** 0.3))
    return float(times * unit / math.sqrt(problem.loss.curvature))


def block_size(problem: Problem) -> int:
    """Return |S|, the number of columns per block: 1 for logistic loss, 8 for squared loss.

    The noise of a coordinate's gradient does not depend on |S|, and only |S| = 1 needs no bound on β for steps of 1/M_j. For
    squared loss, a joint clip keeps the direction of a block's gradient: it lowers the weight of large residuals and columns
    instead of biasing their ratios. On 22 problems the largest ratio of the error to an oracle's error fell from 16 with
    blocks of two columns to 4.5. Steps are shorter by the factor |S|; more passes compensate.
    """
    return 1 if not problem.private or problem.loss.classification else 8


def step_size(problem: Problem) -> float:
    """Return γ: 1 for logistic loss, 1.8 for squared loss (1.5 without an intercept); less if noise outweighs progress.

    Below a threshold ρ₁, γ is multiplied by √(ρ/ρ₁): ρ₁ is 1000 for logistic loss, 300 for squared loss, and 30 for squared
    loss without an intercept. Many passes of small steps act like early stopping and average the noise. γ < 2 converges for any
    block, as β = |S| bounds λ_max.
    """
    if not problem.private:
        return 1.0
    if problem.loss.classification:
        full, enough = 1.0, 1000.0
    else:
        full, enough = (1.5, 30.0) if off_centre(problem) else (1.8, 300.0)
    return full * min(1.0, math.sqrt(signal_to_noise(problem) / enough))


def iterate(problem: Problem) -> str:
    """Return 'tail' with privacy, because averaging the last half lowers the noise at no cost in budget; else 'last'."""
    return "tail" if problem.private else "last"


def passes(problem: Problem) -> int:
    """Return the number of passes: 50, 100 or 200.

    With a tail average, the remaining noise hardly depends on the number of passes (squared loss, 30,000 × 8, 20 seeds: 3.3e-4
    after 50, 3.5e-4 after 200), while more passes lower the bias along nearly collinear columns.

        logistic                       100 if ρ ≥ 300, else 50, which with small steps acts like early stopping
        squared                        200 if ρ ≥ 30, since blocks take short steps, else 100
        nearly parallel columns        200 from the same ρ on (300 or 30), else 100
        squared without an intercept   50 otherwise, since the residuals' mean moves with the noise of every column
    """
    if not problem.private:
        return PUBLIC_PASSES
    clear = signal_to_noise(problem) >= (300.0 if problem.loss.classification else 30.0)
    if off_centre(problem) and not nearly_parallel(problem):
        return PRIVATE_PASSES
    if nearly_parallel(problem) or not problem.loss.classification:
        return COLLINEAR_PASSES if clear else CONVERGING_PASSES
    return CONVERGING_PASSES if clear else PRIVATE_PASSES


def in_equal_parts(n_passes: int) -> int:
    """Return the number of passes, at least n_passes, that needs the fewest messages to two parties.

    Xw is rebuilt before each of the equal parts into which `outer_rounds` divides the passes, and a part has at most
    REBUILD_EVERY passes. A large prime number of passes divides only into parts of one pass, so Xw would be rebuilt before
    every pass.
    """
    return min(range(n_passes, n_passes + REBUILD_EVERY), key=lambda count: 2 * count + outer_rounds(count))


def outer_rounds(n_passes: int) -> int:
    """Return T, the number of outer rounds. The rounds are equal parts of the passes, of at most REBUILD_EVERY passes each."""
    part = next(d for d in range(min(REBUILD_EVERY, n_passes), 0, -1) if n_passes % d == 0)
    return n_passes // part


def explain(problem: Problem, solver: BlockOptions, once: Sequence[str]) -> tuple[str, ...]:
    """Return one sentence for every option that a rule decided. once : sentences about releases outside the passes."""
    noise = f"a signal-to-noise ratio of {signal_to_noise(problem):.3g}" if problem.private else "no noise"
    κ = solver.clip if isinstance(solver.clip, str) else f"{solver.clip:.3g}"
    said = [f"clip κ = {κ}, for {problem.loss.name} loss at {noise}."]
    shares = solver.decided
    if solver.by_pass:
        said = [
            f"record cap C = {shares.record_clip:.3g}·√p, for {problem.loss.name} loss at {noise}; a pass is one release.",
        ]
        if shares.early_share:
            said.append(f"the first 30 % of the passes spend {shares.early_share:.2g} of the passes' budget.")
        if solver.reserve_passes:
            said.append(f"passes that are set aside for repeats: {solver.reserve_passes}.")
    said += once
    return (
        *said,
        f"step_size γ = {solver.step_size:.3g}: full steps where progress outweighs noise, smaller ones elsewhere.",
        f"blocks of {solver.block_size or 'the sizes that the partition names'}, {solver.sampling} order.",
        f"{solver.outer_rounds} outer rounds of {solver.inner_rounds} block updates.",
        f"iterate = {solver.iterate}: {'averaging is free and divides the noise' if solver.iterate == 'tail' else 'as is'}.",
    )
