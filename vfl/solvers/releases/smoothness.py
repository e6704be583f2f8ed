"""Means of the columns and smoothness constants M_j. The M_j are declared, implied by bounds, released, or exact.

If an intercept can absorb the shift, columns are centred at their released means c_j. Centring does not change F, makes the
columns nearly orthogonal to the intercept, and replaces M_j = L·E(x_j²) by L·Var(x_j). For prices in one corner of their
declared range, the error at the same ε falls by a factor of 100. M_j are released for a share of μ².
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.privacy.calibration import noise_multiplier, split
from vfl.queries import Moments
from vfl.queries.moments import joint_moments
from vfl.queries.protocol import bearable
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.releases.once import OneTime, Phase

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange, Released
    from vfl.solvers.releases.once import Run

OVERFLOW = "the squares of a column's values overflow: declare bounds with scaling='bounds', or the column's unit"


def features(problem: Problem) -> Vector:
    """Return (p,) booleans: True for features; False for the intercept, whose moments are public."""
    return np.asarray(problem.intercept == 0.0)


def require_curvature(solver: str, problem: Problem) -> None:
    """Raise SpecificationError for a loss with a kink, for which no M_j exists."""
    if not math.isfinite(problem.loss.curvature):
        raise SpecificationError(
            f"{solver} with loss={problem.loss.name!r} needs a bounded second derivative for its steps; it has none: "
            "use 'smoothed_hinge', or a solver whose steps need no curvature (SCD, SGD)"
        )


def require_representable(problem: Problem) -> None:
    """Raise SpecificationError for declared bounds whose squares (and so M_j) are not normal doubles."""
    for name, B in zip(problem.layout.names, problem.reach, strict=True):
        if math.isfinite(B) and not 1e-140 <= B <= 1e140:
            raise SpecificationError(
                f"the bounds of column {name!r} are too far from 1 to work with its squares: change the column's unit, "
                "or use scaling='bounds'"
            )


def releases_moments(problem: Problem) -> bool:
    """Return True if the run spends a share of the budget on the moments of the columns."""
    private = problem.mu is not None and isinstance(problem.smoothness, str) and problem.smoothness == "private"
    return private and bool(features(problem).any())


def asks_moments(problem: Problem) -> bool:
    """Return True if the run asks for moments of columns, private or exact."""
    return isinstance(problem.smoothness, str) and problem.smoothness != "bounds" and bool(features(problem).any())


def moments_event(problem: Problem, mu: float | None = None) -> Gaussian | None:
    """Return the event of the moments, μ-GDP; None if no moments are released. mu=None takes `smoothness_share` of μ²."""
    if problem.mu is None or not releases_moments(problem):
        return None
    columns = int(features(problem).sum()) // problem.layout.width
    means = int(problem.centred_coordinates.sum()) // problem.layout.width
    z = noise_multiplier(mu or split(problem.mu, problem.smoothness_share)[0], 1)
    return bearable(joint_moments(means, columns - means), z, columns + means)


def row(problem: Problem) -> OneTime:
    """Return the release of the columns' moments, made once, at the start."""

    def make(run: Run, events: tuple[Gaussian, ...]) -> Exchange[None]:
        run.known = yield from curvature(problem, events[0] if events else None)

    def events(mu: float) -> tuple[Gaussian, ...]:
        event = moments_event(problem, mu)
        return () if event is None else (event,)

    share = problem.smoothness_share if releases_moments(problem) else 0.0
    return OneTime(Phase.START, share, events, make, messages=int(asks_moments(problem)))


def curvature(problem: Problem, event: Gaussian | None) -> Exchange[Curvature]:
    """Determine centres and M. Private moments are released under their event; exact moments are flagged in the certificate.

    The private means and variances, as shares of B_j and B_j², are shrunk towards their common means according to their
    noise (`pooled`). Let c = m_j + e be a centre, an estimate of the mean m_j with error e. The mean square about c exceeds
    the estimate `square − c²` by 2ce. On average this excess is 2e² for a released mean, whose error does not depend on m_j,
    and 0 for the posterior mean of m_j. Underestimated variances make steps too long, and greedy selection prefers such
    columns.

    Negative variances are then set to 0, and one standard deviation of the noise is added to all variances. Otherwise a
    coordinate that looks flat by chance would get a step far beyond 1/M_j (Mangold et al. 2022, appendix F, as one Gaussian
    vector). Steps, centres and importance sampling are post-processing, which costs no budget.
    """
    K = problem.layout.width
    feature, reach, centred = features(problem)[::K], problem.reach[::K], problem.centred_coordinates[::K]
    L, none = problem.loss.curvature, np.zeros(problem.layout.n_coordinates)
    if not isinstance(problem.smoothness, str):
        return Curvature(none, np.asarray(problem.smoothness, dtype=np.float64))
    if problem.smoothness == "bounds":
        return Curvature(none, L * problem.reach**2)
    if not feature.any():
        return Curvature(none, np.full(none.size, L))
    if problem.smoothness == "private" and not np.isfinite(problem.reach).all():
        raise PrivacyError("smoothness='private' needs bounds for every column: declare them, or give a mapping")
    mean, square, noise = yield from _moments(problem, feature, event)
    centre = np.where(centred, mean, 0.0)
    if noise and centred.any():
        B = reach[centred]
        drawn, _ = pooled(centre[centred] / B, np.full(B.size, 2.0 * noise))  # means are released in units of 2B_j
        centre[centred] = np.clip(drawn, -1.0, 1.0) * B
    variance = square - centre**2
    if noise:
        square_reach = reach**2
        share, deviation = variance / square_reach, noise * np.sqrt(1.0 + 16.0 * (centre / reach) ** 2)
        share[feature], deviation[feature] = pooled(share[feature], deviation[feature])
        variance = np.minimum(np.maximum(share, 0.0) + deviation, 1.0) * square_reach
    M = np.where(feature, L * variance, L)
    # The gradient of a centred constant column is 0, so any step size works. Its exact variance cancels to rounding errors of
    # sums of n squares. M is at least the largest variance that these errors may hide, so that no step is too long.
    hidden = max(1e-14, problem.n_records * 2.0**-53) * L * square
    M = np.where(hidden >= M, np.maximum(hidden, L), M)
    return Curvature(problem.layout.of_columns(centre), problem.layout.of_columns(M), noise=noise)


