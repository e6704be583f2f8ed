"""Public rules for options left open: functions of n, p, ε, δ, loss and declared ranges, never of data.

The rules use one number, the signal-to-noise ratio ρ = μn/p. In units where every column has M_j = 1, a run that spends μ
on P passes adds noise of standard deviation 2κ√(Pp)/(μn) to every coordinate's gradient, whatever the block size. With
step γ and averaging over the tail, the remaining noise in F is about κ²p²/(μn)² = (κ/ρ)² for a well-conditioned problem.
It grows with P·γ along directions that have not converged. So κ rises with ρ (clipping bias against noise), and so does γ.

The constants were fitted by simulation to 69 problems on public and synthetic data, without any user's data;
tests/benchmarks/defaults.py compares them with an oracle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.problem import Problem
    from vfl.solvers.skgd import SkGD

REBUILD_EVERY = 10
"""Passes after which Xw is rebuilt at the most: a resumed run repeats less than that."""

PRIVATE_PASSES = 50
CONVERGING_PASSES = 100
COLLINEAR_PASSES = 200
PUBLIC_PASSES = 1000
"""At the most: a run without privacy stops where nothing moves (vfl.solvers.iterates.convergence), mostly after 10 to 200."""


SPREAD_FROM = 100.0
"""μn from which the spread of the labels is released: below, its noise is a share of 6 % of the records and more."""


def signal_to_noise(problem: Problem) -> float:
    """Return ρ = μn/p, inf without privacy."""
    return math.inf if problem.mu is None else problem.mu * problem.n_records / problem.layout.n_columns


def off_centre(problem: Problem) -> bool:
    """Return True if residuals keep a mean: squared loss without an intercept to absorb it."""
    return not problem.loss.classification and not problem.centred


def nearly_parallel(problem: Problem) -> bool:
    """Return True if columns are probably nearly parallel: most keep their sign, and no intercept centres them."""
    return problem.one_sided and not problem.centred


def has_spread(problem: Problem) -> bool:
    """Return True if residuals are as wide as the labels' spread: squared loss with an intercept for their mean."""
    return problem.loss.quadratic and problem.centred and math.isfinite(problem.label_range)


def typical_spread(problem: Problem) -> float:
    """Return the standard deviation of labels that fill a declared range as most do: a seventh of it.

    2.4 times it is the third of the range that the clip counts in (`clip`).
    """
    return problem.label_range / 7.2


def label_share(problem: Problem) -> float:
    """Return the share of the μ² left by the moments for the spread of the labels (vfl.solvers.releases.labels); 0: none.

    For squared loss with an intercept, which then starts at their mean. A declared range is anything from 3 to 20 spreads
    wide, and κ and the start with it. The share keeps the noise of a bin at 1.5 % of the records, √2/(√share μ) = 0.015 n,
    between a five hundredth and a twentieth; below μn = SPREAD_FROM its noise would dominate the histogram.
    """
    clear = (problem.mu or 0.0) * problem.n_records
    if not has_spread(problem) or clear < SPREAD_FROM:
        return 0.0
    return spread_share(clear)


def spread_share(clear: float) -> float:
    """Return the share of μ² for mean and spread of the labels, given μn. The noise of a bin is then as in `label_share`."""
    return min(max((94.0 / clear) ** 2, 0.002), 0.05)


