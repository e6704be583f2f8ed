"""Public rules for the options of a record cap: functions of n, p, ε, δ, loss and declared ranges only, never of data.

The rules choose the cap C = c·√(p/L), and the time τ = γP of P passes with step γ, from the signal-to-noise ratio ρ = μn/p.
μ is the budget that remains after the release of moments. In units in which every column has M_j = L, noise adds an error to
F. This error grows as c²τ²/ρ² along directions that have not converged, and as c²/ρ² along the others.

Unless stated otherwise, constants were fitted by simulation to 35 problems and checked once on 20 other problems, 6 of them
made after the rules were fixed. Few of these problems had blocks of several columns, or squared loss without an intercept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vfl.base.losses import MEAN, SHARES
from vfl.base.penalties import declares_sparse
from vfl.solvers.releases import counts
from vfl.solvers.releases.labels import seeks_spread
from vfl.solvers.rules.defaults import (
    SPREAD_FROM,
    has_spread,
    nearly_parallel,
    off_centre,
    spread_share,
    typical_spread,
)

if TYPE_CHECKING:
    from vfl.base.problem import Problem

PARALLEL_CLEAR, OFF_CENTRE_CLEAR = 100.0, 1000.0
"""Smallest ρ for a clip per coordinate, under squared loss without intercept: for nearly parallel and for other columns."""
CAPS = {
    "bounded": (0.065, 0.4, 0.3, 1.5),  # chosen on 35 problems; a cap above 1.5 clips no typical record
    "centred": (0.07, 0.4, 0.12, 2.5),  # chosen on 35 problems
    "off centre": (0.075, 1.0, 0.3, 3.0),  # chosen on California at ε = 1 and two simulated problems
}
"""{kind of problem: (a, b, least, most)} for c = a·ρ^b, clamped to [least, most], in units of a typical residual."""
WIDER = (100.0, OFF_CENTRE_CLEAR, 0.45)
"""Constants (from, to, power): without an intercept, c is multiplied by (ρ/from)^power, unless columns are nearly parallel.

ρ is clamped to [from, to]. Chosen on California standardised at ε = 1, after the rules had been checked on the test problems
without this factor.
"""
TIMES = {
    "bounded": ((0.3, 1.2), (0.1, 2)),  # chosen on 35 problems
    "centred": ((0.5, 1.4), (0.3, 2)),  # chosen on 35 problems
    "off centre": ((0.5, 1), (0.3, 2), (0.3, 3)),  # chosen on simulated problems at low ρ
}
"""{kind of problem: ((a, b), ...)}. τ is the smallest of all a·ρ^b."""
LONGEST = {
    "bounded": ((1000.0, 200.0), (0.0, 100.0)),
    "bounded, parallel": ((2000.0, 400.0), (100.0, 200.0), (0.0, 100.0)),  # 400 was chosen on Electricity raw at ε = 10
    "centred": ((150.0, 200.0), (0.0, 100.0)),
    "centred, parallel": ((100.0, 200.0), (0.0, 100.0)),
    "off centre": ((0.0, 30.0),),
}
"""{kind of problem: ((least ρ, longest τ), ...)}.

The first row whose least ρ is reached applies. Nearly parallel columns converge slowly, so they get a longer τ.
"""
CURVED = (0.2, 0.13)
"""Largest τ/ρ of a run on a subsample, for steps of 1/2 and for steps of 1, if the loss is not squared.

Noise moves iterates along a curved gradient, which biases their mean by an amount that grows as τ/ρ². The mean over
subsamples keeps this bias while the standard error of the mean falls. With τ = 0.8ρ the bias was 2.6 standard errors, with
0.2ρ about 0.4 (simulated logistic problems at ρ = 75, correlations 0 to 0.5).
"""
EARLY = 0.3
"""Share of the passes that count as early. The returned average omits the iterates of these passes."""
EARLY_SHARE = 0.15
"""Share of μ² that the early passes spend. It is half of what equal spending would give these passes."""
GROWS = 20.0
"""Value of ρ below which all passes spend equally, because the noise of the first passes hardly decays in short runs."""
FAINT = 2.0
"""Value of ρ below which runs without an intercept use the record cap (except squared loss). Such runs take few steps."""
STILL = 0.3
"""Time τ below which a run stays near the model at which it starts."""
SHRINKS = 1.5
"""Time τ below which a run shrinks its moves, if the penalty has an L1 part."""
MAGNITUDES = 150.0
"""Value of `parts` in `_mean_share` if a run seeks the spread: √2 times the noise of a bin is then n/MAGNITUDES records."""
UNSURE = 10.0
"""Value of ρ below which smoothed hinge loss starts at its best constant model.

