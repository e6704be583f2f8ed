"""Gradients over all parties' columns jointly. A record is clipped by the norm of its whole row, and steps move all of w.

Guarantee. Let |r_i| ≤ C/‖x_i‖, where ‖x_i‖² is summed over the parties. The contribution c_i = r_i x_i of record i then has
joint norm at most C. Each party rounds its coordinates to the grid g, so the rounded contribution has norm at most

    a = C(1 + p·2⁻⁵⁰) + g√p/2 = Δ/2,   Δ = `Clip(C, p).sensitivity`.

Replacing one record moves the joint sum by at most 2a = Δ. Removing one record moves the sum by at most a, as the
Poisson-subsampled release requires (vfl.privacy.pld). vfl.kernels.geometry.record_limits derives the floating-point term 2⁻⁵⁰.

Every party in the query adds noise with the event's σ to its own coordinates. Together this is the Gaussian mechanism on all
p coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from vfl.base.arguments import CLIP, SHARE, one_of, option, whole
from vfl.base.problem import INTERCEPT
from vfl.errors import BudgetExceeded, DataError, PrivacyError, SpecificationError
from vfl.kernels.geometry import capped, record_limits
from vfl.privacy.geometry import Clip
from vfl.queries import Backward, Forward, Moments, RecordNorms, Weighting
from vfl.queries.protocol import Solver, require_groups
from vfl.solvers.iterates.convergence import Average, Convergence
from vfl.solvers.releases import counts
from vfl.solvers.releases.labels import seeks_spread
from vfl.solvers.releases.smoothness import OVERFLOW
from vfl.solvers.releases.start import ReleasedStart, begins, is_exact
from vfl.solvers.rules.defaults import signal_to_noise, typical_spread
from vfl.solvers.rules.record_defaults import STILL, still

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.privacy.calibration import Charge
    from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian
    from vfl.queries import Fold, Query
    from vfl.queries.parts import Scaled
    from vfl.queries.protocol import Exchange, Schedule

ITERATES = ("last", "tail")


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSolver(Solver):
    """Base class of the solvers whose steps move all coordinates: their options, and the queries before the first step."""

    passes: int | None = option(whole(), None)
    clip: float | None = option(CLIP, None)
    iterate: str | None = option(one_of(ITERATES), None)
    label_share: float | None = option(SHARE, None)

    def _start(self, problem: Problem) -> ReleasedStart:
        return ReleasedStart(problem, self.label_share or 0.0)

    def _clip(self, problem: Problem) -> Clip:
        return Clip(float(self.clip or math.inf), problem.layout.n_coordinates)

    def _begun(
        self, problem: Problem, charges: tuple[Charge, ...], steps: int, *, margins: bool = True
    ) -> Exchange[tuple[Vector, Loss, float]]:
        """Make the queries before the first step. Return the first iterate, (p,), the training loss, and L·mean‖x‖².

        If the released spread of the labels is below the typical one, L is raised so that `steps` default steps stay
        within `time_limit`. margins : True computes Xw.
        """
        square = yield from mean_square(self.name, problem)
        w, loss, known = yield from self._start(problem).found(charges)
        if self.asks_norms(problem):
            yield record_norms(problem)
        if margins and begins(problem, self.label_share or 0.0):
            yield forward(problem, w, "reset")
        L = problem.loss.curvature if math.isfinite(problem.loss.curvature) else 1.0
        if counts.has_counts(problem) or seeks_spread(problem):
            time = steps * default_step_size(problem, float(self.clip or math.inf), steps)
            square *= max(
                1.0, time / (time_limit(problem, float(self.clip or math.inf)) * counts.squared_spread(problem, known))
            )
        return w, loss, L * float(known.smoothness[0]) * square

    def _descended(
        self,
        problem: Problem,
        draws: Iterable[tuple[Query | None, Fold | None]],
        step_size: float,
        slower: Iterable[float],
        steps: int,
        divisor: float,
        tol: float | None = None,
    ) -> Schedule:
        """Take gradient steps: for each, draw the batch, release its clipped gradient, take a step, and rebuild Xw.

        draws : per step, a query that draws the batch, or None, and the public batch, or None. step_size : γ.
        slower : divisor of γ per step. divisor : expected number of records in a batch.
        tol : tolerance of the stopping rule; None takes all steps.
        """
        clip, charges = self._clip(problem), cast("tuple[Charge, ...]", self.releases(problem))
        event = charges[-1][0] if charges else None
        w, loss, curvature = yield from self._begun(problem, charges, steps)
        weighting, mean = ClippedDerivative(loss, clip.cap), Average(self.iterate or "last", steps // 2)
        rest = Convergence(tol, np.ones_like(w), problem.intercept)
        for t, ((sample, fold), slow) in enumerate(zip(draws, slower, strict=False)):
            if sample is not None:
                yield sample
            try:
                released = yield backward(problem, weighting, clip, event, fold)
            except BudgetExceeded:
                break
            step = step_size / curvature / slow
            w, before = proximal(problem, w - step * np.concatenate(released) / divisor, step), w
            if rest.after(w, w - before):
                return w
            mean.add(w)
            if t + 1 < steps:
                yield forward(problem, w, "reset")
        return mean.final(w)

    def asks_norms(self, problem: Problem) -> bool:
        """Return True if a clip is finite: the coordinator caps each residual by the norm of the record."""
        return self._clip(problem).finite

    def _messages(self, problem: Problem, steps: int) -> int:
        """Return the number of messages: those of `_begun`, and two per step, without the update of Xw after the last step."""
        share = self.label_share or 0.0
        first = bool(share) or is_exact(problem)
        begun = asks_mean_square(problem) + first + self.asks_norms(problem) + begins(problem, share)
        return begun + 2 * steps - 1


def clipped(r: Vector, kept: Kept, cap: float, kernel: str = "") -> Vector:
    """Return r_i clipped to ±C/‖x_i‖, (n,). The result is 0 for values that are not finite, and outside of a batch.

    kept : 'norms', (n,) ‖x_i‖², unless the cap is infinite; 'batch', (n,) 0 or 1, if the step uses a batch.
    kernel : name of the loss whose derivatives r are; '' for any other r. Logistic loss is capped without bias
        (vfl.kernels.geometry.capped).
    """
    if math.isfinite(cap):
        r = capped(r, record_limits(kept["norms"], cap), kernel)
    batch = kept.get("batch")
    return r if batch is None else r * batch


@dataclass(frozen=True, slots=True)
class ClippedDerivative(Weighting):
    """Weights r_i = ℓ'(v_i, y_i), clipped to ±C/‖x_i‖, and 0 outside of the batch. Logistic loss is capped without bias."""

    loss: Loss
    cap: float

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and {}, since this weighting keeps no per-record state."""
        return clipped(self.loss.derivative(margins, labels), kept, self.cap, self.loss.kernel), {}


def unscaled(problem: Problem) -> dict[str, Scaled]:
    """Return {party: (block of all its columns, centres of 0, scales of 1)}."""
    return {q: (block, np.zeros(block.size), np.ones(block.size)) for q, block in problem.layout.whole().items()}


def record_norms(problem: Problem) -> Query:
    """Return the query after which the coordinator has ‖x_i‖², summed over all parties."""
    return RecordNorms(unscaled(problem))


def backward(
    problem: Problem,
    weighting: Weighting,
    clip: Clip,
    event: Gaussian | PoissonSubsampledGaussian | None,
    fold: Fold | None = None,
) -> Backward:
    """Return the query that releases Σ_i r_i x_i over all coordinates jointly."""
    blocks, zeros, ones = zip(*unscaled(problem).values(), strict=True)
    return Backward(weighting, blocks, zeros, ones, clip, event, fold=fold)


def forward(problem: Problem, w: Vector, into: str) -> Forward:
    """Return the query that computes Xw. into : 'reset' replaces the margins by Xw, 'add' adds Xw to the margins."""
    whole = problem.layout.whole()
    return Forward({q: (block, w[block.coordinates]) for q, block in whole.items()}, into=into)


def proximal(problem: Problem, w: Vector, step: float) -> Vector:
    """Return prox_{step ψ}(w), (p,). The intercept is not penalised."""
    parts = problem.layout.blocks(None) if problem.penalty.grouped else tuple(problem.layout.whole().values())
    steps = step * problem.penalised
    moved = np.empty_like(w)
    for part in parts:
        S = part.coordinates
        moved[S] = problem.penalty.prox(w[S], steps[S])
    return moved


def require_blocks(solver: str, problem: Problem) -> None:
    """Raise SpecificationError for a group penalty without named blocks, and for named blocks without a group penalty."""
    require_groups(problem)
    if problem.layout.explicit is not None and not problem.penalty.grouped:
        raise SpecificationError(
            f"{solver} moves all coordinates at once and has no blocks: leave the blocks out of the partition, or use SkGD"
        )


def squares_bound(problem: Problem) -> float:
    """Return Σ_j B_j² ≥ ‖x_i‖²; inf if a column has no bounds."""
    reach = problem.reach[:: problem.layout.width]
    return float(reach @ reach)


def mean_square(solver: str, problem: Problem) -> Exchange[float]:
    """Return a public bound on (1/n)Σ‖x_i‖²: Σ_j M_j/L if M is declared or exact, else Σ_j B_j².

    The bound also exceeds λ_max(XᵀX/n), so steps of 1/(L·bound) on the whole model are safe. With smoothness='private' the
    declared bounds are used: a release would cost budget and improve only the scale of the steps.
    """
    if not isinstance(problem.smoothness, str):
        M, L = problem.smoothness[:: problem.layout.width], problem.loss.curvature
        return float(M.sum()) / L if math.isfinite(L) else float(np.where(np.isfinite(M), M, 1.0).sum())
    if problem.smoothness != "data":
        bound = squares_bound(problem)
        if not math.isfinite(bound):
            raise PrivacyError(
                f"{solver}: steps need bounds for every column: declare them, or a smoothness constant per column"
            )
        return bound
    features = {q: len(names) - (INTERCEPT in names) for q, names in problem.layout.columns.items()}
    widths = {q: width for q, width in features.items() if width}
    squares = 0.0
    if widths:
        released = yield Moments(widths, None, False, None)
        squares = sum(float(u.sum()) for u in released) / problem.n_records
        if not math.isfinite(squares):
            raise DataError(OVERFLOW)
    return squares + float(problem.layout.has_intercept) or 1.0  # all columns are zero: any step size works


def asks_mean_square(problem: Problem) -> bool:
    """Return True if `mean_square` sends a query to the parties."""
    return isinstance(problem.smoothness, str) and problem.smoothness == "data" and bool(problem.penalised.any())


MOST_STEPS = 500
"""Largest default number of steps. More steps cost time and gain no accuracy, since noise is averaged."""


def default_clip(problem: Problem) -> float:
    """Return C = c·typical |ℓ'|·√ΣB_j², where c depends on the signal-to-noise ratio ρ = μn/p; inf without privacy.

    The typical |ℓ'| is half of the loss's largest derivative, or a third of the declared label range.

        bounded derivative   c = min(1.25, max(0.25, 0.15 ρ^0.45))
        others               c = min(0.6, max(0.06, 0.04 ρ^0.45)), because a label range is many times as wide as residuals
    """
    if not problem.private:
        return math.inf
    slope, grown = problem.loss.slope, float(signal_to_noise(problem) ** 0.45)
    if counts.has_counts(problem):
        typical = counts.residual_of(problem, problem.label_range / 3) * min(0.6, max(0.06, 0.04 * grown))
    elif math.isfinite(slope):
        typical = slope / 2 * min(1.25, max(0.25, 0.15 * grown))
    else:
        typical = problem.label_range / 3 * min(0.6, max(0.06, 0.04 * grown))
    C = typical * math.sqrt(squares_bound(problem))
    if not (math.isfinite(C) and C > 0):
        raise PrivacyError(
            "a default clip needs bounds for every column, and for the label of an unbounded loss: give a clip"
        )
    return C


def default_steps(problem: Problem) -> int:
    """Return the number of steps of a private run: 8 ρ for a loss with a bounded derivative, else 20 ρ; from 20 to MOST_STEPS.

    Steps of 1/(L·mean‖x‖²) are short along most directions, so a run needs many steps. At low ρ, an early stop limits the
    noise. The rule was fitted, like `default_clip`, to simulations of 5 problems with 6 to 50 columns at ε of 0.1, 1 and 10.
    """
    each = 8.0 if math.isfinite(problem.loss.slope) and not counts.has_counts(problem) else 20.0
    return round(min(MOST_STEPS, max(20.0, each * signal_to_noise(problem))))


GAIN = 0.05
"""Assumed decrease of the loss by a run, in units of (typical ℓ')²/L. The assumption is a tenth of the possible decrease."""


def time_limit(problem: Problem, clip: float) -> float:
    """Return t, the sum of all γ up to which the expected gain is at least four times the cost of noise; inf without privacy.

    t is in units of 1/(LΣB_j²). Assume a record cap C, a typical |ℓ'| (called typical below), and columns whose mean squares
    are a share r² of their squared bounds:

        noise   ½ r² t² (2C)²/(L ΣB_j² (μn)²)      the sum over t steps, each with its share of the budget
        gain    2 r² t ΔF/p                        the decrease for p equal columns, ΔF = GAIN·typical²/L
        t       GAIN/4 · ΣB_j²·typical²/C² · (μn)²/p

    r and the number of steps cancel. A run with t far below p stays near its start, the constant model. GD, SGD and SVRG
    apply this limit to the default γ, and SCD applies it to the default overlap.
    """
    if problem.mu is None or not math.isfinite(clip):
        return math.inf
    slope = problem.loss.slope
    typical = slope / 2.0 if math.isfinite(slope) else typical_spread(problem)
    if counts.has_counts(problem):
        typical = counts.residual_of(problem, typical_spread(problem))
    if not math.isfinite(typical):
        return math.inf
    squares = squares_bound(problem) * (typical / clip) ** 2
    return GAIN / 4.0 * squares * (problem.mu * problem.n_records) ** 2 / problem.layout.n_used


def default_step_size(problem: Problem, clip: float, steps: int) -> float:
    """Return γ: 1, or less if this number of steps of size 1 would exceed `time_limit`."""
    return min(1.0, time_limit(problem, clip) / steps)


def standing_still(problem: Problem, time: float) -> tuple[str, ...]:
    """Return a warning if the sum of all γ is too small for the run to learn. The run then stays near the constant model.

    A column whose mean square is a third of its squared bound moves by a total of time/(3p) whole steps.

    time : sum of all γ.
    """
    if not problem.private or time / (3.0 * problem.layout.n_used) >= STILL:
        return ()
    return (still(problem),)


def default_passes(problem: Problem, batch_size: int) -> int:
    """Return the number of private passes over batches that amount to `default_steps` steps, at least 2."""
    return max(2, math.ceil(default_steps(problem) * min(batch_size, problem.n_records) / problem.n_records))
