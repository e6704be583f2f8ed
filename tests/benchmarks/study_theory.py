"""What the papers' bounds are made of, taken from the data at the optimum: for judging predictions, never for training.

The bounds compared (DP-CD, Table 1; DP-SkGD says that it keeps them, and that importance sampling betters them; μ of
Gaussian DP for ε/√(ln 1/δ)):

| | convex | strongly convex |
|---|---|---|
| CD, SkGD | √p·L_{M⁻¹}·R_M/(nμ) | p·L²_{M⁻¹}/(μ_M n²μ²) |
| SGD | √p·Λ·R_I/(nμ) | p·Λ²/(μ_I n²μ²) |

and SkGD's number of draws K = 2(1 + max_i(M_i/q_i)/μ_I), which is p·max M/ΣM times less for importance than for uniform
draws. L_j, Λ : 99 % quantiles over records of |∂_j ℓ_i| and ‖∇ℓ_i‖ at the optimum, what a clip that cuts one record in a
hundred would be. L²_{M⁻¹} = Σ L_j²/M_j. R : distance from the start to the optimum, in the norm of M and in Euclid's.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.kernels.geometry import capped, record_limits
from vfl.privacy.geometry import Clip

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.solvers import SkGD

QUANTILE = 0.99


@dataclass(frozen=True, eq=False)
class Constants:
    """A problem in centred columns. Z : (n, p). M : (p,). H : (p, p) Hessian at the optimum. r : (n,) derivatives there."""

    problem: Problem
    Z: Vector
    M: Vector
    H: Vector
    r: Vector
    w: Vector

    @classmethod
    def of(cls, problem: Problem, X: Vector, y: Vector, w: Vector) -> Constants:
        """Return the constants at the optimum w of centred columns."""
        Z = X - np.where(problem.centred_coordinates, X.mean(axis=0), 0.0)
        L, margins = problem.loss.curvature, Z @ w
        r, step = problem.loss.derivative(margins, y), 1e-4
        bend = (problem.loss.derivative(margins + step, y) - problem.loss.derivative(margins - step, y)) / (2 * step)
        H = (Z * bend[:, None]).T @ Z / len(y) + np.diag(problem.penalty.convexity * problem.penalised)
        M = L * (Z**2).mean(axis=0)
        return cls(problem, Z, M, H, r, w)

    @property
    def p(self) -> int:
        """Coordinates."""
        return self.M.size

    @property
    def total(self) -> float:
        """ΣM."""
        return float(self.M.sum())

    @functools.cached_property
    def gradients(self) -> Vector:
        """|∂_j ℓ_i|, (n, p)."""
        return abs(self.Z * self.r[:, None])

    def slack(self, size: int) -> float:
        """|S| over λ_max(M_S^{-1/2} H_S M_S^{-1/2}), least of all blocks: how short the step is that fits all data."""
        L, shortest = self.problem.loss.curvature, np.inf
        for block in self.problem.layout.blocks(min(size, self.p)):
            S = block.coordinates
            A = self.Z[:, S] / np.sqrt(self.M[S])
            shortest = min(shortest, block.size / np.linalg.eigvalsh(L * A.T @ A / len(A))[-1])
        return float(shortest)

    def clipped(self, solver: SkGD) -> float:
        """The share of records that a clip cuts at the optimum: of the record cap, or of blocks on average."""
        if solver.by_pass:
            isotropic = solver.noise_geometry == "isotropic"
            z = self.Z if isotropic else self.Z / np.sqrt(self.M)
            C = float(solver.decided.record_clip) * np.sqrt(self.total if isotropic else self.p)
            kept = capped(self.r, record_limits((z**2).sum(axis=1), C), self.problem.loss.name)
            return float((abs(kept) < abs(self.r) * (1.0 - 1e-12)).mean())
        shares = []
        for block in self.problem.layout.blocks(solver.block_size):
            S, isotropic = block.coordinates, solver.noise_geometry == "isotropic"
            scale = 1.0 if isotropic else 1.0 / np.sqrt(self.M[S])
            cap = float(solver.clip) * np.sqrt(self.M[S].sum() if isotropic else block.size)
            shares.append((np.linalg.norm(self.gradients[:, S] * scale, axis=1) > cap).mean())
        return float(np.mean(shares))

    def gap(self, q: Vector) -> float:
        """Contraction of one step 1/M_j on a coordinate drawn with probability q_j, without noise: λ_min(QM⁻¹H)."""
        root = np.sqrt(q / self.M)
        return float(np.linalg.eigvalsh(root[:, None] * self.H * root)[0])

    def noise_of_isotropic(self, size: int | None) -> float:
        """Power of the noise in the norm of M, isotropic over scaled, at one κ: Σ_S ΣM_S Σ1/M_S over Σ_S |S|²."""
        blocks = [b.coordinates for b in self.problem.layout.blocks(None if size is None else min(size, self.p))]
        return float(
            sum(self.M[S].sum() * (1 / self.M[S]).sum() for S in blocks) / sum(self.M[S].size ** 2 for S in blocks)
        )

    def described(self) -> dict[str, float]:
        """Return the values for the tables."""
        uniform = np.full(self.p, 1.0 / self.p)
        importance = self.M / self.total
        single = np.quantile(self.gradients, QUANTILE, axis=0)
        whole = float(np.quantile(np.linalg.norm(self.gradients, axis=1), QUANTILE))
        L_M = float(np.sqrt((single**2 / self.M).sum()))
        R_M, R_I = float(np.sqrt(self.M @ self.w**2)), float(np.linalg.norm(self.w))
        scaled = self.H / np.sqrt(np.outer(self.M, self.M))
        found = {
            "p": self.p, "spread of M": self.M.max() / self.M.min(),
            "importance, bound": self.p * self.M.max() / self.total,
            "importance, gap": self.gap(importance) / self.gap(uniform),
            "undrawn by importance": ((1 - importance) ** (12 * self.p)).mean(),
            "SGD over CD, convex": whole * R_I / (L_M * R_M),
            "SGD over CD, strongly convex": (whole**2 / np.linalg.eigvalsh(self.H)[0])
            / (L_M**2 / np.linalg.eigvalsh(scaled)[0]),
            "slack of a pair": self.slack(2), "slack of a party": self.slack(10**6),
            "isotropic over scaled, pair": self.noise_of_isotropic(2),
            "isotropic over scaled, party": self.noise_of_isotropic(None),
            "rounding in the sensitivity": Clip(1.0, self.p).sensitivity / (2.0 * (1 + self.p * 2.0**-50)) - 1.0,
        }  # fmt: skip
        return {name: float(value) for name, value in found.items()}