Above this value, starting at 0 gave 1 to 9 % less error on three problems.
"""
WIDENS = 300.0
"""Smallest ρ at which a run releases sums of the gradient parts that the record cap cuts off."""
COUNTS_FROM = 2000.0
"""Smallest μn at which a run releases a histogram of residuals."""
WIDE = {"bounded": 1.0, "centred": 3.0, "off centre": 3.0, "counts": 4.0}
"""{kind of problem: smallest c} for runs that release standard errors.

Standard errors are about the capped regression, and a lower cap adds more bias than it saves noise.
"""
MOMENTUM = 0.5
"""Momentum of joint steps. With a larger momentum, joint steps can diverge (vfl.solvers.iterates.quadratic)."""
FEW = 36
"""Smallest number of passes to which `passes` shortens a run; also the number of joint steps.

With two parties, this number takes at most 80 messages.
"""
ROUNDS = 40
"""Largest number of rounds, with one message per party, of a run for which `needs_rounds` is false."""
CONVERGES = 1000.0
"""Value of ρ from which every pass takes a round: parties' columns with a correlation of 0.9 cost up to twice the error."""
MOVES_ON = 100.0
"""Value of ρ below which runs take half of the passes, which average their iterates, in steps twice as long.

Noise decides the error there: on 15 pairs of problem and ε, these passes left 0.98 times the error of as many passes with
momentum. Above this value, they led to up to 1.4 times the error on test problems.
"""
LONG = 100
"""Smallest number of passes, by the whole rule, for which joint steps pay.

Shorter runs stop early to keep noise or bias low. Joint steps left twice the error of 60 passes on California standardised at
ε = 1, and 1.7 times that of 96 passes on Electricity standardised at ε = 0.1.
"""
UNCLEAR = 0.5
"""Largest spectral norm of the noise of the correlations at which a run takes joint steps."""
OF_MODEL = 0.75
"""Passes over the joint model in a whole run, as a share of the rule's number of passes. Momentum makes up for the rest."""
FEWEST = 3
MOST = 400
"""Limits on the number of passes. MOST is also the limit if long blocks need short steps."""


def signal_to_noise(problem: Problem) -> float:
    """Return ρ = μn/p, for the budget μ that remains after the moments; inf without privacy."""
    return clear(problem) / problem.layout.n_used


def clear(problem: Problem) -> float:
    """Return μn, for the budget μ that remains after the moments; inf without privacy."""
    if problem.mu is None:
        return math.inf
    spent = problem.smoothness_share if isinstance(problem.smoothness, str) and problem.smoothness == "private" else 0.0
    return problem.mu * math.sqrt(1.0 - spent) * problem.n_records


def serves(problem: Problem) -> bool:
    """Return True if the record cap is the default clip for this problem.

    Private runs use the record cap if an intercept absorbs the residuals' mean. Without such an intercept, squared loss uses
    the cap until noise is so low that the cap's bias would be most of the error (`_clear_off_centre`). Other losses use the
    cap below ρ = FAINT, because a run with a clip per coordinate would not stop early there.
    """
    if not problem.private or not off_centre(problem):
        return problem.private
    return signal_to_noise(problem) < (_clear_off_centre(problem) if problem.loss.quadratic else FAINT)


def _clear_off_centre(problem: Problem) -> float:
    """Return the smallest ρ at which squared loss without an intercept has a clip per coordinate."""
    return PARALLEL_CLEAR if nearly_parallel(problem) else OFF_CENTRE_CLEAR


def releases_mean(problem: Problem) -> bool:
    """Return True if a run releases the labels' mean without their spread.

    Squared loss does so if noise would dominate a histogram of the labels. Huber loss, whose residuals are measured in units
    of its width, does so whenever an intercept can start at the mean.
    """
    if math.isfinite(problem.loss.slope):
        return problem.loss.start == MEAN and problem.centred and math.isfinite(problem.label_range)
    return has_spread(problem) and clear(problem) < SPREAD_FROM


