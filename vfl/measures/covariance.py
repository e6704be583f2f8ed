"""Covariance of a run's coefficients, computed from its releases alone.

V = noise_covariance + H⁻¹ J H⁻¹. The released H = Σ h_i z_i z_iᵀ and J = Σ ρ_i² z_i z_iᵀ are those of
vfl.solvers.releases.products. The first term is due to the noise of privacy. The second term is due to sampling: the sandwich
covariance of an M-estimator (Huber 1967; White 1980), which is valid for misspecified models too.

Noise of privacy. An update of block S moves the error e = φ − φ* of the iterate φ, in units of the scaled columns, by

    e_S ← d (e_S − a (H_S e + ξ)),   ξ ~ N(0, σ² I),

H is the curvature of the sum over records. The gain is a = γ/(βn) for steps of relative size γ when β columns move at once.
d = 1/(1 + sλ) for an L2 penalty λ and steps of length s. The returned model is the mean of the iterates after the first
updates. `noise_covariance` takes the derivative of this mean with respect to each noise ξ, backwards through all updates of
blocks. The result is exact for squared loss if noise does not change which records the cap cuts. Otherwise the result is a
linearisation at the returned model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.problem import INTERCEPT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.solvers.releases.products import Observed, Update


def noise_covariance(updates: Sequence[Update], skipped: int, H: Vector) -> Vector:
    """Return the covariances (m, p, p), due to noise, of the mean of all iterates after the first `skipped` updates.

    updates : in the order of the run. H : (m, p, p) curvatures of the sum, one per draw.
    """
    m, p, _ = H.shape
    weight = 1.0 / (len(updates) - skipped)
    A, V = np.zeros((m, p, p)), np.zeros((m, p, p))  # A: derivative of the mean by the error after this update
    diagonal = np.arange(p)
    pending: list[Vector] = []
    for number in range(len(updates) - 1, -1, -1):
        S, gain, kept, sigma = updates[number]
        if number >= skipped:
            A[:, diagonal, diagonal] += weight
        moved = A[:, :, S] * (kept * gain)
        pending.append(sigma * moved)
        A[:, :, S] *= kept
        A -= moved @ H[:, S, :]
        if len(pending) >= p or not number:
            G = np.concatenate(pending, axis=2)
            V += G @ G.transpose(0, 2, 1)
            pending = []
    return V


def iterate_covariance(updates: Sequence[Update], skipped: int, H: Vector) -> Vector:
    """Return the mean covariance (p, p), due to noise, of one iterate after the first `skipped` updates.

    updates : as in `noise_covariance`. H : (p, p) curvature of the sum.
    """
    P, total = np.zeros_like(H), np.zeros_like(H)
    for number, (S, gain, kept, sigma) in enumerate(updates):
        P[S] = kept * (P[S] - gain[:, None] * (H[S] @ P))
        P[:, S] = kept * (P[:, S] - (P @ H[:, S]) * gain)
        at = np.arange(S.start, S.stop)
        P[at, at] += (kept * gain * sigma) ** 2
        total += P * (number >= skipped)
    return np.asarray(total / (len(updates) - skipped))


def remaining(updates: Sequence[Update], skipped: int, H: Vector, rows: Vector) -> float:
    """Return the largest share of the start's error, in any direction, that is left in the mean of the later iterates.

    Arguments as for `iterate_covariance`. rows : (m, p) combinations that the records determine; no other direction counts.
    """
    E, total = np.eye(len(H)), np.zeros_like(H)
    for number, (S, gain, kept, _) in enumerate(updates):
        E[S] = kept * (E[S] - gain[:, None] * (H[S] @ E))
        total += E * (number >= skipped)
    basis = _basis(rows)
    return float(np.linalg.norm(basis @ total @ basis.T, 2) / (len(updates) - skipped))


def _basis(rows: Vector) -> Vector:
    """Return an orthonormal basis, (r, p), of the span of the rows (m, p)."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    _, values, basis = np.linalg.svd(rows / np.where(lengths > 0.0, lengths, 1.0), full_matrices=False)
    return np.asarray(basis[values > values[0] * 1e-9])


def noise_bias(S: Vector, H: Vector, power: float, at: int, unit: float) -> Vector:
    """Return the bias (p,) that noise causes in the mean of all iterates under a loss with a log link.

    Iterates φ + δ with δ ~ (0, S) have the mean gradient Σ z (ℓ′ + ½ ℓ‴ zᵀSz), up to higher orders. The run converges to the
    point where this mean vanishes, so φ is off by −½ H⁻¹ Σ ℓ‴ z zᵀSz. At the mean of the labels ℓ‴ = (3 − 2·power) ℓ″, so the
    intercept's component of the sum is (3 − 2·power)·unit·tr(SH). The other components are third moments of the columns,
    which no run releases. They are 0 for independent columns that are symmetric around their centres under the weights ℓ″.
    With Poisson loss at ε = 1 the intercept was off by −0.39 ± 0.07 standard errors in 200 runs; under a cap 1.5 times as
    wide, by −0.61 ± 0.12 in 60 runs. The formula gives −0.38 and −0.62.

    at, unit : index of the intercept among the coordinates, and the intercept's scale.
    """
    bent = np.zeros(len(H))
    bent[at] = (3.0 - 2.0 * power) * unit * np.trace(S @ H)
    return np.asarray(-0.5 * np.linalg.solve(H, bent))


