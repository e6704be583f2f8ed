"""Solver with the smallest expected error, from public facts, with a reason.

`left` is the share (F(w) − F*)/(F(0) − F*) of the loss that remains after a run: 0 at the optimum, 1 if nothing was learnt.
Curves in the signal-to-noise ratio ρ = μn/p were fitted to runs:

| solver | left | fitted to |
|---|---|---|
| SkGD, CD, bounded ℓ' | noise 90c²/ρ², steps and bias 10ρ^−1.35 | 48 simulated logistic runs, ρ 0.4 to 11,000 |
| SkGD, CD, intercept | noise 12c²/ρ², steps and bias 6ρ^−1.6 | 36 such runs of squared loss |
| SkGD, CD, none | 0.25ρ^−0.85 | simulations of squared loss without a record cap |
| GCD | 1/(1 + (nμ/(70 ln p))^1.7) | 7 rows, 5 of them of 100 columns and more |

The curves compare solvers and budgets. Single runs, above all with squared loss, deviate far from the curves.

The noise term of SkGD and CD follows from the plan: tail averaging of passes with the cap C = c√(p/L) leaves 2.35c²u²/(Lhρ²)
in F, where u is the unit of residuals and hL the mean curvature. The factors 90 and 12 assume h = 0.7, and signals of 0.15
and of ¼ of the labels' variance. The other term comes from too few or too short steps and from the bias of the cap. This term
depends on correlations, which are not public.

The recommendation. If ρ ≥ 7, no solver beats untuned SkGD in any measured row by more than the runs' deviation, so SkGD is
recommended. Below ρ = 7, passes over all coordinates cost more than they gain, and GCD is recommended if the penalty declares
a sparse signal (L1 or an elastic net). This rule rests on simulations at ρ from 0.1 to 6, with 500 to 3,000 records and 30 to
300 columns (mean loss of 3 seeds, logistic and squared loss alike). Under L1, GCD left at most 1.02 times SkGD's loss in 27
of 28 cases, and 0.66 to 0.91 times in 14 cases. Under a slight L2 penalty GCD left 0.82 to 1.14 times SkGD's loss in 17
cases, depending on how many coefficients matter, which is not public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.base.penalties import declares_sparse
from vfl.solvers.rules.defaults import off_centre, signal_to_noise
from vfl.solvers.rules.record_defaults import cap_of

if TYPE_CHECKING:
    from vfl.base.problem import Problem

BOUNDED, CENTRED = (90.0, 10.0, 1.35), (12.0, 6.0, 1.6)
"""Constants (noise factor, a, b) of noise·c²/ρ² + a·ρ^−b: for a bounded derivative, and for other losses with an intercept."""
OFF_CENTRE = (0.25, 0.85)
GREEDY = (70.0, 1.7)
ENOUGH = 7.0
"""Value of ρ from which no solver beats SkGD in any measured row."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Solver, the share of the loss that it is expected to leave (1 if it learns nothing; None if unknown), and the reason."""

    solver: str
    left: float | None
    reason: str

    def __str__(self) -> str:
        return f"{self.solver} is expected to do best: {self.reason}"


def recommendation(problem: Problem) -> Recommendation:
    """Return the solver with the smallest expected error. Uses public facts only: reads no data and spends no budget."""
    smooth, private = math.isfinite(problem.loss.curvature), problem.mu is not None
    if not private and smooth:
        return Recommendation("SkGD", 0.0, "without noise the steps of 1/M_j are the longest that are safe")
    if not smooth:
        return Recommendation("SGD", None, f"{problem.loss.name} loss has no M_j; shrinking steps need none")
    ρ, nμ, p = signal_to_noise(problem), problem.n_records * (problem.mu or math.inf), problem.layout.n_coordinates
    noise, rest = _descent(problem, ρ)
    left = min(1.0, noise + rest)
    # Half of the largest |ℓ'|, or a third of the declared label range; 1 if neither is declared.
    R = next(filter(math.isfinite, (problem.loss.slope / 2, problem.label_range / 3)), 1.0)
    parts = f"noise {noise:.1g}, steps and bias {rest:.1g}" if noise else "noise, steps and bias together"
    units = f"√p·L_{{M⁻¹}}/(nμ) = {p * R / (math.sqrt(problem.loss.curvature) * nμ):.2g} in any units of the columns"
    said = f"{left:.2g} of the loss left, {parts} at a signal-to-noise ratio of {ρ:.3g}; {units}"
    descent = Recommendation("SkGD", left, said)
    if ρ >= ENOUGH or p == 1 or problem.penalty.grouped or not declares_sparse(problem.penalty):
        return descent
    scale, power = GREEDY
    greedy = 1.0 / (1.0 + (nμ / (scale * math.log(p))) ** power)
    why = f"nμ/ln p = {nμ / math.log(p):.3g}, for signals of few coordinates: it does not grow with p as √p·L_{{M⁻¹}} does"
    return Recommendation("GCD", greedy, why) if greedy < left else descent


def _descent(problem: Problem, ρ: float) -> tuple[float, float]:
    """Return shares of the loss that untuned coordinate descent leaves by noise, and by steps and bias."""
    if off_centre(problem):
        a, b = OFF_CENTRE
        return 0.0, a * ρ**-b
    kind, (factor, a, b) = ("bounded", BOUNDED) if math.isfinite(problem.loss.slope) else ("centred", CENTRED)
    # A run stops early if noise would outweigh the gain, so noise leaves at most the whole loss.
    return min(1.0, factor * cap_of(kind, ρ) ** 2 / ρ**2), a * ρ**-b