def standing_still(problem: Problem) -> str:
    """Return a warning if the run stays near the constant model at which it starts; '' otherwise."""
    return still(problem) if problem.private and time(problem) < STILL else ""


def still(problem: Problem) -> str:
    """Return the warning for a run whose steps cannot learn anything."""
    return (
        f"signal-to-noise ratio {signal_to_noise(problem):.2g}: noise at this ε outweighs what steps along all columns can "
        "learn from these records, so the run stays near the constant model. Fewer columns, more records or a larger ε let it "
        "learn; GCD looks for single strong columns."
    )


def has_balance(problem: Problem) -> bool:
    """Return True if an unpenalised intercept can start at the constant model that the class shares determine."""
    return problem.loss.start == SHARES and problem.centred


def label_share(problem: Problem) -> float:
    """Return the share of the μ² left by the moments to spend on label statistics; 0 if the intercept starts at 0.

    Squared loss releases mean and spread of the labels; if μn < 100, only the mean (`_mean_share`). Huber loss releases the
    mean. Logistic loss, and smoothed hinge if ρ < UNSURE, release the share of positive labels (`_balance_share`). The run
    starts at the constant model for these values. If steps can learn nothing (`standing_still`), the run also ends there, and
    the statistics get 90 % of μ².
    """
    if counts.has_counts(problem):
        return _nearly_all(problem) or counts.share(clear(problem))
    if has_balance(problem):
        if not (problem.loss.log_odds or problem.loss.multinomial) and signal_to_noise(problem) >= UNSURE:
            return 0.0
        return _balance_share(problem, clear(problem), 0.1)
    if releases_mean(problem):
        return _mean_share(problem, clear(problem), MAGNITUDES if seeks_spread(problem) else 33.0, 0.3)
    if not has_spread(problem):
        return 0.0
    return spread_share(clear(problem))


def has_constant(problem: Problem) -> bool:
    """Return True if label statistics determine the best constant model and an intercept, penalised or not, can start at it."""
    start = problem.loss.start
    known = start == SHARES or (start == MEAN and math.isfinite(problem.label_range))
    return counts.has_counts(problem) or (known and problem.layout.has_intercept)


def start_share(problem: Problem) -> float:
    """Return the share of μ² for label statistics, like `label_share`, for solvers that use joint gradients.

    Joint gradients move all coordinates by short steps, which repair little of the noise in the starting intercept. Label
    statistics therefore get more budget. Classification releases the share of positive labels at any ρ, and squared loss only
    the mean. Huber loss repairs least, so the noise of its mean is 1.2 % of the declared range instead of 3 %.
    """
    clear = (problem.mu or math.inf) * problem.n_records
    if counts.has_counts(problem):
        return _nearly_all(problem) or counts.share(clear)
    if problem.loss.classification:
        return _balance_share(problem, clear, 0.07)
    parts = MAGNITUDES if seeks_spread(problem) else 83.0 if math.isfinite(problem.loss.slope) else 33.0
    return _mean_share(problem, clear, parts, 0.6)


def _nearly_all(problem: Problem) -> float:
    """Return 0.9, the budget share of the constant model, if steps learn nothing; else 0."""
    return 0.9 if time(problem) < STILL else 0.0


def _balance_share(problem: Problem, clear: float, noise: float) -> float:
    """Return the share of μ², from 1 % to 50 %, at which counts of labels have noise of `noise`·n.

    If steps learn nothing, the share is 0.9. Multinomial loss and the hinges use 1/30 for `noise`: the best constant model of
    the hinges jumps where half of the labels are positive.
    """
    noise = noise if problem.loss.log_odds else 1.0 / 30.0
    return _nearly_all(problem) or min(0.5, max(0.01, (1.0 / (noise * clear)) ** 2))


def _mean_share(problem: Problem, clear: float, parts: float, most: float) -> float:
    """Return the share of μ², from 1 % to `most`, at which the mean has noise of 1/parts of the declared range.

    If steps learn nothing, the share is 0.9.
    """
    return _nearly_all(problem) or min(most, max(0.01, (parts / clear) ** 2))


