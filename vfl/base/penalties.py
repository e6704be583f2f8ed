"""Separable penalties ψ(w) = Σ_j ψ_j(w_j), applied by proximal operators alone. Clips and smoothness M leave ψ out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from vfl.base.arguments import check_options, explained, number, option, require_number
from vfl.errors import SpecificationError

if TYPE_CHECKING:
    from vfl.base.types import Vector


class Penalty(Protocol):
    """Penalty ψ with its proximal operator. All vectors are (s,) float64, the coordinates of one block."""

    name: ClassVar[str]
    grouped: ClassVar[bool]
    """True if ψ couples the coordinates of a block. Then the blocks are part of the objective."""

    @property
    def convexity(self) -> float:
        """Modulus of strong convexity of ψ; 0 if ψ is not strongly convex."""
        ...

    def value(self, w: Vector) -> float:
        """Return ψ(w)."""
        ...

    def prox(self, v: Vector, steps: Vector) -> Vector:
        """Return argmin_u ψ_j(u_j) + (u_j − v_j)²/(2 steps_j) for every coordinate; v_j if steps_j = 0."""
        ...

    def describe(self) -> str:
        """Return ψ as text, a term of the objective F."""
        ...


@dataclass(frozen=True, slots=True)
class _Strong:
    """Base class of penalties with a strength λ, which applies to coefficients of the scaled features."""

    strength: float
    grouped: ClassVar[bool] = False

    def __post_init__(self) -> None:
        name = type(self).__name__
        strength = require_number(f"{name}: the strength", self.strength)
        if not 0 <= strength < math.inf:
            raise SpecificationError(f"{name} needs a finite strength of at least 0, not {self.strength!r}")
        object.__setattr__(self, "strength", strength)
        check_options(self, f"{name}: ")

    @property
    def convexity(self) -> float:
        """Return 0, since ψ is not strongly convex."""
        return 0.0


@dataclass(frozen=True, slots=True)
class NoPenalty:
    """No penalty: ψ = 0."""

    name: ClassVar[str] = "none"
    grouped: ClassVar[bool] = False
    convexity: ClassVar[float] = 0.0

    def value(self, w: Vector) -> float:
        """Return 0."""
        return 0.0 * w.size

    def prox(self, v: Vector, steps: Vector) -> Vector:
        """Return v."""
        return v

    def describe(self) -> str:
        """Return ψ as text, a term of the objective F."""
        return "0"


@dataclass(frozen=True, slots=True)
class L1(_Strong):
    """Lasso penalty ψ(w) = λ‖w‖₁, as in scikit-learn's Lasso(alpha=λ), on coefficients of the scaled features."""

    name: ClassVar[str] = "l1"

    def value(self, w: Vector) -> float:
        """Return λ‖w‖₁."""
        return self.strength * float(abs(w).sum())

    def prox(self, v: Vector, steps: Vector) -> Vector:
        """Soft-threshold v at steps·λ."""
        return np.sign(v) * np.maximum(abs(v) - steps * self.strength, 0.0)

    def describe(self) -> str:
        """Return ψ as text, a term of the objective F."""
        return f"{self.strength:g}·‖w‖₁"


@dataclass(frozen=True, slots=True)
class L2(_Strong):
    """Ridge penalty ψ(w) = (λ/2)‖w‖² (scikit-learn: LogisticRegression(C=1/(nλ)), Ridge(alpha=nλ)), on scaled features."""

    name: ClassVar[str] = "l2"

    @property
    def convexity(self) -> float:
        """Return λ."""
        return self.strength

    def value(self, w: Vector) -> float:
        """Return (λ/2)‖w‖²."""
        return 0.5 * self.strength * float(w @ w)

    def prox(self, v: Vector, steps: Vector) -> Vector:
        """Shrink v by 1/(1 + steps·λ)."""
        return v / (1.0 + steps * self.strength)

    def describe(self) -> str:
        """Return ψ as text, a term of the objective F."""
        return f"({self.strength:g}/2)·‖w‖²"


