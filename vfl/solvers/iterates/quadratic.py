"""Coordinate descent on quadratic models. No records are read: this is post-processing of released values, at no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.queries import Step

PASSES = 20_000
ENOUGH = 1e-14


def least_squares(problem: Problem, G: Vector, b: Vector) -> Vector:
    """Return argmin_w ½wᵀGw − bᵀw + ψ(w), (p,). The result is a deterministic function of the arguments.

    The iteration starts at the ridge solution with ψ's modulus of convexity. For L2, and without a penalty, this solution is
    the minimiser. Then the iteration passes over coordinates, or over the partition's blocks if ψ couples coordinates, with
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
    for number in range(PASSES):
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
        if number % 50 == 49:
            gradient = G @ w - b
    return w


class JointSteps:
    """Steps of all coordinates at once, each computed from the gradients of one pass.

    A pass of SkGD moves one column at a time, so it needs many passes if columns of different parties are nearly parallel.
    With a released matrix of the columns' products, the coordinator makes most of these moves by itself. After each released
    gradient g at w, the coordinator minimises the model

        ⟨g, v − w⟩ + ½‖v − w − β(w − w₋)‖²_C + ψ(v),        w₋ the model one pass ago,

    by a few passes of proximal coordinate descent over v, which read no data. Up to noise, C is an upper bound of the
    curvature.

    Guarantee. Without noise, and with C at least the curvature, exact minimisers never raise F(w) + ½β‖w − w₋‖²_C if β ≤ ½ (the
    heavy ball, Polyak 1964). Proof. Let the model move by Δ in this step, and by δ in the step before. At the minimiser,
    C(βδ − Δ) = g + s for a subgradient s of the penalty. So F changes by at most ⟨g + s, Δ⟩ + ½‖Δ‖²_C = β⟨δ, Δ⟩_C − ½‖Δ‖²_C,
    and with ⟨δ, Δ⟩_C ≤ ½(‖δ‖² + ‖Δ‖²)_C by at most ½β‖δ‖²_C − ½(1 − β)‖Δ‖²_C, where 1 − β ≥ β. ∎ Errors of C change the
    speed of a run. The point to which the run converges stays the same.

    smoothness : (p,) M of the centred columns. curvature : (p, p) C of the columns divided by √M_j, from released values.
    passes : passes over the model per step, in random orders. A fixed order is far slower if all columns are correlated.
    momentum : β. seed : public seed for the orders.
    """

    def __init__(
        self, problem: Problem, smoothness: Vector, curvature: Vector, *, passes: int, momentum: float, seed: int
    ) -> None:
        self._n, self._penalty, self._penalised = problem.n_records, problem.penalty, problem.penalised
        self._unit, self._C, self._passes, self._momentum = np.sqrt(smoothness), curvature, passes, momentum
        self._steps = 1.0 / (smoothness * np.diag(curvature))
        self._before: Vector | None = None
        self._rng = np.random.default_rng(seed)

    def moves(self, released: Sequence[tuple[Step, Vector]], w: Vector, present: Vector) -> Vector:
        """Return the move of every coordinate, (p,).

        released : steps of a pass with their sums at w of r_i x_ij·scale_j. There are no steps after the loss of a party.
        present : (p,) 1 for coordinates that may move, 0 for coordinates of lost parties.
        """
        if not released:
            return np.zeros(w.size)
        C, unit, steps = self._C, self._unit, self._steps
        slope = np.zeros(w.size)
        for step, u in released:
            S = step.block.coordinates
            slope[S] = u / (self._n * step.scale * unit[S])
        if self._before is not None:
            slope -= self._momentum * (C @ (unit * (w - self._before)))
        self._before = w.copy()
        v, columns = w.copy(), np.flatnonzero(present)
        thresholds = steps * self._penalised
        for _ in range(self._passes):
            for j in self._rng.permutation(columns):
                at = v[j] - slope[j] * unit[j] * steps[j]
                found = float(self._penalty.prox(np.array([at]), thresholds[j : j + 1])[0])
                slope += C[j] * (unit[j] * (found - v[j]))
                v[j] = found
        return v - w
