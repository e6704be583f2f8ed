"""Public rules for the options of a record cap: functions of n, p, ε, δ, loss and declared ranges only, never of data.

They rest on ρ = μn/p, with μ the budget that the moments leave, on C = c·√(p/L), and on the time τ = γP that P passes with
steps of γ make. In units where every column has M_j = L, the noise that is left in F grows as c²τ²/ρ² along directions that
have not converged, and as c²/ρ² along those that have.

Unless a table says otherwise, its constants were fitted by simulation to 35 problems and looked at once on 20 others, 6 of them
made after the rules were fixed. Runs with squared loss and without an intercept, or with blocks of several columns, were hardly
among them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.losses.base import MEAN, SHARES
from vfl.penalties import declares_sparse
from vfl.solvers.releases import counts
from vfl.solvers.rules.defaults import (
    SPREAD_FROM,
    has_spread,
    nearly_parallel,
    off_centre,
    spread_share,
    typical_spread,
)

if TYPE_CHECKING:
    from vfl.problem import Problem

PARALLEL_CLEAR, OFF_CENTRE_CLEAR = 100.0, 1000.0
"""ρ from which squared loss without an intercept has a clip per coordinate: with nearly parallel columns, and with others."""
CAPS = {
    "bounded": (0.065, 0.4, 0.3, 1.5),  # 35 problems; beyond 1.5 nothing of a typical record is cut
    "centred": (0.07, 0.4, 0.12, 2.5),  # 35 problems
    "off centre": (0.075, 1.0, 0.3, 3.0),  # California raw and standardised, ε = 1; two simulated problems
}
"""{kind: (a, b, least, most)} of the cap a·ρ^b, in units of √(p/L) and of a typical residual."""
WIDER = (100.0, OFF_CENTRE_CLEAR, 0.45)
"""(from, to, power) of a further factor (ρ/from)^power without an intercept, where columns are not nearly parallel. Chosen on
California standardised at ε = 1, after the problems kept aside had been seen without it."""
TIMES = {
    "bounded": ((0.3, 1.2), (0.1, 2)),  # 35 problems
    "centred": ((0.5, 1.4), (0.3, 2)),  # 35 problems
    "off centre": ((0.5, 1), (0.3, 2), (0.3, 3)),  # simulated problems at low ρ
}
"""{kind: ((a, b), ...)} of the time, the least of all a·ρ^b."""
LONGEST = {
    "bounded": ((1000.0, 200.0), (0.0, 100.0)),
    "bounded, parallel": ((2000.0, 400.0), (100.0, 200.0), (0.0, 100.0)),  # 400: Electricity raw, ε = 10
    "centred": ((150.0, 200.0), (0.0, 100.0)),
    "centred, parallel": ((100.0, 200.0), (0.0, 100.0)),
    "off centre": ((0.0, 30.0),),
}
"""{kind: ((from which ρ, time), ...)} of the longest time; columns that are nearly parallel converge slowly."""
EARLY = 0.3
"""Share of the passes that are early: the average of the tail leaves them out."""
EARLY_SHARE = 0.15
"""Share of μ² that the early passes spend: half of what they would by their number."""
GROWS = 20.0
"""ρ below which every pass spends the same: short runs forget little of the noise of their first passes."""
FAINT = 2.0
"""ρ below which losses without an intercept take few steps under a record cap."""
STILL = 0.3
"""Time below which a run stays near its start."""
SHRINKS = 1.5
"""Time below which the moves of a run under an L1 part of the penalty are shrunk."""
UNSURE = 10.0
"""ρ below which smoothed hinge starts at its best constant model; above, runs from 0 left 1 to 9 % less on three problems."""
WIDENS = 300.0
"""Least ρ at which sums of what the record cap cuts are released."""
WIDE = {"bounded": 1.0, "centred": 3.0, "off centre": 3.0}
"""{kind: least cap} where standard errors are asked for: they describe the capped regression, and a bias that the cap makes is
larger than the noise that it saves."""
MOMENTUM = 0.5
"""Largest momentum by rule. With whole steps more of it could diverge (vfl.solvers.iterates.momentum)."""
FEW = 40
"""Passes that the rule for momentum leaves to a run that has them."""
MOVES_ON = 100.0
"""ρ below which runs have momentum by rule (docs/studies/dp-skgd.md): above, half of the passes left up to 1.4 of the error on
problems kept aside."""
FEWEST = 3
MOST = 400
"""Passes at the most, also where long blocks make short steps."""


def signal_to_noise(problem: Problem) -> float:
    """Return ρ = μn/p of what the moments leave, inf without privacy."""
    return clear(problem) / problem.layout.n_used


def clear(problem: Problem) -> float:
    """Return μn of what the moments leave, inf without privacy."""
    if problem.mu is None:
        return math.inf
    spent = problem.smoothness_share if isinstance(problem.smoothness, str) and problem.smoothness == "private" else 0.0
    return problem.mu * math.sqrt(1.0 - spent) * problem.n_records


def serves(problem: Problem) -> bool:
    """Return True if the record cap is the default: everywhere but without an intercept that absorbs the residuals' mean.

    Squared loss has it without one too, unless there is so little noise that the cap's bias would be most of the error
    (`_clear_off_centre`). Other losses have it below FAINT, where a clip per coordinate does not stop early.
    """
    if not problem.private or not off_centre(problem):
        return problem.private
    return signal_to_noise(problem) < (_clear_off_centre(problem) if problem.loss.quadratic else FAINT)


def _clear_off_centre(problem: Problem) -> float:
    """Return the ρ from which squared loss without an intercept has a clip per coordinate."""
    return PARALLEL_CLEAR if nearly_parallel(problem) else OFF_CENTRE_CLEAR


def releases_mean(problem: Problem) -> bool:
    """Return True if the labels' mean is released without their spread.

    For squared loss where noise would dominate a histogram of the labels; for Huber loss, whose unit is its width, wherever an
    intercept may start there.
    """
    if math.isfinite(problem.loss.slope):
        return problem.loss.start == MEAN and problem.centred and math.isfinite(problem.label_range)
    return has_spread(problem) and clear(problem) < SPREAD_FROM


def standing_still(problem: Problem) -> str:
    """Return a sentence if the rules keep a run at its start, the constant model; '' elsewhere."""
    return still(problem) if problem.private and time(problem) < STILL else ""


def still(problem: Problem) -> str:
    """Return the sentence that steps learn nothing."""
    return (
        f"μn/p = {signal_to_noise(problem):.2g}: noise at this ε outweighs what steps along all columns can learn from these "
        "records, so the run stays near the constant model. Fewer columns, more records or a larger ε let it learn; GCD looks "
        "for single strong columns."
    )


def has_balance(problem: Problem) -> bool:
    """Return True if the shares of the classes give the constant model that a free intercept can start at."""
    return problem.loss.start == SHARES and problem.centred


def label_share(problem: Problem) -> float:
    """Return the share of the μ² left by the moments to spend on a start for the intercept; 0: none.

    Squared loss: mean and spread; below μn = 100, and for Huber loss, the mean alone (`_mean_share`).
    Logistic loss, and smoothed hinge where ρ < UNSURE: the share of positive labels (`_balance_share`).
    The run then starts at the constant model, which is where it ends if nothing can be learnt (`standing_still`): the start
    has 90 % of μ² then.
    """
    if counts.has_counts(problem):
        return _nearly_all(problem) or counts.share(clear(problem))
    if has_balance(problem):
        if not (problem.loss.log_odds or problem.loss.multinomial) and signal_to_noise(problem) >= UNSURE:
            return 0.0
        return _balance_share(problem, clear(problem), 0.1)
    if releases_mean(problem):
        return _mean_share(problem, clear(problem), 33.0, 0.3)
    if not has_spread(problem):
        return 0.0
    return spread_share(clear(problem))


def has_constant(problem: Problem) -> bool:
    """Return True if label statistics give a best constant model that an intercept can start at, penalised or not."""
    if counts.has_counts(problem):
        return problem.loss.power == 1.0 and problem.exposure is None
    start = problem.loss.start
    known = start == SHARES or (start == MEAN and math.isfinite(problem.label_range))
    return known and problem.layout.has_intercept


def start_share(problem: Problem) -> float:
    """Return the share of μ² for the start of a run that moves all coordinates by joint gradients: as `label_share`.

    Its steps are short and repair little of the start's noise. So the start has more of the budget, classification releases the
    share of positive labels at any ρ, and squared loss the mean alone. Steps of Huber loss repair least, so its mean has
    noise of 1.2 % of the declared range in place of 3 %.
    """
    clear = (problem.mu or math.inf) * problem.n_records
    if counts.has_counts(problem):
        return _nearly_all(problem) or counts.share(clear)
    if problem.loss.classification:
        return _balance_share(problem, clear, 0.07)
    return _mean_share(problem, clear, 83.0 if math.isfinite(problem.loss.slope) else 33.0, 0.6)


def _nearly_all(problem: Problem) -> float:
    """Return 0.9 where steps learn nothing, so that the constant model is all that the budget can pay for; 0 elsewhere."""
    return 0.9 if time(problem) < STILL else 0.0


def _balance_share(problem: Problem, clear: float, noise: float) -> float:
    """Return 1 %, or as much as keeps the noise at a share of the records, at most half; 0.9 where steps learn nothing.

    The noise is kept at a thirtieth for multinomial loss and for the hinges. The best constant model of the hinges jumps at a
    share of one half.
    """
    noise = noise if problem.loss.log_odds else 1.0 / 30.0
    return _nearly_all(problem) or min(0.5, max(0.01, (1.0 / (noise * clear)) ** 2))


def _mean_share(problem: Problem, clear: float, parts: float, most: float) -> float:
    """Return 1 %, or as much as keeps the noise at 1/parts of the declared range; 0.9 where steps learn nothing."""
    return _nearly_all(problem) or min(most, max(0.01, (parts / clear) ** 2))


def excess_share(problem: Problem) -> float:
    """Return the share of the passes' μ² spent on what the record cap cuts; 0 where noise would hide what matters.

    It is 0 without an intercept too: such runs converge slowly, and sums far from the minimum say little about the bias.
    """
    return 0.03 if problem.centred and signal_to_noise(problem) >= WIDENS else 0.0


def kind(problem: Problem) -> str:
    """Return the row of the tables that a problem follows; counts have rules of their own (vfl.solvers.releases.counts)."""
    if math.isfinite(problem.loss.slope):
        return "bounded"
    return "off centre" if off_centre(problem) else "centred"


def cap_of(row: str, ρ: float) -> float:
    """Return the cap by a row of CAPS."""
    a, b, least, most = CAPS[row]
    return float(min(most, max(least, a * ρ**b)))


def _typical(problem: Problem) -> float:
    """Return c, the cap on a record in units of √(p/L) and of a typical residual, at least WIDE for standard errors."""
    return max(_by_rule(problem), WIDE[kind(problem)] if problem.inference else 0.0)


def _by_rule(problem: Problem) -> float:
    ρ, row = signal_to_noise(problem), kind(problem)
    if counts.has_counts(problem):
        return counts.typical_cap(ρ)
    if row != "off centre":
        return cap_of(row, ρ)
    first, last, power = WIDER
    wider = 1.0 if nearly_parallel(problem) else min(last, max(first, ρ)) / first
    return float(cap_of(row, ρ) * wider**power)


def record_clip(problem: Problem) -> float:
    """Return C/√p in units of √M_j, inf without privacy.

    The unit of residuals is the largest derivative where there is one, else the spread of labels that fill the declared
    range as most do, for which the one that is found stands in (`label_share`). CAPS has the factors: the cap of logistic loss
    biases nothing at the true probabilities, and without an intercept residuals keep a mean, so that caps grow faster there.
    """
    if not problem.private:
        return math.inf
    bounded = math.isfinite(problem.loss.slope) and not counts.has_counts(problem)
    unit = problem.loss.slope if bounded else typical_spread(problem)
    return float(_typical(problem) * unit / math.sqrt(problem.loss.curvature))


def time(problem: Problem) -> float:
    """Return τ, the number of whole steps of every coordinate.

    Little time is early stopping: what noise adds in the first steps grows as τ², what they gain as τ. Below ρ of about 2
    the run stays where it starts. A cap below half of a residual makes logistic steps as many times shorter. Nearly parallel
    columns converge slowly: with 400 steps in place of 200, Electricity raw at ε = 10 left 1.6e-5 in place of 1.7e-4, and three
    simulated problems, on which nothing was chosen, 0.67 to 1.00 of their error.
    """
    ρ, row, parallel = signal_to_noise(problem), kind(problem), nearly_parallel(problem)
    if counts.has_counts(problem):
        return counts.time(ρ)
    if row == "off centre" and parallel and ρ >= PARALLEL_CLEAR:
        row = "centred"
    times = [a * ρ**b for a, b in TIMES[row]]
    if row == "bounded":
        times[0] *= max(1.0, 0.5 / _typical(problem))
    longest = LONGEST[f"{row}, parallel" if parallel and row != "off centre" else row]
    return float(min(next(most for least, most in longest if ρ >= least), *times))


def shrinks(problem: Problem) -> bool:
    """Return True if the run is so short that its moves are shrunk by what noise explains (vfl.solvers.iterates.shrinkage).

    Only under an L1 part of the penalty: other penalties charge little for small moves in all coordinates.
    """
    short = problem.private and not counts.has_counts(problem) and time(problem) < SHRINKS
    return short and declares_sparse(problem.penalty)


def shrinking(problem: Problem) -> str:
    """Return a sentence if the moves of the run are shrunk; '' elsewhere."""
    if not shrinks(problem):
        return ""
    return (
        f"at μn/p = {signal_to_noise(problem):.2g} the run ends after a soft threshold that released gradients choose, and at "
        "its start unless they show more than noise."
    )


def passes(problem: Problem, step: float | None = None, momentum: float = 0.0) -> int:
    """Return the number of passes, τ(1 − β)/γ, at least 3.

    step : γ; None stands for half steps where the time is short, which average the noise, and whole ones elsewhere.
    momentum : β. A move goes on for 1/(1 − β) passes, so that as many fewer make the time.
    """
    τ = time(problem)
    count = min(MOST, τ / (step or (0.5 if τ < 40.0 else 1.0)) * _stretch(problem))
    return max(FEWEST, math.ceil(count * (1.0 - momentum)))


def momentum(problem: Problem, step: float | None = None) -> float:
    """Return β, with which a run of more than FEW passes takes FEW, or half of them if that is more; 0 from ρ = MOVES_ON.

    Counts keep the passes that their rules were chosen with.
    """
    if counts.has_counts(problem) or signal_to_noise(problem) >= MOVES_ON:
        return 0.0
    return max(0.0, min(MOMENTUM, 1.0 - (step or 1.0) / 2.0, 1.0 - FEW / passes(problem, step)))


def step_size(problem: Problem, n_passes: int, momentum: float = 0.0) -> float:
    """Return γ, at most 1, with which so many passes make the time."""
    return min(1.0, time(problem) * _stretch(problem) * (1.0 - momentum) / n_passes)


def longest_step(momentum: float) -> float:
    """Return 2(1 − β), the longest γ whose runs with momentum β are sure not to diverge (vfl.solvers.iterates.momentum)."""
    return 2.0 * (1.0 - momentum)


def _stretch(problem: Problem) -> float:
    """Return the factor by which steps on blocks named in the partition are shorter: the mean block size."""
    blocks = problem.layout.explicit
    sizes = [size for own in blocks.values() for size in own] if blocks else [1]
    return sum(sizes) / len(sizes)


def early_share(problem: Problem) -> float:
    """Return the share of the passes' μ² that the early passes spend; 0 spends evenly.

    Runs are short below ρ = GROWS and spend evenly: on 15 simulated problems with ρ from 3 to 18 that left 0.93 of the error,
    between 0.78 and 1.03; at ρ of 30 and 40, 1.00 of it. Counts keep the growth that their rules were chosen with.
    """
    return 0.0 if signal_to_noise(problem) < GROWS and not counts.has_counts(problem) else EARLY_SHARE


def early_passes(n_passes: int) -> int:
    """Return the number of early passes."""
    return max(1, round(EARLY * n_passes)) if n_passes > 2 else 0
