"""Solver DP-GCD: greedy coordinate descent by private selections and private steps (Mangold, thesis, ch. 5).

A round makes two releases. The first is the coordinate with the best score, chosen by the exponential mechanism over exact
scores. The second is the clipped partial derivative of this coordinate, with Gaussian noise. No score is ever released.

Sensitivity of a score. In scaled units the party sums u_j = Σ_i clip(r_i x_ij/√M_j, κ), and g_j = √M_j u_j/n. Replacing
one record moves u_j by at most Δ = 2(κ(1 + 2⁻⁵⁰) + grid/2) (vfl.privacy.geometry). Every rule below is 1-Lipschitz in
h_j = u_j/n. All scores therefore have the sensitivity Δ/n for any M_j, w_j and ψ, plus twice the rounding error of a
computed score. Public numbers bound that error: |h_j| ≤ Δ/2 (a mean of n contributions), w and M.

Strong convexity. Let ψ_j − (m/2)w² be convex: m = λ for L2, λ(1 − ρ) for the elastic net, and 0 for L1, box, no penalty and
the unpenalised intercept. The prox with step s is then 1/(1 + sm)-Lipschitz, and this constant is attained wherever the prox is
smooth. The papers' scores shrink by the same factor, but noise for a 1-Lipschitz score does not. So every score here is divided
by its own Lipschitz constant, which is public. Under a ridge, GS-r is then |g_j + λw_j|/√M_j, which does not depend on M_j + λ.
Coordinates of equal M_j + λ have the same order as in the papers.

Noise is added to the score, so the sensitivity above holds for every ψ. The thesis adds noise inside the prox instead. For
ψ ≠ 0 that leaves plateaus, on which report-noisy-max fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.base.arguments import CLIP, one_of, option, require_fraction, require_positive, whole
from vfl.base.types import Adjacency
from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import BoundedRange
from vfl.privacy.geometry import Clip
from vfl.privacy.spending import UNIT_BITS, rho
from vfl.privacy.zcdp import rho_of
from vfl.queries import Descend, Select, Step
from vfl.queries.protocol import Derivative, Solver, Vectors, require_clip
from vfl.queries.rules import ProxStep
from vfl.solvers import joint
from vfl.solvers.iterates.convergence import TOLERANCE, describe, largest, tolerance
from vfl.solvers.releases import counts
from vfl.solvers.releases.smoothness import asks_moments, curvature, moments_event, require_curvature
from vfl.solvers.rules import defaults

if TYPE_CHECKING:
    from vfl.base.penalties import Penalty
    from vfl.base.problem import Block, Problem
    from vfl.base.types import Vector
    from vfl.privacy.events import Event
    from vfl.queries import ScoreRule
    from vfl.queries.protocol import Schedule
    from vfl.solvers.releases.curvature import Curvature

RULES = ("GS-r", "GS-s", "GS-q")
CLIP_UNITS = 3.0
BOUNDED_UNITS = 2.0
"""Largest κ, in units of a typical scaled gradient, for losses with a bounded derivative; for other losses it is CLIP_UNITS.

A run of GCD has few rounds, so it tolerates a larger clip than the many passes of SkGD.
"""
ENOUGH = 2000.0
"""Value of μn/ln p from which κ is largest. Below this value, a smaller clip loses less signal than it saves noise."""
NOISE_SHARE = 0.4
"""Largest ratio of the selection's noise (the maximum of p Gumbel variables) to a useful score.

This ratio determines the default number of rounds.
"""
PUBLIC_ROUNDS = 300
"""Largest number of rounds per coordinate without privacy. A run stops earlier once it has converged."""
NEARBY = 2.0**-16
"""Fraction of a full step over which GS-s measures the slope of F. The score differs from that of an infinitely short step only
if |w_j| is below this short step.
"""
ROUNDING = 2.0**-48
"""Relative rounding error of a score: a dozen operations with an error of 2⁻⁵³ each, doubled for a penalty's prox."""


@dataclass(frozen=True, slots=True, eq=False)
class _Score:
    """Fields of `MoveScore` and `DecreaseScore`. sensitivity : bound on the change of a computed score, with rounding."""

    gain: Vector
    steps: Vector
    unit: Vector
    penalty: Penalty
    sensitivity: float


