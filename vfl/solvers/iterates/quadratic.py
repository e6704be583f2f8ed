"""Penalised least squares from the Gram matrix, by block coordinate descent. No records are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vfl.problem import Problem
    from vfl.types import Vector

SWEEPS = 20_000
ENOUGH = 1e-14


def least_squares(problem: Problem, G: Vector, b: Vector) -> Vector:
    """Return argmin_w ½wᵀGw − bᵀw + ψ(w), (p,). The result is a deterministic function of the arguments.

    The iteration starts at the ridge solution with ψ's modulus of convexity. For L2, and without a penalty, this solution is
    the minimiser. Then the iteration sweeps over coordinates, or over the partition's blocks if ψ couples coordinates, with
    steps 1/λ_max(G_SS).

    G : (p, p), symmetric and positive semidefinite.
    """
    ridge = np.diag(problem.penalty.convexity * problem.penalised)
    w: Vector = np.asarray(np.linalg.lstsq(G + ridge, b, rcond=None)[0], dtype=np.float64)
    if problem.penalty.grouped:
        parts = [block.coordinates for block in problem.layout.blocks(None)]
    else:
        parts = [slice(j, j + 1) for j in range(b.size)]
    steps = [1.0 / max(float(np.linalg.eigvalsh(G[S, S])[-1]), 1e-300) for S in parts]
    penalised, penalty = problem.penalised, problem.penalty
    gradient = G @ w - b
    for sweep in range(SWEEPS):
        moved = 0.0
        for S, step in zip(parts, steps, strict=True):
            own = w[S]
            new = penalty.prox(own - step * gradient[S], step * penalised[S])
            change = new - own
            if change.any():
                w[S] = new
                gradient += G[:, S] @ change
                moved = max(moved, float(abs(change).max()))
        if moved <= ENOUGH * (1.0 + float(abs(w).max())):
            break
        if sweep % 50 == 49:
            gradient = G @ w - b
    return w