def clip(problem: Problem) -> float:
    """Return κ, or inf without privacy.

    The unit is a typical scaled gradient |r x_j|/√M_j: the residual ½ for logistic loss, a third of the declared label range
    for squared loss, over √L. Logistic: 0.45 ρ^0.3 of them, between 0.4 and 8: with little noise the bias of clipping
    is what remains, with much noise a cap below the typical gradient loses a third of the signal and most of the noise.
    Squared: the range stands for 7.2 spreads of the labels, and for those that are found where they are released
    (`label_share`). It is many residuals wide, so 0.06 ρ^0.35 of them, rising faster beyond ρ = 1000, between
    0.13 and 3. Squared without an intercept: 2.5, because residuals as long as the labels must pass unclipped, unless the
    noise of so large a cap exceeds them: ρ/20 of them below ρ = 50. Where columns are nearly parallel noise adds up along
    them, so all of this times 0.7 for squared loss; for logistic loss it stays where it was at ρ = 300 until that is 0.7
    of it.
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
    """Return |S|: 1 for logistic loss, 8 for squared loss.

    The noise of a coordinate's gradient does not depend on |S|, and steps of 1/M_j need no bound on β at |S| = 1 alone. A
    joint clip keeps a gradient's direction, so that the long residuals and long columns of squared loss are weighted down
    instead of biased: on 22 problems the largest error over an oracle's fell from 16 with pairs to 4.5. Its steps are
    shorter by |S|, which passes make good.
    """
    return 1 if not problem.private or problem.loss.classification else 8


def step_size(problem: Problem) -> float:
    """Return γ: 1 for logistic loss, 1.8 for squared loss (1.5 without an intercept), less where noise outweighs progress.

    Below ρ₁ it is less by √(ρ/ρ₁): ρ₁ is 1000 for logistic loss, 300 for squared loss, and 30 for squared loss without an
    intercept. Small steps of many passes are early stopping that averages the noise. γ < 2 converges for any block, as
    β = |S| bounds λ_max.
    """
    if not problem.private:
        return 1.0
    if problem.loss.classification:
        full, enough = 1.0, 1000.0
    else:
        full, enough = (1.5, 30.0) if off_centre(problem) else (1.8, 300.0)
    return full * min(1.0, math.sqrt(signal_to_noise(problem) / enough))


def iterate(problem: Problem) -> str:
    """Return 'tail' with privacy: averaging the last half divides the noise, and costs no budget. Else 'last'."""
    return "tail" if problem.private else "last"


def passes(problem: Problem) -> int:
    """Return the number of passes: 50, 100 or 200.

    With a tail average the noise that is left hardly depends on their number (squared loss, 30,000 × 8, 20 seeds: 3.3e-4
    after 50, 3.5e-4 after 200), while the bias along nearly collinear columns falls with it. So 100 where ρ ≥ 300 for
    logistic loss; below, with small steps, fewer passes are early stopping. For squared loss 200 where ρ ≥ 30, since its
    blocks take short steps, else 100. For columns that are nearly parallel twice what logistic loss makes, by the same limits.
    50 for other squared losses without an intercept, whose residuals' mean moves with the noise of every column.
    """
    if not problem.private:
        return PUBLIC_PASSES
    clear = signal_to_noise(problem) >= (300.0 if problem.loss.classification else 30.0)
    if off_centre(problem) and not nearly_parallel(problem):
        return PRIVATE_PASSES
    if nearly_parallel(problem) or not problem.loss.classification:
        return COLLINEAR_PASSES if clear else CONVERGING_PASSES
    return CONVERGING_PASSES if clear else PRIVATE_PASSES


def outer_rounds(n_passes: int) -> int:
    """Return T: the passes in equal parts of at most REBUILD_EVERY."""
    part = next(d for d in range(min(REBUILD_EVERY, n_passes), 0, -1) if n_passes % d == 0)
    return n_passes // part


def explain(problem: Problem, solver: SkGD, once: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for every option that a rule decided. once : sentences of the one-time releases."""
    noise = f"signal-to-noise μn/p = {signal_to_noise(problem):.3g}" if problem.private else "no noise"
    κ = solver.clip if isinstance(solver.clip, str) else f"{solver.clip:.3g}"
    said = [f"clip κ = {κ}, for {problem.loss.name} loss at {noise}."]
    shares = solver.decided
    if solver.by_pass:
        said = [
            f"record cap C = {shares.record_clip:.3g}·√p, for {problem.loss.name} loss at {noise}; a pass is one release.",
        ]
        if shares.early_share:
            said.append(f"the first 30 % of the passes spend {shares.early_share:.2g} of what the passes spend.")
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