@dataclass(frozen=True, slots=True, eq=False)
class MoveScore(_Score):
    """Score of a move in scaled units, √M_j·(1 + cm/M_j)·|prox_{cψ/M_j}(w_j − c g_j/M_j) − w_j|/c. 1-Lipschitz in u_j/n.

    The prox is 1/(1 + cm/M_j)-Lipschitz, with m the convexity modulus of ψ_j, so two moves differ by at most
    c|g_j − g'_j|/(M_j + cm). c = 1 is GS-r. For c → 0 the move divided by c tends to dist(−g_j, ∂ψ_j(w_j))/M_j, which is
    GS-s. At every c, the move is 0 exactly if w_j is optimal.

    gain : (s,) c/(n√M_j). steps : (s,) c/M_j, 0 where unpenalised. unit : (s,) (1 + m·steps_j)√M_j/c.
    """

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return the scores, (s,)."""
        return np.asarray(self.unit * abs(self.penalty.prox(w - self.gain * u, self.steps) - w))

    def least(self, w: Vector, contribution: float, n_records: int) -> float:
        """Return the least valid `sensitivity`: 2a·max_j unit_j gain_j/(1 + m·steps_j) plus twice a score's rounding error.

        contribution : a, upper bound on one record's contribution to u_j.
        """
        if self.penalty.grouped or (self.steps < 0).any():
            return math.inf
        reach = abs(self.unit * self.gain)
        slope = float((reach / (1.0 + self.penalty.convexity * self.steps)).max())
        error = ROUNDING * float((abs(self.unit * w) + n_records * contribution * reach).max())
        return 2.0 * (contribution * slope + error) * (1.0 + 2.0**-50)


@dataclass(frozen=True, slots=True, eq=False)
class DecreaseScore(_Score):
    """Score √(2(1 + m/M_j)·decrease_j) of the decrease of F's quadratic bound along coordinate j (GS-q). 1-Lipschitz in u_j/n.

    D(g) = max_Δ −gΔ − MΔ²/2 − ψ(w+Δ) + ψ(w) is convex with slope −Δ*. The maximum is of an (M+m)-strongly concave function
    that is 0 at Δ = 0. So 2D ≥ (M+m)Δ*², and √(2D) has slope at most Δ*/√((M+m)Δ*²) = 1/√(M+m) in g, which is
    1/√(1 + m/M) in u/n. 2D is computed as MΔ² plus twice the Bregman divergence ψ(w) − ψ(w+Δ) + ξΔ ≥ 0 with
    ξ = −g − MΔ ∈ ∂ψ(w+Δ), so that nothing cancels if ψ = 0.

    gain : (s,) 1/(n√M_j). steps : (s,) 1/M_j, 0 where unpenalised. unit : (s,) √M_j.
    """

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return the scores, (s,)."""
        v = w - self.gain * u
        there = self.penalty.prox(v, self.steps)
        move = there - w
        ξ = self.unit**2 * (v - there)
        divergence = _values(self.penalty, w, self.steps) - _values(self.penalty, there, self.steps) + ξ * move
        decrease = (self.unit * move) ** 2 + 2.0 * np.maximum(divergence, 0.0)
        return np.asarray(np.sqrt((1.0 + self.penalty.convexity * self.steps) * decrease))

    def least(self, w: Vector, contribution: float, n_records: int) -> float:
        """Return 2a·max_j unit_j gain_j plus twice a score's rounding error; as for `MoveScore.least`."""
        curved = abs(self.steps * self.unit**2 - 1.0) <= ROUNDING
        if self.penalty.grouped or not (curved | (self.steps == 0)).all():
            return math.inf  # the term added to the squared move would not be a Bregman divergence
        slope = float(abs(self.unit * self.gain).max())
        B = abs(self.unit * w) + n_records * contribution * slope
        terms = 2.0 * _values(self.penalty, w, self.steps) + 16.0 * B**2
        error = math.sqrt(ROUNDING * float(((1.0 + self.penalty.convexity * self.steps) * terms).max()))
        return 2.0 * (contribution * slope + error) * (1.0 + 2.0**-50)


