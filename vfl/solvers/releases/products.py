"""Release of the curvature and the residuals' variance at the final model. Standard errors follow from both.

Guarantee. Each of the two releases is μ-GDP under replace-one, with μ = Δ/σ and Δ = `ProductClip.sensitivity`.

Proof. With z_i the record's scaled row over all parties, a release is the lower triangle of Σ_i t_i z_i z_iᵀ with off-diagonal
entries times √2. `Products` ensures t_i ≥ 0 and t_i‖z_i‖² ≤ 1 for any margins, labels, caps and steps, so the contribution
a_i of a record has norm t_i‖z_i z_iᵀ‖_F ≤ 1, and the contributions of two records have an inner product tt'(zᵀz')² ≥ 0.
Replacing a record moves the sum by ‖a − a'‖ ≤ √(1 + 1) = √2. Weights s_i ∈ [0, 1] of records multiply t_i, by s_i for the
curvature and s_i² for the residuals' variance, so both facts still hold. Sums are divided by their bound R before the
release. The events of the releases therefore depend on no released value, and a cap that was widened during the run changes
no charge.

The curvature is released for rows whose rare columns are scaled down further (`damping`), with ‖z_i‖ of these rows. The proof
holds for any scales, so scales that follow from released moments cost nothing.

Who sees what: the coordinator holds the scaled columns z_ij of every party but the last. The parties after the owner of a
column receive t_i z_ij as weights. Participants therefore see other parties' columns *before* noise, as with NoisyGram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vfl.errors import PrivacyError
from vfl.kernels.geometry import capped, record_limits
from vfl.privacy.calibration import noise_multiplier, split
from vfl.queries import OFF_DIAGONAL, Descend, Gram, Moments, RecordNorms, Weighting
from vfl.queries.rules import ProxStep
from vfl.solvers.joint import unscaled
from vfl.solvers.noisy_gram import GramClip, along_columns, asked, order, pieces, within_triangle
from vfl.solvers.releases.once import OneTime, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.privacy.events import Gaussian
    from vfl.queries.protocol import Exchange, Released
    from vfl.solvers.noisy_gram import Rows
    from vfl.solvers.releases.curvature import Curvature
    from vfl.solvers.releases.once import Run

OF_CURVATURE = 0.6
"""Share of the release's μ² for the curvature. The residuals' variance gets the rest."""
LONGER, LONGER_OF_COUNTS = 1.69, 4.0
"""Least bounds of h_i‖z_i‖², with h_i a record's curvature, in units of the typical value: in general, and for a log link.

