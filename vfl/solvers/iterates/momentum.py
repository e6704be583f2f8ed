"""Momentum over passes (heavy ball): post-processing of released values, which costs no budget.

Guarantee. Without noise, steps of γ/M_j with M_j at least the curvature along coordinate j never raise the energy

    F(w) + β/(2γ)·‖w − w₋‖²_M,        w₋ the model one pass ago,

if β ≤ 1 − γ/2. Proof. Let coordinate j move by Δ in this pass, and by δ in the pass before. A prox step at w_j + βδ has
(M_j/γ)(βδ − Δ) = g_j + s for the slope g_j of the smooth part and a subgradient s of the penalty at the new point. So F
changes by at most (g_j + s)Δ + ½M_jΔ² = (M_j/γ)(βδΔ − Δ²) + ½M_jΔ², and with βδΔ ≤ ½β(δ² + Δ²) by at most
(M_j/2γ)·(βδ² − (2 − β − γ)Δ²). As 2 − β − γ ≥ β, the sum over a pass is at most (β/2γ)(‖δ‖²_M − ‖Δ‖²_M). ∎
For γ = 1 and β > ½ there are quadratic problems on which runs diverge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.types import Vector


class Momentum:
    """Heavy-ball term of each pass: β times the move of the model in the previous pass (Polyak 1964).

    strength : β; 0 for no momentum.
    """

    def __init__(self, strength: float) -> None:
        self._strength = strength
        self._pass = -1
        self._begin: Vector | None = None
        self._push: Vector | None = None

    def push(self, number: int, θ: Vector) -> Vector | None:
        """Return the heavy-ball term of pass `number`, (p,). All visits of the pass use this term. None without momentum.

        θ : (p,) the model. Before the first visit of a pass, θ must be the result of the previous pass.
        """
        if self._strength and number != self._pass:
            before, self._begin, self._pass = self._begin, θ.copy(), number
            self._push = None if before is None else self._strength * (θ - before)
        return self._push
