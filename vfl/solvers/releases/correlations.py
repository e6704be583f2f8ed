"""Release of the columns' correlations before the first pass, for steps in a joint model (vfl.solvers.iterates.joint_steps).

Guarantee. The release is μ-GDP under replace-one, with μ = Δ/σ and Δ = `ProductClip.sensitivity`.

Proof. The release is one matrix of products, in pieces, with the weighting `Products` of the curvature. That module has the
proof for any margins, caps and bounds. Margins are 0 here, where logistic and squared loss have their largest curvature L.
So the weights are t_i = min(L/R, 1/max(‖z_i‖², 1)), and the sum is (L/R) Σ z_i z_iᵀ if no row is longer than √(R/L). Rows z_i
are divided by √M_j, so a typical ‖z_i‖² is p/L.

The products determine the length of steps only; the passes determine where they lead. The diagonal follows from M_j, so the
model uses the other entries alone. Noise of deviation s on these has a spectral norm of about 2s√p. Eigenvalues below this norm
are raised to it, so that no step is long because of noise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vfl.privacy.calibration import noise_multiplier
from vfl.solvers.noisy_gram import OFF_DIAGONAL, lifted
from vfl.solvers.releases import products
from vfl.solvers.releases.once import OneTime, Phase

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfl.losses import Loss
    from vfl.messages import Query
    from vfl.privacy.events import Gaussian
    from vfl.problem import Problem
    from vfl.solvers.protocol import Released
    from vfl.solvers.releases.once import Run
    from vfl.types import Vector

SHARE = 0.05
"""Share of the μ² left by moments and labels for the products of the columns."""
LONGER = 1.5
"""Bound R of L‖z_i‖², in units of its typical value p. Longer rows count less."""


def event_of(problem: Problem, mu: float) -> Gaussian:
    """Return the event of the products, μ-GDP."""
    return products.geometry_of(problem).event(noise_multiplier(mu, 1))


def weighting_of(problem: Problem, loss: Loss, cap: float) -> products.Products:
    """Return the weighting t_i of the rows. cap : record cap C, which affects only the step of the difference quotient."""
    of_curvature, _ = products.weightings_of(problem, loss, cap)
    return replace(of_curvature, cap=math.inf, bound=LONGER * problem.layout.n_coordinates)


def radius(p: int, ratio: float, share: float = SHARE) -> float:
    """Return the spectral norm of the noise of p correlations, 2s√p with s = LONGER/(ρ√share). ratio : ρ = μn/p."""
    return 2.0 * math.sqrt(p) * LONGER / (ratio * math.sqrt(share))


def row(problem: Problem, share: float) -> OneTime:
    """Return the products as a one-time release between the record norms and the first pass."""
    p, parties = problem.layout.n_coordinates, len(problem.layout.whole())
    said = (
        f"{p * (p + 1) // 2} products of columns for {share:.2g} of μ²: steps follow a joint model of all columns. "
        "Margins hold each scaled column, and parties receive it as weights."
    )
    return OneTime(
        Phase.FIRST,
        share,
        lambda mu: (event_of(problem, mu),),
        release,
        said,
        messages=2 * p,
        out=p,
        back=-(-p // parties),
    )


def release(run: Run, events: tuple[Gaussian, ...]) -> Generator[Query, Released, None]:
    """Release the products, one column at a time. After the loss of a party there is no joint model."""
    cap, p = run.walk.cap(), run.problem.layout.n_coordinates
    if cap is None or not run.present.mask.all():
        return
    weighting, pieces = weighting_of(run.problem, run.loss, cap.cap), []
    for number in range(p):
        yielded: Released | None = None
        for query in (
            products.column(number, cap.rows),
            products.piece(run.problem, number, cap.rows, weighting, *events),
        ):
            yielded = yield from run.present.put(query, run.w)
            if yielded is None:
                return
        pieces.append(np.concatenate(yielded or ()))
    run.joint = model(pieces, weighting.bound, events[0].sigma, run.problem.n_records)


def model(pieces: list[Vector], bound: float, sigma: float, n_records: int) -> Vector:
    """Return C, (p, p): released correlations, with eigenvalues at least the norm of their noise.

    pieces : products of column j with itself and the later ones, over `bound`. sigma : their noise, for entries times √2.
    """
    p = len(pieces)
    C = np.eye(p)
    for j, u in enumerate(pieces):
        C[j + 1 :, j] = u[1:] * (bound / (OFF_DIAGONAL * n_records))
    C += np.tril(C, -1).T
    return lifted(C, 2.0 * math.sqrt(p) * bound * sigma / (OFF_DIAGONAL * n_records))
