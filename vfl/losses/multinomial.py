"""Multinomial loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.losses.base import SHARES, Loss

if TYPE_CHECKING:
    from vfl.types import Vector


@dataclass(frozen=True, slots=True)
class Multinomial(Loss):
    """log Σ_k exp(v_k) − v_y for y = 0, ..., K − 1 and K margins per record: softmax regression.

    The derivative is the vector softmax(v) − e_y. Its norm is at most √2, and its entries sum to 0. The matrix of second
    derivatives, diag(p) − ppᵀ, has no eigenvalue above ½ (Böhning 1992). A step of 1/(½·mean(x_j²)) is therefore safe for the K
    coefficients of a column together.

    Margins and derivatives of n records are vectors (K·n,), one class after another.
    """

    name: ClassVar[str] = "multinomial"
    classification: ClassVar[bool] = True
    words: ClassVar[str] = "multinomial logistic regression"
    kernel: ClassVar[str] = "multinomial"
    start: ClassVar[str] = SHARES
    multinomial: ClassVar[bool] = True
    curvature: ClassVar[float] = 0.5
    slope: ClassVar[float] = math.nextafter(math.sqrt(2.0), math.inf)

    def value(self, v: Vector, y: Vector) -> Vector:
        """Return log Σ_k exp(v_k) − v_y, (n,), without overflow."""
        from scipy.special import logsumexp

        V = v.reshape(-1, y.size) if y.size else v.reshape(0, 0)
        own = np.zeros(y.size)
        for k, margins in enumerate(V):
            own[y == k] = margins[y == k]
        return np.asarray(logsumexp(V, axis=0) - own) if y.size else own

    def derivative(self, v: Vector, y: Vector) -> Vector:
        """Return softmax(v) − e_y, (K·n,), without overflow."""
        r = self.probabilities(v, y.size)
        for k in range(len(r)):
            r[k] -= y == k
        return np.ravel(r)

    def probabilities(self, v: Vector, n_records: int) -> Vector:
        """Return softmax(v), (K, n)."""
        V = v.reshape(-1, n_records) if n_records else v.reshape(0, 0)
        e: Vector = np.exp(V - V.max(axis=0, initial=-np.inf))
        p: Vector = e / e.sum(axis=0)
        return p