97 % of the curvature of correlated normal columns lies below the first bound. With a log link h_i depends on the mean, on the
exposure and, for amounts, on the label. Between 84 and 99.7 % of the curvature of such columns lies below the second bound,
for margins of standard deviation 0.3 to 0.7. Underestimated curvature makes intervals wider.
"""
AMPLE = 15.0
"""Clearness P of the curvature above which the bounds grow by √(P/AMPLE), so that longer records count in full, too."""
TYPICAL = 0.8
"""Assumed curvature of logistic loss in units of ¼, for shares of positive labels between a quarter and three quarters."""
FAINTEST = 0.1
"""Largest relative noise, at a typical curvature, of the diagonal entry of a column that `damping` scales down."""
LENGTHS = "lengths"
"""Name under which `LinearPredictors` (in the coordinator) keeps the squared norms of the rows that `damping` scales down."""
FARTHEST = 2.0**26
"""Largest |scale·centre| of a column. It bounds the rounding error that occurs when the coordinator centres the column."""
SHOWN = (
    "Under trust='trusted', margins hold the scaled columns of all parties but the last, and later parties receive them as "
    "weights."
)
DIFFERENCE = 1e-4
"""Half the step of a difference quotient of residuals, in units of a margin, or of a typical residual for numeric labels."""


@dataclass(frozen=True, slots=True)
class ProductClip(GramClip):
    """Geometry of sums of the lower triangles of t_i z_i z_iᵀ, t_i‖z_i‖² ≤ 1, off-diagonal entries times √2, on a grid g.

    A computed contribution differs from its exact value by three errors. The first is at most (p + 16)·2⁻⁵² relatively, since
    norms are sums of p terms and a few operations follow. The second is at most 2⁻²⁴√p, since the coordinator computes
    s·x − s·c and the party (x − c)·s, with |s·c| ≤ 2²⁶. The third is at most g√d/2, from rounding to the grid:

        Δ = √2 + 2((p + 16)·2⁻⁵² + 2⁻²⁴√p) + g√d.

    cap : 1. dimension : d = p(p + 1)/2.
    """

    @property
    def sensitivity(self) -> float:
        """Δ of all entries together, under replace-one."""
        p = order(self.dimension)
        floating = (p + 16.0) * 2.0**-52 + math.sqrt(p) * 2.0**-24
        return self.cap * (math.nextafter(OFF_DIAGONAL, 2.0) + 2.0 * floating) + self.grid * math.sqrt(self.dimension)

    def sensitivity_of(self, query: object, size: int) -> float:
        """Return Δ of all pieces together, for a query of one piece. Raise PrivacyError for any other sum.

        As with the clip 'gram', a party must trust the coordinator that the weights follow `Products`.
        """
        p = order(self.dimension)
        fits = self.cap == 1.0 and self.dimension == p * (p + 1) // 2
        fits = fits and isinstance(query, Gram) and within_triangle(query, p)
        if fits and isinstance(query, Gram):
            fits = isinstance(query.weighting, Products) and not query.capped
            for centre, scale in zip(query.centres, query.scales, strict=True):
                fits = fits and bool((scale > 0.0).all() and (abs(scale * centre) <= FARTHEST).all())
        if not fits:
            raise PrivacyError("the clip 'products' bounds pieces of one matrix of products alone: use the clip 'norm'")
        return self.sensitivity


@dataclass(frozen=True, slots=True)
class Products(Weighting):
    """Weights t_i, then t_i z_ij for every scaled column j that the margins actor (in the coordinator) holds.

    t_i = min(m_i/bound, 1/max(‖z_i‖², 1)), and 0 for a record that is not finite. ρ_i is the residual under the
    record cap. m_i ≥ 0 is either ρ_i² or the derivative of ρ_i along the margin. The derivative is the record's share of the
    slope of the released gradients, so it holds for a misspecified model, too. The margins actor multiplies t_i by the weight
    s_i of the record, as in every sum; for ρ_i² it multiplies t_i by s_i once more.

    cap : C; inf for no cap. bound : R > 0. half : half the step of the difference quotient.
    of_curvature : True for the derivative, False for ρ_i².
    damped : True if the z_i are damped rows, whose squared norms are the vector LENGTHS. The cap is one on undamped rows.
    """

    loss: Loss
    cap: float
    bound: float
    half: float
    of_curvature: bool
    damped: bool = False

    @property
    def squares_weights(self) -> bool:
        """True if records count by the squares of their weights."""
        return not self.of_curvature

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return the weights, ((1 + h)·n,). Free the columns that the margins actor held."""
        norms = kept["norms"]
        with np.errstate(over="ignore", invalid="ignore"):
            if self.of_curvature:
                m = self._residuals(margins + self.half, labels, norms) - self._residuals(
                    margins - self.half, labels, norms
                )
                m = np.maximum(m / (2.0 * self.half), 0.0)
            else:
                m = self._residuals(margins, labels, norms) ** 2
            lengths = kept[LENGTHS] if self.damped else norms
            t = np.minimum(m / self.bound, 1.0 / np.maximum(lengths, 1.0))  # 0 where the norm overflows
            return along_columns(np.where(np.isfinite(t), t, 0.0), [], kept)

    def _residuals(self, margins: Vector, labels: Vector, norms: Vector) -> Vector:
        return capped(self.loss.derivative(margins, labels), record_limits(norms, self.cap), self.loss.kernel)


