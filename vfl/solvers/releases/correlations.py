"""Release of the columns' correlations before the first pass, for joint steps (vfl.solvers.iterates.quadratic).

Guarantee. The release is μ-GDP under replace-one, with μ = Δ/σ and Δ = `ProductClip.sensitivity`.

Proof. The release is one matrix of products with the weighting `Products` of the curvature (vfl.solvers.releases.products).
The module of that weighting has the proof for any margins, caps and bounds R. Margins are 0 here, where logistic and squared
loss have their largest curvature L. So the weights are t_i = min(L/R, 1/max(‖z_i‖², 1)), and the sum is (L/R) Σ z_i z_iᵀ if
no row is longer than √(R/L). Rows z_i are divided by √M_j, so a typical ‖z_i‖² is p/L.

On shares (vfl.secure.gram) no party knows ‖z_i‖. Each party q shrinks its own part of a row to norm c_q, with Σ_q c_q² ≤ R/L.
The shrunk row u_i then has norm at most √(R/L), for all columns, centres and scales. The sum is (L/R) Σ u_i u_iᵀ, so a record
again contributes a positive semidefinite matrix of Frobenius norm at most 1, and the proof above holds with Δ = √2. Entries
for columns of two parties get √1.5 times the charged noise, and the norm of the noise is at most √1.5 times as large.

The products determine only the length of steps. The diagonal of the matrix follows from M_j, so the model uses only the other
entries. Noise of standard deviation s on these entries has a spectral norm of about 2s√p. Eigenvalues below this norm are
raised to this norm, so that no step is long because of noise. On shares, this floor ignores the factor of at most √1.5, so
steps may be longer. The floor changes neither charges nor the point of convergence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.privacy.calibration import noise_multiplier
from vfl.queries import OFF_DIAGONAL
from vfl.solvers.noisy_gram import lifted
from vfl.solvers.releases import products
from vfl.solvers.releases.once import OneTime, Phase

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange
    from vfl.solvers.releases.once import Run

SHARE = 0.05
"""Share of the μ² that moments and labels leave. The share pays for the products of the columns."""
LONGER = 1.5
"""Bound R of L‖z_i‖², in units of the typical value p of L‖z_i‖². Longer rows count less."""


def event_of(problem: Problem, mu: float) -> Gaussian:
    """Return the event of the products, μ-GDP."""
    return products.geometry_of(problem).event(noise_multiplier(mu, 1))


def weighting_of(problem: Problem, loss: Loss, cap: float) -> products.Products:
    """Return the weighting t_i of the rows. cap : record cap C, which affects only the step of a difference quotient."""
    return products.Products(
        loss, math.inf, LONGER * problem.layout.n_coordinates, products.half_of(problem, loss, cap), True
    )


def radius(p: int, ratio: float) -> float:
    """Return the spectral norm of the noise of p correlations, 2s√p with s = LONGER/(ρ√SHARE). ratio : ρ = μn/p."""
    return 2.0 * math.sqrt(p) * LONGER / (ratio * math.sqrt(SHARE))


def row(problem: Problem, share: float) -> OneTime:
    """Return the release of the products, made once, between the record norms and the first pass."""
    p = problem.layout.n_coordinates
    said = (
        f"{p * (p + 1) // 2} products of columns for {100 * share:.2g} % of the privacy budget: steps follow a joint "
        f"model of all columns. {products.SHOWN}"
    )
    counted = products.messages_of(problem, 1)
    return OneTime(Phase.FIRST, share, lambda mu: (event_of(problem, mu),), release, said, **counted)


def release(run: Run, events: tuple[Gaussian, ...]) -> Exchange[None]:
    """Release the products. After the loss of a party, the run has no joint model."""
    cap = run.walk.cap()
    if cap is None or not run.present.mask.all():
        return
    weighting = weighting_of(run.problem, run.loss, cap.cap)
    found = yield from products.matrix(run, cap.rows, weighting, *events)
    if found is not None:
        run.joint = model(found, weighting.bound, events[0].sigma, run.problem.n_records)


def model(found: Vector, bound: float, sigma: float, n_records: int) -> Vector:
    """Return C, (p, p): the released correlations, with eigenvalues raised at least to the norm of the noise.

    found : (p, p) products of the columns, divided by `bound`. sigma : standard deviation of the noise; off-diagonal entries
        were released times √2.
    """
    p = len(found)
    C = found * (bound / n_records)
    np.fill_diagonal(C, 1.0)
    return lifted(C, 2.0 * math.sqrt(p) * bound * sigma / (OFF_DIAGONAL * n_records))
