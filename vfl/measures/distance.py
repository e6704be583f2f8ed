"""Distance d between the released model and the model without noise, as an evaluation (a release after training).

Guarantee. The gradient of F at the released model is one Gaussian release on the training records. The release has the
sensitivity Δ of `Clip(Λ, p)`, with a cap Λ that no record's gradient exceeds in norm. If d follows from public facts,
nothing is released.

Let h* minimise F on the training records, where F is λ-strongly convex in all coordinates. Then ‖w − h*‖ ≤ ‖s‖/λ for every
subgradient s of F at w. The noisy gradient ĝ = ∇F(w) + N(0, σ²) gives ‖ĝ‖²/σ² a noncentral χ² distribution with parameter
‖∇F(w)‖²/σ². Inverting this distribution gives an upper bound on ‖∇F(w)‖ with probability 1 − α. The bound is tighter than
‖ĝ‖ plus a quantile of the length of the noise (docs/mathematics.md, "Fairness").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.holdout import Side
from vfl.base.penalties import L2, ElasticNet
from vfl.errors import BudgetExceeded, PartyLost
from vfl.measures.estimates import Estimate, Findings
from vfl.measures.evaluations import ReleasedEvaluation
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.geometry import Clip
from vfl.queries import Backward, Forward, Weighting

if TYPE_CHECKING:
    from collections.abc import Collection

    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.measures.evaluations import Found
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange

ERROR = 0.05
"""ζ: each interval about the model without noise is wrong with at most this probability."""
OF_DISTANCE = ERROR / 2
"""Part of ERROR for the interval of the distance d. The rest is for intervals of the counts (vfl.measures.fairness)."""
MEASURE = "distance"
LOST = "not bounded, because a party or process was lost"


@dataclass(frozen=True, slots=True)
class BoundedDerivative(Weighting):
    """Weights r_i = ℓ'(v_i, y_i) of the records in the gradient, clamped to ±cap/reach; NaN counts as 0.

    For rows of norm at most `reach`, the contributions r_i x_i then have joint norm at most `cap` over all parties. The
    declared bounds B_j give reach = √ΣB_j², so parties need not send the norms of rows. If cap = R·reach, where R is the
    largest |ℓ'|, nothing is clamped.
    """

    loss: Loss
    cap: float
    reach: float

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and {}: this weighting keeps no vectors for later queries."""
        r = self.loss.derivative(margins, labels)
        most = self.cap / self.reach
        return np.where(np.isnan(r), 0.0, np.clip(r, -most, most)), {}


def why_none(problem: Problem) -> str:
    """Return a sentence on why d cannot be bounded, from public facts alone; '' if d can be bounded."""
    if not (isinstance(problem.penalty, L2 | ElasticNet) and problem.penalty.convexity > 0):
        return "the penalty is not strongly convex: use vfl.L2 or vfl.ElasticNet with a positive strength"
    if problem.terms is not None:
        return "curves have a smoothness or a shape: leave both out"
    if not problem.penalised.all():
        return "the intercept is not penalised: train with intercept=False, or with vfl.solvers.OutputPerturbation"
    if problem.private and not math.isfinite(lipschitz(problem)):
        return "a record's gradient has no bound: declare bounds for every column"
    return ""


def reach_of(problem: Problem) -> float:
    """Return √ΣB_j² ≥ ‖x_i‖ for the declared bounds B_j, rounded up."""
    return math.nextafter(
        math.sqrt(float(problem.reach @ problem.reach)) * (1.0 + problem.reach.size * 2.0**-52), math.inf
    )


def lipschitz(problem: Problem) -> float:
    """Return Λ = R√ΣB_j², an upper bound on the norm of a record's gradient. R is the largest |ℓ'|."""
    return problem.loss.slope * reach_of(problem)


def largest_distance(problem: Problem) -> float:
    """Return √(2F(0)/λ) ≥ ‖h*‖. A distance d above this value says nothing about the model without noise."""
    start = float(problem.loss.value(np.zeros(2), np.array([-1.0, 1.0])).max())
    return math.sqrt(2.0 * start / problem.penalty.convexity)


def subgradient(problem: Problem, w: Vector, gradient: Vector) -> tuple[Vector, bool]:
    """Return the shortest subgradient of F at w, (p,), and True if `gradient` did not affect the choice of the subgradient.

    gradient : (p,) gradient of f at w. ψ is L2 or ElasticNet, on all coordinates.
    """
    penalty = problem.penalty
    s = gradient + penalty.convexity * w
    threshold = penalty.strength * penalty.l1_ratio if isinstance(penalty, ElasticNet) else 0.0
    at_zero = np.sign(s) * np.maximum(abs(s) - threshold, 0.0)
    return np.where(w == 0.0, at_zero, s + threshold * np.sign(w)), threshold == 0.0 or bool((w != 0.0).all())