def bounds_of(problem: Problem, cap: float, event: Gaussian) -> tuple[float, float]:
    """Return the bounds R of the curvature and of the residuals' variance, given the record cap C.

    Rows have a typical ‖z_i‖² of p/L, and curvature is at most L. For logistic loss a cap below a typical residual lowers the
    curvature to C/‖z_i‖·½. Runs with a log link scale columns by the curvature at their start (vfl.solvers.releases.counts),
    so a typical h_i‖z_i‖² is p for such runs too, but no constant bounds h_i. The cap bounds the residuals' variance:
    ρ_i²‖z_i‖² ≤ C².
    """
    p = problem.layout.n_coordinates
    narrow = min(1.0, cap / math.sqrt(p)) if problem.loss.log_odds else 1.0
    return longer(problem, event) * p * narrow, cap**2


def longer(problem: Problem, event: Gaussian) -> float:
    """Return the bound of h_i‖z_i‖², with h_i a record's curvature, in units of the typical h_i‖z_i‖²."""
    least = LONGER if problem.loss.power is None else LONGER_OF_COUNTS
    return least * math.sqrt(max(1.0, clearness(problem, event, least) / AMPLE))


def clearness(problem: Problem, event: Gaussian, bound: float) -> float:
    """Return P = n·h̄/(σR√(2p)), R = bound·p: a typical curvature, summed over records, per norm of its noise matrix."""
    p, typical = problem.layout.n_coordinates, TYPICAL if problem.loss.log_odds else 1.0
    return problem.n_records * typical / (event.sigma * bound * p * math.sqrt(2.0 * p))


def damping(problem: Problem, known: Curvature, event: Gaussian) -> Vector:
    """Return factors d_j ≤ 1, (p,), of the scaled columns for the release of the curvature.

    In the records of a level of prevalence π, z_ij² = (1 − π)/π in units of 1/L, many times a bound R that suits typical rows.
    With d_j² = (R − p + 1)/z_ij² these records fit under R and count for all of their curvature. Noise in the entries of column
    j grows by 1/d_j, so d_j stops where it would exceed FAINTEST.

    In general, z_ij² is taken to be (V/(B − |c|))²/V, from the mean c, the variance V and |x| ≤ B: that of a column with two
    values, and about a lower bound of any kurtosis. V is lowered and B − |c| raised by two deviations of their noise. Columns
    without a known mean are taken to reach their bounds.
    """
    L = float(known.smoothness @ problem.intercept) or problem.loss.curvature
    V, B, c = known.smoothness / L, problem.reach, abs(known.centre)
    with np.errstate(divide="ignore", invalid="ignore"):
        rare = np.maximum(V - 8.0 * known.noise * B**2, 0.0) / (B - c + 4.0 * known.noise * B)
        far = np.where(problem.centred_coordinates, np.fmin(rare, B + c), B + c)
        v = np.where(np.isfinite(far) & (problem.intercept == 0.0), far**2 / V, 1.0)
    bound, p = longer(problem, event), problem.layout.n_coordinates
    least = 1.0 / (FAINTEST * clearness(problem, event, bound) * math.sqrt(2.0 * p))
    return np.sqrt(np.minimum(1.0, np.maximum((bound * p - p + 1.0) / np.maximum(v, 1.0), least)))