def _values(penalty: Penalty, w: Vector, steps: Vector) -> Vector:
    """Return ψ_j(w_j), (s,), 0 where unpenalised. A penalty returns only sums, so each distinct w_j is evaluated alone."""
    different, position = np.unique(w, return_inverse=True)
    values = np.array([penalty.value(different[k : k + 1]) for k in range(different.size)])
    return np.where(steps > 0, values[position], 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GCD(Solver):
    """Greedy coordinate descent, for sparse models. Public rules decide options left at None; `vfl.plan` prints the reasons.

    rule : score of a coordinate: 'GS-r' (longest step), 'GS-s' (steepest slope) or 'GS-q' (largest decrease).
    rounds : number of rounds. Each round is charged one selection and one step.
    clip : κ, cap on one record's partial derivative in units of √M_j; inf clips nothing.
    step_size : γ in the step γ/M_j.
    tol : without privacy, stop once the longest possible step (rule 'GS-r') is at most this share of the largest coordinate.
        None takes 1e-9, but never stops early if `rounds` is given or the rule is not 'GS-r'. With privacy `tol` must be None,
        since the number of rounds must not depend on data.
    selection_share : share of the rounds' budget (ρ of zCDP) that selections spend; the steps get the remaining budget.
    """

    rule: str = option(one_of(RULES), "GS-r")
    rounds: int | None = option(whole(), None)
    clip: float | None = option(CLIP, None)
    step_size: float = option(require_positive, 1.0)
    tol: float | None = option(TOLERANCE, None)
    selection_share: float = option(require_fraction, 0.5)

    name: ClassVar[str] = "GCD"

    def __post_init__(self) -> None:
        Solver.__post_init__(self)
        if self.tol is not None and self.rule != "GS-r":
            raise SpecificationError(
                f"GCD: tol needs rule='GS-r', whose coordinate moves farthest: with {self.rule!r} others may still move"
            )

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided from public facts."""
        require_curvature(self.name, problem)
        require_clip(self.name, problem, self.clip)
        if problem.penalty.grouped:
            raise SpecificationError(
                f"GCD moves one coordinate at a time and needs a separable penalty; {problem.penalty.name} is not: "
                "use SkGD"
            )
        clip = self.clip if self.clip is not None else _default_clip(problem)
        tol = tolerance(self.name, problem, self.tol, limited=self.rounds is not None or self.rule != "GS-r")
        return replace(self, clip=clip, rounds=self.rounds or self._default_rounds(problem), tol=tol)

    def schedule(self, problem: Problem) -> Schedule:
        """In each of the rounds, select the best coordinate, release its partial derivative, and take its prox step."""
        try:
            known = yield from curvature(problem, moments_event(problem))
        except BudgetExceeded:  # without moments no step is right
            return np.zeros(problem.layout.n_coordinates)
        ε, z = self._noise(problem) if problem.private else (None, None)
        whole, singles, w = problem.layout.whole(), problem.layout.singles(), np.zeros(problem.layout.n_coordinates)
        if counts.is_exact(problem):
            known, mean, loss = yield from counts.at_the_mean(problem, known)
            w, problem = problem.intercept * mean, replace(problem, loss=loss)
            yield joint.forward(problem, w, "reset")
        weighting = Derivative(problem.loss)
        root = np.sqrt(known.smoothness)
        # The score of a coordinate is at least the length of its step, so the best score bounds all steps.
        reach = root * (1.0 + _bends(problem, known))
        for k in range(self.rounds or 0):
            if k and k % (defaults.REBUILD_EVERY * w.size) == 0:
                v = known.uncentred(w, problem.intercept)
                yield joint.forward(problem, v, "reset")
            try:
                ((chosen,),) = yield self.selection(problem, known, w, ε)
                step = self._step(problem, known, singles[int(chosen)], z)
                owner, S = step.block.party, step.block.coordinates
                # The step uses the residuals of the selection, so the party needs neither margins nor labels.
                start = {owner: w[whole[owner].coordinates].copy()}
                (u,) = yield Descend(weighting, {owner: (step,)}, start, recomputes=False)
            except BudgetExceeded:  # charges for lost attempts used up the planned budget: end with the current w
                break
            Δ = step.rule(w[S], u)
            w[S] += Δ
            whole_step = float(abs(Δ).max()) * max(1.0, 1.0 / self.step_size)
            if self.tol is not None and reach[S].max() * whole_step <= self.tol * largest(w, root, problem.intercept):
                break
        return known.uncentred(w, problem.intercept)

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return the charges of the private moments, if the run releases any, and of one selection and one step per round."""
        if not problem.private:
            return ()
        moments, rounds = moments_event(problem), self.rounds or 0
        ε, z = self._noise(problem)
        selection, step = BoundedRange(Adjacency.REPLACE_ONE, ε), self._clip.event(z)
        return (*(((moments, 1),) if moments else ()), (selection, rounds), (step, rounds))

    def messages(self, problem: Problem) -> int:
        """Return the number of messages that a run waits for: two per round, rebuilds of Xw, and one if moments are needed."""
        begun = asks_moments(problem) + 2 * counts.is_exact(problem)
        return begun + 2 * (self.rounds or 0) + self._rebuilds(problem)

    def _rebuilds(self, problem: Problem) -> int:
        return ((self.rounds or 0) - 1) // (defaults.REBUILD_EVERY * problem.layout.n_coordinates)

    def vectors(self, problem: Problem) -> Vectors:
        """Return the vectors of a run: per round, residuals to all parties, then to the selected party, which answers."""
        rounds, parties = self.rounds or 0, len(problem.layout.whole())
        return Vectors((parties + 1) * rounds, rounds + parties * self._rebuilds(problem))

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option."""
        sentences = [
            f"rule {self.rule} for the greedy coordinate, {self.rounds} rounds of one selection and one step.",
            f"clip κ = {self.clip:.3g}, for {problem.loss.name} loss.",
            f"step_size γ = {self.step_size:.3g}.",
        ]
        if problem.private:
            ε, z = self._noise(problem)
            sentences.append(
                f"selections take {self.selection_share:.0%} of the rounds' budget (range {ε:.3g} each), and steps "
                f"spend the remaining budget (noise multiplier {z:.4g})."
            )
        return (*sentences, *describe(self.tol))

    @property
    def _clip(self) -> Clip:
        return Clip(self.clip or math.inf, 1)

    def _default_rounds(self, problem: Problem) -> int:
        """Return the number of rounds at which the selection's noise is NOISE_SHARE·κ/√rounds; at most two per coordinate.

        With a budget ρ_s for all selections, each of K rounds has ε² = 8ρ_s/K, and the selection's noise is 2Δ ln p/ε, where
        Δ = 2κ/n. If K scores matter and their squares add up to a part of κ², each score is about κ/√K. So
        K = NOISE_SHARE·n·√(8ρ_s)/(4 ln p), which is linear in n and ε; the thesis uses the power 2/3.
        """
        p = problem.layout.n_coordinates
        if not problem.private:
            return PUBLIC_ROUNDS * p
        ρ = float(_left_for_rounds(problem)) * self.selection_share
        rounds = NOISE_SHARE * problem.n_records * math.sqrt(8.0 * ρ) / (4.0 * math.log(p + 1.0))
        return min(max(1, round(rounds)), 2 * p)

    def _noise(self, problem: Problem) -> tuple[float, float]:
        """Return ε of one selection and the noise multiplier z of one step.

        All rounds together cost at most the remaining ρ, in exact arithmetic.
        """
        rounds = self.rounds or 1
        # A party's ledger rounds each charge up to whole units: allow one unit per release, and one for the cap.
        left = _left_for_rounds(problem) - Fraction(2 * rounds + 2, 1 << UNIT_BITS)
        if not left > 0:
            raise PrivacyError("GCD: too many rounds for this epsilon: lower rounds or raise epsilon")
        ε = _root_below(8 * left * Fraction(self.selection_share) / rounds)
        spent = rounds * rho(BoundedRange(Adjacency.REPLACE_ONE, ε))
        return ε, noise_multiplier(_root_below(2 * (left - spent)), rounds)

    def selection(self, problem: Problem, known: Curvature, w: Vector, ε: float | None) -> Select:
        """Return the query that selects the best coordinate at w, (p,). ε : range of a selection; None without privacy."""
        whole = problem.layout.whole()
        sensitivity = self._sensitivity(problem, known, w) if ε is not None else math.inf
        rules = {q: self._score(problem, known, block.coordinates, sensitivity) for q, block in whole.items()}
        return Select(
            Derivative(problem.loss),
            {q: (block, w[block.coordinates].copy()) for q, block in whole.items()},
            {q: known.centre[block.coordinates] for q, block in whole.items()},
            {q: 1.0 / np.sqrt(known.smoothness[block.coordinates]) for q, block in whole.items()},
            self._clip,
            rules,
            BoundedRange(Adjacency.REPLACE_ONE, ε) if ε is not None else None,
        )

    def _score(self, problem: Problem, known: Curvature, S: slice, sensitivity: float) -> ScoreRule:
        """Return the score rule for the coordinates S. Full steps are assumed for any γ, since scores only rank coordinates."""
        M, c = known.smoothness[S], NEARBY if self.rule == "GS-s" else 1.0
        root = np.sqrt(M)
        kind = DecreaseScore if self.rule == "GS-q" else MoveScore
        gain, steps = c / (problem.n_records * root), c / M * problem.penalised[S]
        unit = root if kind is DecreaseScore else (1.0 + problem.penalty.convexity * steps) * root / c
        return kind(gain, steps, unit, problem.penalty, sensitivity)

    def _sensitivity(self, problem: Problem, known: Curvature, w: Vector) -> float:
        """Return Δ/n plus twice the rounding error of a score at the public w, for all coordinates of all parties.

        |h_j| ≤ a = Δ/2, a mean of n contributions. With B_j = √M_j|w_j| + a, in scaled units:
        Moves: v = w − c h/√M and its prox are within ROUNDING·(|w| + c a/√M), so the score is within ROUNDING·B_j(1 + sm)/c.
        Decrease: 2D is a sum of terms whose magnitudes add up to at most 2ψ(w) + 12 B_j²: |Δ| ≤ 2B/√M, |ξ| ≤ √M B, and
        ψ(w+Δ) ≤ B²/2 since the prox is no worse than 0. An error e in 2D changes the score by at most √e. Rounding of w+Δ
        moves ψ by a share of ψ(2(w+Δ)) ≤ 4ψ(w+Δ) if ψ grows at most quadratically, as all separable penalties here do.
        The factor 1 + m/M of 2D multiplies e.
        """
        a, c = self._clip.sensitivity / 2.0, NEARBY if self.rule == "GS-s" else 1.0
        B = np.sqrt(known.smoothness) * abs(w) + a
        stretch = 1.0 + c * _bends(problem, known)
        if self.rule == "GS-q":
            value = _values(problem.penalty, w, problem.penalised)
            error = math.sqrt(ROUNDING * float((stretch * (2.0 * value + 16.0 * B**2)).max()))
        else:
            error = ROUNDING * float((stretch * B).max()) / c
        return (2.0 * a / problem.n_records + 2.0 * error) * (1.0 + ROUNDING)

    def _step(self, problem: Problem, known: Curvature, block: Block, z: float | None) -> Step:
        S = block.coordinates
        M = known.smoothness[S]
        s, scale = self.step_size / M, 1.0 / np.sqrt(M)
        rule = ProxStep(s / (problem.n_records * scale), s * problem.penalised[S], problem.penalty)
        return Step(block, known.centre[S], scale, self._clip, rule, self._clip.event(z) if z is not None else None)


def _default_clip(problem: Problem) -> float:
    """Return κ = units · typical scaled gradient · min(1, μn/(ENOUGH ln p))^0.26; inf without privacy.

    The units are CLIP_UNITS or BOUNDED_UNITS. A typical gradient uses half of the loss's largest derivative. For squared loss
    it uses a typical distance of a label from 0, where w starts: for the middle m of the declared range and a sixth r of its
    width, √(m² + r²). The rule was fitted to the four problems of the thesis in tests/benchmarks/utility.py. Its results are
    within a factor of 1.7 of the best clips.
    """
    if problem.mu is None:
        return math.inf
    loss, p = problem.loss, problem.layout.n_coordinates
    if math.isfinite(loss.slope):
        units, typical = BOUNDED_UNITS, loss.slope / 2
    else:
        units, typical = CLIP_UNITS, math.hypot(problem.label_centre, problem.label_range / 6)
    clear = problem.mu * problem.n_records / (ENOUGH * math.log(p + 1.0))
    return float(units * min(1.0, clear**0.26) * typical / math.sqrt(loss.curvature))


def _bends(problem: Problem, known: Curvature) -> Vector:
    """Return m/M_j, (p,): the strong convexity m of ψ_j relative to the quadratic bound; 0 where unpenalised."""
    return problem.penalty.convexity * problem.penalised / known.smoothness


def _left_for_rounds(problem: Problem) -> Fraction:
    """Return the zCDP budget ρ of (ε, δ) that all other releases leave. Accounting by μ-GDP would overcharge selections.

    A Gaussian release is μ-GDP and μ²/2-zCDP, both exactly.
    """
    if problem.epsilon is None or problem.delta is None:
        raise PrivacyError("GCD: a run without privacy has no budget to share")
    moments = moments_event(problem)
    left = Fraction(rho_of(problem.epsilon, problem.delta)) - (rho(moments) if moments else 0)
    left -= problem.besides / 2
    if not left > 0:
        raise PrivacyError(
            "GCD: other releases take the whole budget, since selections are accounted by zCDP: lower smoothness_share, "
            "or leave out class_balance and the bound of fairness"
        )
    return left


def _root_below(value: Fraction) -> float:
    """Return a double near √value whose exact square is at most the value."""
    root = math.sqrt(float(value))
    while Fraction(root) ** 2 > value:
        root = math.nextafter(root, 0.0)
    return root