def spreads(problem: Problem, released: Released) -> tuple[Vector, Vector]:
    """Return the variance of each coordinate's column, (p,), and the standard deviation of its noise, (p,).

    Post-processing of released moments. Unlike the M_j of `curvature`, a variance here is neither shrunk nor raised. So its
    noise is N(0, s_j²) with s_j = s·B_j²·√(1 + 16 (c_j/B_j)²), to first order in the noise of the mean c_j. Here s is the
    noise of a mean square in units of B_j². The variance is taken about 0 instead of the mean if columns are not centred.
    """
    mean, square, noise = _read(problem, released)
    centre = np.where(problem.centred_coordinates[:: problem.layout.width], mean, 0.0)
    B = problem.reach[:: problem.layout.width]
    found = square - centre**2, noise * B**2 * np.sqrt(1.0 + 16.0 * (centre / B) ** 2)
    return problem.layout.of_columns(found[0]), problem.layout.of_columns(found[1])


def places(problem: Problem, released: Released) -> tuple[Vector, float]:
    """Return each coordinate's released mean in units of B_j, (p,), and its noise; 0 for columns that are not centred.

    Post-processing of released moments. −1 and 1 are the ends of the declared bounds.
    """
    mean, _, noise = _read(problem, released)
    B = problem.reach[:: problem.layout.width]
    return problem.layout.of_columns(
        np.where(problem.centred_coordinates[:: problem.layout.width], mean / B, 0.0)
    ), 2.0 * noise


def _read(problem: Problem, released: Released) -> tuple[Vector, Vector, float]:
    """Return the results of `_moments`, computed from moments that were already released."""
    asking = _moments(problem, features(problem)[:: problem.layout.width], moments_event(problem))
    next(asking)
    try:
        asking.send(released)
    except StopIteration as end:
        mean, square, noise = end.value
    return mean, square, noise


def pooled(found: Vector, deviation: Vector) -> tuple[Vector, Vector]:
    """Shrink noisy values towards their common mean, according to their noise. Return the shrunk values and their errors.

    Post-processing of released values. The variance of the true values, τ², is estimated by moments (DerSimonian & Laird
    1986, eq. 8). Each value keeps the share τ²/(τ² + σ_j²) of its distance from the mean: the posterior mean of normal
    values. Values that differ by more than their noise hardly move. If noise dominates each of many values, their mean is
    still accurate.

    found : (m,) with noise of standard deviation `deviation`, (m,) > 0.
    """
    if found.size < 2:
        return found, deviation
    weight = deviation**-2.0
    total = float(weight.sum())
    mean = float(weight @ found) / total
    freedom = total - float(weight @ weight) / total
    spread = max(0.0, (float(weight @ (found - mean) ** 2) - (found.size - 1)) / freedom)
    kept = spread / (spread + deviation**2)
    return mean + kept * (found - mean), np.sqrt(kept * deviation**2 + (1.0 - kept) ** 2 / total)


def _moments(problem: Problem, feature: Vector, event: Gaussian | None) -> Exchange[tuple[Vector, Vector, float]]:
    """Return mean and mean square of every column, (p,) each, and the noise of a mean square in units of B_j²."""
    if event is None and releases_moments(problem):
        raise PrivacyError("a private run releases no moments without noise")
    K = problem.layout.width
    whole = problem.layout.whole()
    own = {q: int((problem.intercept[block.coordinates] == 0.0).sum()) // K for q, block in whole.items()}
    widths = {q: width for q, width in own.items() if width}
    reach = {
        q: np.ascontiguousarray(problem.reach[block.coordinates][::K][: own[q]]) for q, block in whole.items() if own[q]
    }
    centred = problem.centred_coordinates[::K]
    query = Moments(widths, reach if event else None, problem.centred, event, uncentred=problem.sparse)
    released = yield query
    mean, square = np.zeros(feature.size), np.ones(feature.size)
    square[feature] = np.concatenate([u[-m:] for u, m in zip(released, widths.values(), strict=True)])
    if centred.any():
        mean[centred] = np.concatenate(
            [u[:m] for u, (q, m) in zip(released, widths.items(), strict=True) if query.asks_means(q)]
        )
    mean[feature] /= problem.n_records
    square[feature] /= problem.n_records
    if event is None:
        if not (np.isfinite(square).all() and (abs(mean) < 1e140).all()):
            raise DataError(OVERFLOW)
        return mean, square, 0.0
    B = problem.reach[::K]
    return np.clip(2.0 * mean, -1.0, 1.0) * B, square * B**2, event.sigma / problem.n_records