def geometry_of(problem: Problem) -> ProductClip:
    """Return the geometry of a whole matrix of products, which all pieces of the matrix share."""
    p = problem.layout.n_coordinates
    return ProductClip(1.0, p * (p + 1) // 2)


def events_of(problem: Problem, mu: float) -> tuple[Gaussian, Gaussian]:
    """Return the events of the curvature and of the residuals' variance; together they are μ-GDP."""
    clip = geometry_of(problem)
    first, second = (clip.event(noise_multiplier(part, 1)) for part in split(mu, OF_CURVATURE))
    return first, second


def weightings_of(problem: Problem, loss: Loss, cap: float, event: Gaussian) -> tuple[Products, Products]:
    """Return the weightings of the curvature and of the residuals' variance. event : event of the curvature's release."""
    half, (first, second) = half_of(problem, loss, cap), bounds_of(problem, cap, event)
    return Products(loss, cap, first, half, True, True), Products(loss, cap, second, half, False)


def half_of(problem: Problem, loss: Loss, cap: float) -> float:
    """Return half the step of the difference quotient."""
    numeric = not (loss.log_odds or loss.power is not None)
    return DIFFERENCE * (cap / math.sqrt(problem.layout.n_coordinates / loss.curvature) if numeric else 1.0)


def pieces_of(problem: Problem, rows: Rows, weighting: Products, event: Gaussian | None) -> tuple[Gram, ...]:
    """Return the queries for a matrix of products. rows : {party: (block, centres, scales)} of all columns."""
    clip, seed = geometry_of(problem), (int(weighting.of_curvature),)
    return pieces(rows, problem.n_records, lambda _: weighting, clip, event, seed)


def planned(problem: Problem) -> tuple[Gram, ...]:
    """Return the queries as the plan knows them: without centres and scales, which only the run releases."""
    return pieces_of(problem, unscaled(problem), Products(problem.loss, 1.0, 1.0, 1.0, True), None)


def messages_of(problem: Problem, matrices: int) -> dict[str, int]:
    """Return {field of `OneTime`: number of messages, or of vectors per party}, for this number of matrices of products."""
    found, parties = planned(problem), len(problem.layout.whole())
    held = sum(piece.held.size for piece in found if piece.held is not None)
    sent = sum(piece.width * len(piece.blocks) for piece in found)
    return {
        "messages": matrices * sum(1 + (piece.held is not None) for piece in found),
        "out": -(-matrices * sent // parties),
        "back": -(-matrices * held // parties),
    }


def row(problem: Problem, share: float) -> OneTime:
    """Return the release of the curvature and of the residuals' variance, made once, after the last pass."""
    p, counted = problem.layout.n_coordinates, messages_of(problem, 2)
    said = (
        f"{p * (p + 1)} products of columns at the final model for {100 * share:.2g} % of the privacy budget: they give "
        f"standard errors. {SHOWN}"
    )
    counted["messages"] += 2  # one for the model's margins, one for norms of damped rows
    counted["back"] += 2
    return OneTime(Phase.END, share, lambda mu: events_of(problem, mu), release, said, **counted)


def release(run: Run, events: tuple[Gaussian, ...]) -> Exchange[None]:
    """Release both matrices at the final model. After the loss of a party, release nothing further."""
    cap = run.walk.cap()
    if cap is None or not run.present.mask.all():
        return
    yield from run.present.rebuilt(run.w)
    d = damping(run.problem, run.known, events[0])
    damped = {q: (block, centre, scale * d[block.coordinates]) for q, (block, centre, scale) in cap.rows.items()}
    if not run.present.mask.all() or (yield from run.present.put(RecordNorms(damped, into=LENGTHS), run.w)) is None:
        return
    weightings = weightings_of(run.problem, run.loss, cap.cap, events[0])
    for weighting, event in zip(weightings, events, strict=True):
        rows = damped if weighting.damped else cap.rows
        if (yield from matrix(run, rows, weighting, event)) is None:
            return


def matrix(run: Run, rows: Rows, weighting: Products, event: Gaussian) -> Exchange[Vector | None]:
    """Release a matrix of products, (p, p), in units of the bound. If a party is lost, stop and return None."""
    M = np.zeros((run.problem.layout.n_coordinates,) * 2)
    for query in asked(pieces_of(run.problem, rows, weighting, event), rows):
        if not run.present.mask.all() or (released := (yield from run.present.put(query, run.w))) is None:
            return None
        if isinstance(query, Gram):
            query.fill(M, released)
    return M


class Update(NamedTuple):
    """One update of a block S: e_S ← d(e_S − a(H_S e + ξ)), as in vfl.measures.covariance.

    S : coordinates. gain : (s,) a = γ/(βn). kept : (s,) d = 1/(1 + step·λ) for an L2 penalty λ. sigma : σ, or (s,).
    """

    S: slice
    gain: Vector
    kept: Vector
    sigma: float | Vector


@dataclass(eq=False, slots=True)
class Observed:
    """Updates and releases of a finished run, which determine the covariance of the run's model.

    All results are for the damped columns d_j z_ij of the released curvature, whose coefficients are those of the z_ij by d_j.

    moves : updates for the columns z_ij. centre : (p,) centres of the columns.
    products : {True for curvature, False for squared residuals: [(query, release)]}, one query per piece of the matrix.
    noises : {key as in `products`: (σ, bound R by which the matrix is divided)}.
    of_moments : σ of the released moments of columns.
    scales : {key as in `products`: (p,) scales of the rows in the release}. Only rows of the curvature are damped.
    """

    moves: list[Update] = field(default_factory=list)
    centre: Vector = field(default_factory=lambda: np.zeros(0))
    products: dict[bool, list[tuple[Gram, Released]]] = field(default_factory=lambda: {True: [], False: []})
    noises: dict[bool, tuple[float, float]] = field(default_factory=dict)
    scales: dict[bool, Vector] = field(default_factory=dict)
    of_moments: float = 0.0

    @property
    def scale(self) -> Vector:
        """(p,) scales of the damped columns."""
        return self.scales[True]

    @property
    def updates(self) -> list[Update]:
        """Updates of coefficients e/d: with H of damped columns, e ← e − a(He + ξ) is e/d ← e/d − a/d² (H(e/d) + dξ)."""
        d = self.scale / self.scales[False]
        return [u._replace(gain=u.gain / d[u.S] ** 2, sigma=u.sigma * d[u.S]) for u in self.moves]

    def long_tailed(self, problem: Problem) -> NDArray[np.bool_]:
        """Return (p,) booleans: True where released moments allow that few records have most of a column's variance.

        In the units of `damping`, these records have z_ij² of about V/(B − |c|)², here with all noise against the column. If
        z_ij² exceeds p, the record cap of logistic loss clips these records. If a column has only two values, its bounds, all
        such records have the same limit, which moves no coefficient.
        """
        V, B, c = 1.0 / (problem.loss.curvature * self.scales[False] ** 2), problem.reach, abs(self.centre)
        slack, p = 4.0 * B * self.of_moments / problem.n_records, len(c)
        carried = np.minimum(V / np.maximum(B - c - slack, 1e-9 * B) ** 2, (B + c) ** 2 / V) > p
        return np.asarray(carried & ((B - c + slack) * (B + c) > 2.0 * (V - 2.0 * B * slack)))

    def note(self, query: Any, released: Released) -> None:
        """Record a query of the run with the query's releases."""
        if isinstance(query, Descend):
            for step in query.ordered():
                if type(step.rule) is not ProxStep or step.event is None:
                    raise ValueError("a step is not linear in its release")
                # A penalty λ/2 w² has prox w/(1 + sλ).
                kept = 1.0 / (1.0 + step.rule.steps * step.rule.penalty.convexity)
                gain = step.rule.gain / step.scale
                self.moves.append(Update(step.block.coordinates, gain, kept, step.event.sigma))
        elif isinstance(query, Moments) and query.event is not None:
            self.of_moments = query.event.sigma
        elif isinstance(query, Gram) and isinstance(query.weighting, Products):
            kind = query.weighting.of_curvature
            if query.weighting.damped != kind:
                return  # these products serve joint steps before the first pass
            if not self.products[kind]:  # take centres and scales of all columns from the first piece
                self.centre, self.scales[kind] = np.concatenate(query.centres), np.concatenate(query.scales)
            self.products[kind].append((query, released))
            self.noises[kind] = (0.0 if query.event is None else query.event.sigma, query.weighting.bound)

    def matrix(self, *, of_curvature: bool) -> tuple[Vector, float] | None:
        """Return a matrix of products of damped columns, (p, p), and its σ, as sums over records; None if a piece is missing.

        The noise of the residuals' variance has a smaller standard deviation than σ for damped columns.
        """
        pieces = self.products[of_curvature]
        if not self.products[not of_curvature] or not pieces or len(pieces) < pieces[0][0].fold.of:
            return None
        sigma, bound = self.noises[of_curvature]
        M, d = np.zeros((len(self.scale), len(self.scale))), self.scale / self.scales[of_curvature]
        for query, released in pieces:
            query.fill(M, released)
        return bound * M * np.outer(d, d), bound * sigma