def excess_share(problem: Problem) -> float:
    """Return the share of the passes' μ² to spend on sums of the gradient parts that the record cap cuts off.

    The share is 0 if noise would hide these sums. It is also 0 without an intercept: such runs converge slowly, and sums far
    from the minimum say little about the bias.
    """
    return 0.03 if problem.centred and signal_to_noise(problem) >= WIDENS else 0.0


def residual_share(problem: Problem) -> float:
    """Return the share of the passes' μ² to spend on a histogram of residuals, from which the cap is chosen.

    The share is 0 if noise would exceed the counts, and for standard errors, whose caps are wide in any case.
    """
    clear_enough = clear(problem) >= COUNTS_FROM and signal_to_noise(problem) >= GROWS
    return 0.04 if clear_enough and problem.centred and not problem.inferred else 0.0


def kind(problem: Problem) -> str:
    """Return the kind of the problem, a key of the tables. Counts have rules of their own (vfl.solvers.releases.counts)."""
    if math.isfinite(problem.loss.slope):
        return "bounded"
    return "off centre" if off_centre(problem) else "centred"


def cap_of(row: str, ρ: float) -> float:
    """Return c, the record cap in units of a typical residual, computed from a row of CAPS."""
    a, b, least, most = CAPS[row]
    return float(min(most, max(least, a * ρ**b)))


def _typical(problem: Problem) -> float:
    """Return c, the record cap in units of √(p/L) times a typical residual; at least WIDE if standard errors are released."""
    row = "counts" if counts.has_counts(problem) else kind(problem)
    return max(_by_rule(problem), WIDE[row] if problem.inferred else 0.0)


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
    """Return C/√p in units of √M_j; inf without privacy.

    The unit is `typical_residual`; a run that releases the spread of the labels uses the released spread instead
    (`label_share`). CAPS holds the factors. The cap of logistic loss causes no bias at the true probabilities. Without an
    intercept residuals keep a nonzero mean, so caps grow faster with ρ.
    """
    if not problem.private:
        return math.inf
    return float(_typical(problem) * typical_residual(problem) / math.sqrt(problem.loss.curvature))


def typical_residual(problem: Problem) -> float:
    """Return the largest derivative of the loss, if it is finite; else the spread of labels typical for the declared range."""
    bounded = math.isfinite(problem.loss.slope) and not counts.has_counts(problem)
    return float(problem.loss.slope if bounded else typical_spread(problem))


def time(problem: Problem) -> float:
    """Return τ, the number of whole steps per coordinate.

    A short run acts like early stopping: in the first steps the error from noise grows as τ², and the gain as τ. If the
    signal-to-noise ratio ρ is below about 2, the run stays at its start. A record cap below half of a typical residual shortens
    logistic steps, so τ rises by the inverse factor.

    400 steps instead of 200 lowered the error on Electricity raw at ε = 10 from 1.7e-4 to 1.6e-5, and to 0.67 to 1.00 times the
    error of 200 steps on three simulated problems to which no rule was fitted.
    """
    ρ, row, parallel = signal_to_noise(problem), kind(problem), nearly_parallel(problem)
    if counts.has_counts(problem):
        return counts.time(ρ)
    if row == "off centre" and parallel and ρ >= PARALLEL_CLEAR:
        row = "centred"
    times = [a * ρ**b for a, b in TIMES[row]]
    if row == "bounded":
        times[0] *= max(1.0, 0.5 / _typical(problem))
    if problem.subsamples > 1 and not problem.loss.quadratic:
        times.append(max(min(CURVED[0] * ρ, 39.0), CURVED[1] * ρ))
    longest = LONGEST[f"{row}, parallel" if parallel and row != "off centre" else row]
    return float(min(next(most for least, most in longest if ρ >= least), *times))


def shrinks(problem: Problem) -> bool:
    """Return True if the run is so short that its moves are shrunk by released noise (vfl.solvers.iterates.trail).

    The penalty must have an L1 part, because other penalties charge little for small moves of all coordinates.
    """
    short = problem.private and not counts.has_counts(problem) and time(problem) < SHRINKS
    return short and declares_sparse(problem.penalty)


