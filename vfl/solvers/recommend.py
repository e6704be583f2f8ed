"""Expected error of each solver, from public facts, with the papers' quantities as reasons.

The papers compare solvers by upper bounds that contain constants of the data (DP-CD, Table 1; DP-GCD, Table 1). The table
uses public values instead, exact accounting (μ for ε/√(ln 1/δ)), R for a typical |ℓ'|, and L for the curvature:

| solver | quantity | with declared bounds B |
|---|---|---|
| SkGD, CD | √p·L_{M⁻¹}/(nμ), L²_{M⁻¹} = Σ L_j²/M_j | pR/(√L·nμ): free of B |
| SGD, SVRG, GD | √p·Λ/(nμ)·(R_I/R_M) | Λ = R‖B‖: equal to the above where all M_j are, else worse |
| GCD | (ln p/(nμ))^{2/3} | free of p, but for its logarithm |
| OutputPerturbation | Λ/(λnμ) | grows as 1/λ |
| NoisyGram | p^{3/2}C²/(nμ) | grows faster with p, has no κ and no passes |

The bounds are loose. For SkGD and NoisyGram, the expected share of the loss that is left, (F(w) − F*)/(F(0) − F*), comes
from two curves in the signal-to-noise ratio ρ = μn/p, fitted to simulations of squared loss with p from 3 to 40, n from
2,000 to 200,000, independent columns and correlated ones. They are orders of magnitude: medians lay between 1/13 and 14
times the curves, and descent lay 120 times above its curve at a correlation of 0.95. On 14 problems outside the fit, the
curves named the better solver 12 times; on the other two (p = 3, n = 200,000) SkGD won by factors of 1.2 and 4. The other
rows are the papers' orders and were not fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl import markup
from vfl.solvers.defaults import signal_to_noise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.problem import Problem

DESCENT = (0.25, 0.85)
GRAM = (8.0, 1.35)
"""(a, b) of a·ρ^−b; they cross at ρ = 1000."""
UNBALANCED = 3.0
"""Smallest ratio of the error of joint clipping to that of coordinate descent in the tables of the DP-CD paper."""
PRODUCTS = 500
"""Largest p at which p² products, one message per column, are cheap to collect."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Expected share of the loss that one solver leaves (1: it learns nothing), and the reason."""

    solver: str
    left: float
    reason: str


@dataclass(frozen=True, slots=True, repr=False)
class Recommendation:
    """Solvers that the job can run, the one that is expected to win first."""

    candidates: tuple[Candidate, ...]

    @property
    def solver(self) -> str:
        """Name of the solver with the least expected error."""
        return self.candidates[0].solver

    @property
    def reason(self) -> str:
        """Reason for the first choice."""
        return self.candidates[0].reason

    def __str__(self) -> str:
        return "\n".join(f"{c.solver:<18} expected left {c.left:8.2g}   {c.reason}" for c in self.candidates)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows = [(c.solver, markup.Cell(f"{c.left:.2g}", number=True), c.reason) for c in self.candidates]
        return markup.table(("solver", markup.Cell("expected left", number=True), "why"), rows)


def recommendation(problem: Problem) -> Recommendation:
    """Rank the solvers that can run this problem; public facts only, no data, nothing spent."""
    ranked = sorted(_candidates(problem), key=lambda candidate: candidate.left)
    return Recommendation(tuple(ranked))


def _candidates(problem: Problem) -> Iterator[Candidate]:
    smooth, n, p = math.isfinite(problem.loss.curvature), problem.n_records, problem.layout.n_coordinates
    if problem.mu is None:
        if smooth:
            yield Candidate("SkGD", 0.0, "without noise the steps of 1/M_j are the longest that are safe")
        else:
            yield from _without_curvature(problem, 0.0)
        return
    ρ, nμ = signal_to_noise(problem), n * problem.mu
    descent = min(1.0, DESCENT[0] * ρ ** -DESCENT[1])
    if not smooth:
        yield from _without_curvature(problem, min(1.0, UNBALANCED * descent))
        return
    R = _typical_slope(problem)
    yield Candidate(
        "SkGD",
        descent,
        f"√p·L_{{M⁻¹}}/(nμ) = {p * R / (math.sqrt(problem.loss.curvature) * nμ):.2g} at μn/p = {ρ:.3g}, whatever the units "
        "of the columns are",
    )
    if math.isfinite(float(problem.reach @ problem.reach)):
        yield from _joint(problem, R, descent)
    if not problem.penalty.grouped and p > 1:
        greedy = (math.log(p) / nμ) ** (2.0 / 3.0)
        yield Candidate(
            "GCD", min(1.0, greedy), f"(ln p/(nμ))^(2/3) = {greedy:.2g} does not grow with p as √p·L_{{M⁻¹}} does"
        )
    if problem.loss.name == "squared" and p <= PRODUCTS and math.isfinite(problem.label_range):
        gram = min(1.0, GRAM[0] * ρ ** -GRAM[1])
        yield Candidate(
            "NoisyGram", gram, f"one release of {p * (p + 3) // 2} products, no clip of gradients, at μn/p = {ρ:.3g}"
        )


def _joint(problem: Problem, R: float, descent: float) -> Iterator[Candidate]:
    """Yield the solvers whose noise follows the length Λ of a record's whole gradient."""
    p, nμ = problem.layout.n_coordinates, problem.n_records * (problem.mu or math.inf)
    B = float(np.linalg.norm(problem.reach))
    yield Candidate(
        "SGD",
        min(1.0, UNBALANCED * descent),
        f"√p·Λ/(nμ) = {math.sqrt(p) * R * B / nμ:.2g} with Λ = R‖B‖: at best that of SkGD, where all M_j are equal",
    )
    λ, slope = problem.penalty.convexity, problem.loss.slope
    if λ > 0 and math.isfinite(slope):
        σ = 2.0 * slope * B / (λ * nμ)
        excess = 0.5 * (problem.loss.curvature * B**2 / 3.0 + λ * p) * σ**2
        left = excess / (0.05 * R**2 / problem.loss.curvature)
        yield Candidate("OutputPerturbation", min(1.0, left), f"2Λ/(λnμ) = {σ:.2g} on every coordinate of w")


def _without_curvature(problem: Problem, left: float) -> Iterator[Candidate]:
    """Yield SGD before SCD: on adult (ε = 1, ridge and SVM) it left less of the loss (tests/benchmarks/dual.py)."""
    yield Candidate("SGD", left, f"{problem.loss.name} loss has no M_j; shrinking steps need none")
    if problem.penalty.convexity > 0:
        why = f"{problem.loss.name} loss has no M_j; a closed dual step under strong convexity, with the larger noise"
        yield Candidate("SCD", min(1.0, 2.0 * left), why)


def _typical_slope(problem: Problem) -> float:
    """Return R: half of the largest |ℓ'|, or a third of the declared label range; 1 where neither is declared."""
    if math.isfinite(problem.loss.slope):
        return problem.loss.slope / 2
    return problem.label_range / 3 if math.isfinite(problem.label_range) else 1.0
