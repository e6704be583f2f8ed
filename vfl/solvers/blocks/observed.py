"""Updates and releases of a finished run, from which the covariance of its model is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vfl.messages import Descend, Gram
from vfl.solvers.blocks.prox import ProxStep
from vfl.solvers.releases.products import Products

if TYPE_CHECKING:
    from vfl.solvers.protocol import Released
    from vfl.types import Vector


class Update(NamedTuple):
    """One update of a block S: e_S ← d(e_S − a(H_S e + ξ)), ξ ~ N(0, σ² I), in units of the scaled columns.

    e is the error of the model, H the curvature of the loss, ξ the noise of the release.

    S : coordinates. gain : (s,) a = γ/(βn). kept : (s,) d = 1/(1 + step·λ) for an L2 penalty λ. sigma : σ.
    """

    S: slice
    gain: Vector
    kept: Vector
    sigma: float


@dataclass(eq=False, slots=True)
class Observed:
    """Updates and releases of a finished run, which determine the covariance of the run's model.

    scale, centre : (p,) scales and centres of the columns. noises : {of_curvature: (σ of a release, bound R of the release)}.
    products : {of_curvature: released pieces of the products of the columns}.
    """

    updates: list[Update] = field(default_factory=list)
    centre: Vector = field(default_factory=lambda: np.zeros(0))
    scale: Vector = field(default_factory=lambda: np.zeros(0))
    products: dict[bool, list[tuple[Gram, Released]]] = field(default_factory=lambda: {True: [], False: []})
    noises: dict[bool, tuple[float, float]] = field(default_factory=dict)

    def note(self, query: Any, released: Released) -> None:
        """Record a query of the run with the query's releases."""
        if isinstance(query, Descend):
            if query.push:
                raise ValueError("a step with momentum is not a function of its own release")
            for step in query.ordered():
                if type(step.rule) is not ProxStep or step.event is None:
                    raise ValueError("a step is not linear in its release")
                # A penalty λ/2 w² has prox w/(1 + sλ).
                kept = 1.0 / (1.0 + step.rule.steps * step.rule.penalty.convexity)
                gain = step.rule.gain / step.scale
                self.updates.append(Update(step.block.coordinates, gain, kept, step.event.sigma))
        elif isinstance(query, Gram) and isinstance(query.weighting, Products):
            kind = query.weighting.of_curvature
            if not self.products[kind]:  # the first piece covers all columns
                self.centre, self.scale = np.concatenate(query.centres), np.concatenate(query.scales)
            self.products[kind].append((query, released))
            self.noises[kind] = (0.0 if query.event is None else query.event.sigma, query.weighting.bound)

    def matrix(self, *, of_curvature: bool) -> tuple[Vector, float] | None:
        """Return a released matrix of products, (p, p), and its σ, as sums over records; None if a piece is missing.

        Diagonal entries have noise of standard deviation σ, other entries σ/√2.
        """
        pieces = self.products[of_curvature]
        if not pieces or pieces[0][0].fold is None or len(pieces) < pieces[0][0].fold.of:
            return None
        sigma, bound = self.noises[of_curvature]
        M = np.zeros((len(self.scale), len(self.scale)))
        for query, released in pieces:
            query.fill(M, released)
        return bound * M, bound * sigma