@dataclass(frozen=True, slots=True)
class ElasticNet(_Strong):
    """Penalty ψ(w) = λ(ρ‖w‖₁ + (1 − ρ)/2·‖w‖²), as in scikit-learn's ElasticNet(alpha=λ, l1_ratio=ρ), on scaled features."""

    l1_ratio: float = option(number(lambda ratio: 0 <= ratio <= 1, "must lie between 0 and 1"), 0.5)
    name: ClassVar[str] = "elastic_net"

    @property
    def convexity(self) -> float:
        """Return λ(1 − ρ)."""
        return self.strength * (1 - self.l1_ratio)

    def value(self, w: Vector) -> float:
        """Return λ(ρ‖w‖₁ + (1 − ρ)/2·‖w‖²)."""
        return self.strength * (self.l1_ratio * float(abs(w).sum()) + 0.5 * (1 - self.l1_ratio) * float(w @ w))

    def prox(self, v: Vector, steps: Vector) -> Vector:
        """Soft-threshold at steps·λρ, then shrink by 1/(1 + steps·λ(1 − ρ))."""
        soft = np.sign(v) * np.maximum(abs(v) - steps * self.strength * self.l1_ratio, 0.0)
        return soft / (1.0 + steps * self.convexity)

    def describe(self) -> str:
        """Return ψ as text, a term of the objective F."""
        return f"{self.strength:g}·({self.l1_ratio:g}·‖w‖₁ + {(1 - self.l1_ratio) / 2:g}·‖w‖²)"


@dataclass(frozen=True, slots=True)
class Box:
    """Bounds on coefficients of scaled features: ψ(w) = 0 if low ≤ w_j ≤ high, else ∞. Non-negativity: low = 0, high = inf."""

    low: float = option(require_number, -math.inf)
    high: float = option(require_number, math.inf)
    name: ClassVar[str] = "box"
    grouped: ClassVar[bool] = False
    convexity: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_options(self, "Box: ")
        if not self.low <= 0 <= self.high or self.low == self.high:
            raise SpecificationError(
                f"Box needs low ≤ 0 ≤ high, not both 0, so that training can start at 0; not {self!r}"
            )

    def value(self, w: Vector) -> float:
        """Return 0 inside the box and inf outside. A relative tolerance of 1e-12 allows for the rounding of w + (bound − w)."""
        low, high = self.low - 1e-12 * abs(self.low), self.high + 1e-12 * abs(self.high)
        return 0.0 if bool(((w >= low) & (w <= high)).all()) else math.inf

    def prox(self, v: Vector, steps: Vector) -> Vector:
        """Project onto the box where steps > 0."""
        return np.where(steps > 0, np.clip(v, self.low, self.high), v)

    def describe(self) -> str:
        """Return ψ as text, a term of the objective F."""
        return f"[{self.low:g} ≤ w_j ≤ {self.high:g}]"