def shrinking(problem: Problem) -> str:
    """Return a sentence for the plan if the run shrinks its moves; '' otherwise."""
    if not shrinks(problem):
        return ""
    return (
        f"at a signal-to-noise ratio of {signal_to_noise(problem):.2g} released gradients choose a soft threshold for the "
        "final model, which stays at its start unless they show more than noise."
    )


def passes(problem: Problem, step: float | None = None, *, halved: bool = False) -> int:
    """Return the number of passes, τ/γ, but at least 3.

    step : γ. None takes 1/2 if τ < 40, since short steps average the noise, and 1 otherwise.
    halved : True halves a number of more than FEW passes, but not to fewer than FEW, if ρ < MOVES_ON. Counts and nearly
        parallel columns keep all passes.
    """
    τ = time(problem)
    count = max(FEWEST, math.ceil(min(MOST, τ / (step or (0.5 if τ < 40.0 else 1.0)) * _stretch(problem))))
    if not halved or counts.has_counts(problem) or signal_to_noise(problem) >= MOVES_ON or nearly_parallel(problem):
        return count
    return max(min(count, FEW), math.ceil(count / 2.0))


def local_passes(problem: Problem, step: float | None = None) -> int:
    """Return the number of passes that a party makes over its own columns per message.

    A run of more than ROUNDS passes takes them in at most ROUNDS rounds, with one message per party and round, unless rounds
    decide its error (`needs_rounds`). Passes within a party make up for parallel columns of this party alone.
    """
    return 1 if needs_rounds(problem) else -(-passes(problem, step) // ROUNDS)


def needs_rounds(problem: Problem) -> str:
    """Return, as a clause, why every pass takes a round of messages; '' if ROUNDS rounds are enough."""
    if problem.inferred:
        return "standard errors are computed for one pass per message"
    if nearly_parallel(problem):
        return "columns of one sign without an intercept are probably nearly parallel across parties"
    if signal_to_noise(problem) >= CONVERGES:
        ratio = f"a signal-to-noise ratio of {CONVERGES:g}"
        return f"above {ratio} noise is so low that columns parallel across parties decide the error"
    return ""


def declines_joint_steps(problem: Problem, noise: float, messages: int) -> str:
    """Return a clause that says why a run takes no joint steps although parties may reveal columns; '' if `FEW` steps suffice.

    noise : spectral norm of the noise of correlations (vfl.solvers.releases.correlations). messages : number of messages that
        release the correlations. Every joint step takes two messages, for any number of parties. Runs without joint steps take
        one message per party and pass.
    """
    count, parties = passes(problem), len(problem.layout.whole())
    if signal_to_noise(problem) < MOVES_ON:
        ratio = f"a signal-to-noise ratio of {MOVES_ON:g}"
        return f"below {ratio} passes take about as few messages, and pay for no products"
    if noise > UNCLEAR:
        return f"noise would hide the products of {problem.layout.n_coordinates} columns"
    if count < LONG or 2 * FEW + messages >= parties * count:
        return f"{count} passes of {parties} parties take no more messages"
    return ""


def step_size(problem: Problem, n_passes: int) -> float:
    """Return γ, at most 1, at which `n_passes` passes add up to the time τ."""
    return min(1.0, time(problem) * _stretch(problem) / n_passes)


def _stretch(problem: Problem) -> float:
    """Return the mean size of the blocks that the partition names. Steps are shorter by this factor."""
    blocks = problem.layout.explicit
    sizes = [size for own in blocks.values() for size in own] if blocks else [1]
    return sum(sizes) / len(sizes)


def early_share(problem: Problem) -> float:
    """Return the share of the passes' μ² that the early passes spend; 0 means that all passes spend equally.

    Runs below ρ = GROWS are short and spend equally. On 15 simulated problems with ρ from 3 to 18 equal spending gave 0.93
    times the error (0.78 to 1.03), and 1.00 times at ρ of 30 and 40. Counts use EARLY_SHARE at any ρ, as their rules were
    chosen with that share.
    """
    return 0.0 if signal_to_noise(problem) < GROWS and not counts.has_counts(problem) else EARLY_SHARE


def early_passes(n_passes: int) -> int:
    """Return how many passes count as early (EARLY)."""
    return max(1, round(EARLY * n_passes)) if n_passes > 2 else 0