def longest(noisy: Vector, sigma: float, chance: float, *, free: bool) -> float:
    """Return an upper bound on ‖v‖ that holds with probability 1 − chance, for noisy = v + N(0, σ² I).

    free : False if v was chosen with knowledge of the noise. The triangle inequality then gives the bound, never a tighter one.

    If ‖noisy‖² is below the distribution's lower quantile, the inversion has no solution and would return 0, as if the models
    were equal. So ‖noisy‖²/σ² is taken as at least p, which only raises the bound.
    """
    from scipy.special import chdtri, chndtr, chndtrinc

    p, length = noisy.size, float(np.linalg.norm(noisy))
    if sigma == 0.0:
        return length
    noise = math.sqrt(float(chdtri(p, chance)))
    if not free:
        return length + sigma * noise
    square = max((length / sigma) ** 2, float(p))
    found = float(chndtrinc(square, p, chance))
    solved = math.isfinite(found) and found > 0.0 and float(chndtr(square, p, found)) <= chance * (1.0 + 1e-6)
    return sigma * (math.sqrt(found) if solved else math.sqrt(square) + noise)


@dataclass(frozen=True, slots=True, eq=False)
class Distance(ReleasedEvaluation):
    """Upper bound d, at probability 1 − ζ/2, on the distance from the released model to the minimiser of F in training.

    problem : problem of the training records; `why_none` must return '' for the problem.
    mu : budget of the noisy gradient; None computes the gradient without noise.
    radius : d if d follows from public facts, as for output perturbation; with None, the evaluation releases a gradient.
    """

    problem: Problem
    mu: float | None
    radius: float | None = None

    name: ClassVar[str] = "distance"
    side: ClassVar[Side] = Side.TRAINING

    @property
    def _clip(self) -> Clip:
        p = self.problem.layout.n_coordinates
        return Clip(math.inf if self.mu is None else lipschitz(self.problem), p)

    @property
    def _event(self) -> Gaussian | None:
        return None if self.mu is None else self._clip.event(noise_multiplier(self.mu, 1))

    @property
    def _events(self) -> tuple[Gaussian | None]:
        return (self._event if self.radius is None else None,)

    def schedule(self, w: Vector, found: Found = None, gone: Collection[str] = ()) -> Exchange[Findings]:
        """Query the margins Xw and then the gradient, unless d is public."""
        n, said = self.problem.n_records, f"holds with probability {1 - OF_DISTANCE:g}"
        if self.radius is not None:
            return Findings({MEASURE: Estimate(self.radius, 0.0)}, n, f"{said}; public, from the noise of the model")
        if gone:
            return Findings({}, n, LOST)
        event = self._event
        note = f"{said}; from a gradient with noise, charged" if event is not None else "exact: NOT PRIVATE"
        try:
            d = yield from self._released(w, event)
        except (BudgetExceeded, PartyLost):
            return Findings({}, n, LOST)
        return Findings({MEASURE: Estimate(d, 0.0)}, n, note)

    def _released(self, w: Vector, event: Gaussian | None) -> Exchange[float]:
        problem, clip = self.problem, self._clip
        n, p = problem.n_records, problem.layout.n_coordinates
        whole = problem.layout.whole()
        yield Forward({q: (block, w[block.coordinates]) for q, block in whole.items()}, into="reset")
        reach = reach_of(problem)
        blocks = tuple(whole.values())
        zeros, ones = (tuple(fill(block.size) for block in blocks) for fill in (np.zeros, np.ones))
        cap, reach = (clip.cap, reach) if event is not None else (math.inf, 1.0)
        released = yield Backward(BoundedDerivative(problem.loss, cap, reach), blocks, zeros, ones, clip, event)
        s, free = subgradient(problem, w, np.concatenate(released) / n)
        # Each record and the noise are rounded to the grid, by at most half a step per coordinate.
        rounding = clip.grid * math.sqrt(p) / 2.0 * (1.0 + 1.0 / n) if event is not None else 0.0
        sigma = event.sigma / n if event is not None else 0.0
        return self._in_model(longest(s, sigma, OF_DISTANCE, free=free) + rounding)

    def _in_model(self, gradient: float) -> float:
        return gradient / self.problem.penalty.convexity * (1.0 + 1e-12)

    @property
    def expected(self) -> float:
        """Return the expected d of a model without noise, the smallest that any model has."""
        if self.radius is not None:
            return self.radius
        event, p = self._event, self.problem.layout.n_coordinates
        if event is None:
            return 0.0
        sigma = event.sigma / self.problem.n_records
        noise = np.full(p, sigma)  # a vector whose length is that of noise alone
        return self._in_model(longest(noise, sigma, OF_DISTANCE, free=True))

    def explain(self) -> str:
        """Return a sentence for the plan on d, with a warning if d is too large for useful bounds."""
        said = f"of the model from the model without noise, {'at most' if self.radius is not None else 'at best'} "
        said += f"{self.expected:.3g}" + (", from public facts" if self.radius is not None else "")
        most = largest_distance(self.problem)
        if self.expected >= most:
            said += (
                f": too far for any bound, since the model without noise is at most {most:.3g} long; raise the penalty's "
                "strength, ε or the number of records"
            )
        return said

    @property
    def queries(self) -> int:
        """Return the number of queries: margins and gradient; 0 if d is public."""
        return 0 if self.radius is not None else 2