@dataclass(frozen=True, slots=True)
class GroupLasso(_Strong):
    """Group lasso ψ(w) = λ Σ_S √|S| ‖w_S‖₂ over the blocks in the partition (Yuan & Lin 2006), on scaled features.

    Coordinates with different steps s_j share one norm. Thresholding each coordinate by its own step would therefore miss the
    minimiser, and the prox solves one equation in ‖u‖ instead.
    """

    name: ClassVar[str] = "group_lasso"
    grouped: ClassVar[bool] = True

    def value(self, w: Vector) -> float:
        """Return λ√|S|·‖w_S‖₂ of one block."""
        return self.strength * math.sqrt(w.size) * math.sqrt(float(w @ w))

    def prox(self, v: Vector, steps: Vector) -> Vector:
        """Return argmin_u λ√m‖u‖ + Σ (u_j − v_j)²/(2 s_j) over the m coordinates with s_j > 0, v elsewhere.

        u_j = v_j ρ/(ρ + t_j) with t_j = s_j λ√m and ρ = ‖u‖. So ρ solves Σ (v_j/(ρ + t_j))² = 1, whose left side falls in ρ.
        If the left side is at most 1 at ρ = 0, there is no root, and u = 0. As ‖v‖/(ρ + max t) ≤ 1 ≤ ‖v‖/(ρ + min t), the
        root lies between ‖v‖ − max t and ‖v‖ − min t.
        """
        from scipy.optimize import brentq

        moving = steps > 0
        a, t = v[moving], np.maximum(steps[moving] * self.strength * math.sqrt(int(moving.sum())), 1e-300)
        u = v.copy()
        if self.strength == 0.0 or not moving.any():
            return u
        with np.errstate(over="ignore"):  # a sum that overflows to infinity is above 1, as it should be
            if float(((a / t) ** 2).sum()) <= 1.0:
                u[moving] = 0.0
                return u
        norm = math.hypot(*a)
        low, high = max(norm - float(t.max()), norm * 2.0**-60), norm - float(t.min())

        def excess(ρ: float) -> float:
            return float(((a / (ρ + t)) ** 2).sum()) - 1.0

        # Rounding may hide the change of sign if the ends nearly meet. |∂u_j/∂ρ| ≤ 1, so one ulp of ‖v‖ in ρ is harmless.
        if excess(low) <= 0.0:
            ρ = low
        elif excess(high) >= 0.0:
            ρ = high
        else:
            ρ = brentq(excess, low, high, xtol=norm * 2.0**-53, rtol=1e-15)
        u[moving] = a * (ρ / (ρ + t))
        return np.asarray(u)

    def describe(self) -> str:
        """Return ψ as text, a term of the objective F."""
        return f"{self.strength:g}·Σ_S √|S|·‖w_S‖"


@dataclass(frozen=True, slots=True, eq=False)
class ColumnTerms:
    """Terms of single columns in addition to ψ: a penalty ½ wᵀΩw, block-diagonal over columns, and bounds low ≤ w ≤ high.

    Both terms are public functions of w alone: Ωw is added to a released gradient without noise, and costs no privacy. Under
    coordinate steps of length 1/(M_j + Ω_jj), every iterate stays within the bounds, and so does every average of iterates.

    low, high : (p,), low ≤ 0 ≤ high. penalties : ((coordinates, their Ω (m, m)), ...), no coordinate twice.
    """

    low: Vector
    high: Vector
    penalties: tuple[tuple[tuple[int, ...], Vector], ...]

    def value(self, w: Vector) -> float:
        """Return ½ wᵀΩw; inf outside the bounds. A relative tolerance of 1e-12 allows for rounding."""
        if bool(((w < self.low - 1e-12 * abs(w)) | (w > self.high + 1e-12 * abs(w))).any()):
            return math.inf
        return sum(0.5 * float(w[list(own)] @ Ω @ w[list(own)]) for own, Ω in self.penalties)

    def curvature(self, p: int) -> Vector:
        """Return the diagonal Ω_jj, (p,)."""
        found = np.zeros(p)
        for own, Ω in self.penalties:
            found[list(own)] = np.diag(Ω)
        return found

    def rows(self, S: slice) -> tuple[tuple[int, ...], Vector]:
        """Return the coordinates that Ω couples with those in S, and the rows Ω_S of these coordinates, (s, m)."""
        parts = [(own, Ω) for own, Ω in self.penalties if any(S.start <= j < S.stop for j in own)]
        near = tuple(j for own, _ in parts for j in own)
        found, first = np.zeros((S.stop - S.start, len(near))), 0
        for own, Ω in parts:
            for k, j in enumerate(own):
                if S.start <= j < S.stop:
                    found[j - S.start, first : first + len(own)] = Ω[k]
            first += len(own)
        return near, found


PENALTIES: dict[str, type[Penalty]] = {
    penalty.name: explained(penalty) for penalty in (NoPenalty, L1, L2, ElasticNet, Box, GroupLasso)
}


def declares_sparse(penalty: Penalty) -> bool:
    """Return True if the penalty has an L1 part. Such a penalty declares that few coordinates matter."""
    return isinstance(penalty, L1) or (isinstance(penalty, ElasticNet) and penalty.l1_ratio > 0.0)
