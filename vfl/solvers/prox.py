"""The prox step of a block, which applies a released gradient to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfl.penalties import Penalty
    from vfl.types import Vector


@dataclass(frozen=True, slots=True, eq=False)
class ProxStep:
    """Δ = prox_{s ψ}(w_S − s √M u/n) − w_S, a function of released values.

    gain : (s,) s_j/(n·scale_j), the factor of u.
    steps : (s,) s_j, 0 for an unpenalised coordinate, where the prox is the identity.
    """

    gain: Vector
    steps: Vector
    penalty: Penalty

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return Δ, (s,)."""
        return self.penalty.prox(w - self.gain * u, self.steps) - w