FLOOR = 0.03
"""Smallest allowed eigenvalue of a drawn matrix, as a share of the mean diagonal entry."""


@dataclass(frozen=True, slots=True, eq=False)
class Noisy:
    """A released symmetric matrix, with noise of standard deviation σ on the diagonal and σ/√2 elsewhere.

    matrix : (p, p) sum over records. sigma : σ.
    rows : (m, p) combinations that the records determine; None for all. The matrix is 0 in the other directions, before noise.
    """

    matrix: Vector
    sigma: float
    rows: Vector | None = None

    @property
    def floor(self) -> float:
        """Smallest allowed eigenvalue; positive even if noise exceeds the matrix."""
        mean = float(np.diag(self.matrix).mean())
        return float(FLOOR * max(mean, self.sigma / np.sqrt(len(self.matrix)), np.finfo(float).tiny))

    @property
    def clearness(self) -> float:
        """Mean diagonal entry divided by σ√(2p), which is the norm of the noise matrix; inf without noise."""
        p = len(self.matrix)
        return float(np.trace(self.matrix) / p / (self.sigma * np.sqrt(2.0 * p))) if self.sigma else np.inf

    def condition(self, rows: Vector) -> tuple[float, bool]:
        """Return the condition number on the span of the rows (m, p), for columns of unit length.

        If the noise hides the least eigenvalue, which is then below the norm of the noise, return a lower bound and True.
        """
        unit = 1.0 / np.sqrt(np.maximum(np.diag(self.matrix), self.floor))
        basis, noise = _basis(rows / unit), 1.0 / self.clearness
        values = np.linalg.eigvalsh(basis @ (self.matrix * np.outer(unit, unit)) @ basis.T)
        return float(values[-1] / max(values[0], noise, np.finfo(float).eps)), bool(values[0] <= noise)

    def drawn(self, count: int, rng: np.random.Generator) -> Vector:
        """Return (count, p, p) positive definite draws from the posterior of the matrix before noise, taking entries as normal.

        Draws shrink off-diagonal entries towards 0, and diagonal entries towards their mean, by the share of the entries'
        spread that is due to noise. Noise in a matrix inflates the inverse, so standard errors from the released matrix would
        be wrong in an unknown direction. The mean of the covariances over the draws avoids this error.
        """
        p = len(self.matrix)
        rows, columns = np.tril_indices(p, -1)
        found = np.zeros((count, p, p))
        off = _posterior(self.matrix[rows, columns], 0.0, self.sigma**2 / 2.0, count, rng)
        found[:, rows, columns] = found[:, columns, rows] = off
        diagonal = np.diag(self.matrix)
        mean = float(diagonal.mean())
        found[:, np.arange(p), np.arange(p)] = _posterior(diagonal, mean, self.sigma**2, count, rng)
        basis = np.eye(p) if self.rows is None else _basis(self.rows)
        values, vectors = np.linalg.eigh(basis @ found @ basis.T)
        values, vectors = np.maximum(values, self.floor), basis.T @ vectors
        rest = self.floor / FLOOR * (np.eye(p) - basis.T @ basis)
        return np.asarray((vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1) + rest)


def _posterior(found: Vector, centre: float, variance: float, count: int, rng: np.random.Generator) -> Vector:
    """Return (count, k) posterior draws of k normal values around a centre, which were observed with noise of `variance`."""
    spread = float(((found - centre) ** 2).mean()) - variance if found.size > 1 else np.inf
    kept = 1.0 if not variance or spread == np.inf else max(0.0, spread) / (max(0.0, spread) + variance)
    shrunk = centre + kept * (found - centre)
    error = np.sqrt(kept * variance + (1.0 - kept) ** 2 * (variance / found.size if centre else 0.0))
    return np.asarray(shrunk + error * rng.standard_normal((count, found.size)))


DRAWS = 16
"""Number of draws of the matrices H and J, from a public seed. Covariances are averages over the draws."""


def covariances(problem: Problem, seen: Observed, skipped: int, H: Noisy, J: Noisy) -> tuple[Vector, Vector]:
    """Return two covariances, (p, p) in units of the scaled columns: the part due to privacy noise, and the total.

    Under a log link, noise gives the coefficients a bias b. Both covariances then contain b bᵀ, so that intervals cover the
    coefficients in spite of the bias.
    """
    rng, draws = np.random.default_rng(0), DRAWS if H.sigma or J.sigma else 1
    Hs, Js = H.drawn(draws, rng), J.drawn(draws, rng)
    noise = noise_covariance(seen.updates, skipped, Hs).mean(axis=0)
    if problem.loss.power is not None:
        mean, at = Hs.mean(axis=0), problem.layout.names.index(INTERCEPT)
        spread = iterate_covariance(seen.updates, skipped, mean)
        b = noise_bias(spread, mean, problem.loss.power, at, seen.scale[at])
        noise += np.outer(b, b)
    ridge = problem.n_records * problem.penalty.convexity * problem.penalised * seen.scale**2
    inverse = np.linalg.inv(Hs + np.diag(ridge))
    sampling: Vector = (inverse @ Js @ inverse).mean(axis=0)
    return noise, noise + sampling
