"""Solver NoisyGram: release XᵀX and Xᵀy once, then solve penalised least squares from them (AdaSSP, Wang 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.base.arguments import CLIP, flag, option, require_positive
from vfl.errors import DataError, PrivacyError, SpecificationError
from vfl.kernels.geometry import HUGE, TINY
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.geometry import Clip
from vfl.queries import COLUMNS, OFF_DIAGONAL, Columns, Gram, Piece, Weighting, held_at_once
from vfl.queries.protocol import Solver, require_clip, require_groups
from vfl.solvers import joint
from vfl.solvers.iterates.quadratic import least_squares
from vfl.solvers.releases import alone
from vfl.solvers.releases.smoothness import OVERFLOW
from vfl.solvers.rules.defaults import signal_to_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.privacy.events import Event, Gaussian
    from vfl.queries.parts import Scaled
    from vfl.queries.protocol import Schedule

    Rows = Mapping[str, Scaled]

LARGEST_P = 2000
FAINT = 2.0
"""Value of μn/p below which the noise of the products outweighs the information in them."""
FAINT_MEAN = 20.0
"""Value of μn below which a released mean of unclipped labels is noisier than the mean from products of shrunk rows."""


@dataclass(frozen=True, slots=True)
class GramClip(Clip):
    """Geometry of sums of the lower triangles of u_i u_iᵀ, ‖u_i‖² ≤ C², off-diagonal entries times √2, rounded to the grid g.

    With these factors √2, a triangle's Euclidean norm is the Frobenius norm of the matrix. Replacing u by u' moves the sum by
    ‖uuᵀ − u'u'ᵀ‖_F = √(‖u‖⁴ + ‖u'‖⁴ − 2(uᵀu')²) ≤ √2·C², not 2C², because both matrices are positive semidefinite. Each of
    the two contributions differs from its exact value by at most C²·d·2⁻⁵⁰ in floating point (‖u‖² is a sum of p + 1 terms,
    each entry takes a few more operations, and d ≥ p + 1) and g√d/2 by rounding:

        Δ = √2·C² + 2(C²·d·2⁻⁵⁰ + g√d/2).

    cap : C². dimension : d, number of released entries.
    """

    @property
    def sensitivity(self) -> float:
        """Δ of all entries together, under replace-one."""
        d = self.dimension
        rounded = self.grid * math.sqrt(d) + 2.0 * self.cap * d * 2.0**-50
        return math.nextafter(OFF_DIAGONAL, 2.0) * self.cap * (1.0 + 2.0**-50) + rounded

    def sensitivity_of(self, query: object, size: int) -> float:
        """Return Δ of all pieces together, for a query of one piece. Raise PrivacyError for other sums, which may move by 2C².

        Weights must follow the weighting `Row` with the same C². Only the coordinator knows the rows' norms, so a party has
        to trust the coordinator. Only the first piece has products of the label, and products of a party's columns with one
        another.
        """
        if not self.finite:
            return math.inf
        if not (isinstance(query, Gram) and isinstance(query.weighting, Row)) or query.capped:
            raise PrivacyError("the clip 'gram' bounds pieces of a Gram matrix alone: use the clip 'norm'")
        first, row, p = query.fold.number == 0, query.weighting, order(self.dimension) - 1
        fits = (row.square, row.of_label) == (self.cap, first) and self.dimension == p * (p + 3) // 2
        for centre, scale in zip(query.centres, query.scales, strict=True):
            fits = fits and not centre.any() and bool((scale == 1.0).all())
        if not (fits and within_triangle(query, p)):
            raise PrivacyError("the clip 'gram' came with a piece outside the lower triangle: use the clip 'norm'")
        return self.sensitivity


@dataclass(frozen=True, slots=True)
class Row(Weighting):
    """Weights s_i², then s_i² t(y_i − c) if the label is asked for, then s_i² x_ij for every column that the coordinator holds.

    s_i = min(1, C/‖u_i‖) for the row u_i = (x_i, t(y_i − c)) of all parties' columns and the label. s_i is 0 for a row that
    is not finite.

    square : C². label_scale : t. label_centre : c. of_label : True if the label is asked for.
    """

    square: float
    label_scale: float
    label_centre: float
    of_label: bool

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return the weights, ((1 + h)·n,) for h vectors times s². Free the columns that the margins actor held."""
        y = self.label_scale * (labels - self.label_centre)
        label = [y] if self.of_label else []
        if math.isinf(self.square):
            return along_columns(np.ones(y.size), label, kept)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = kept["norms"] + y * y
            shrink = np.where(squares <= HUGE, np.minimum(1.0, self.square / np.maximum(squares, TINY)), 0.0)
            return along_columns(shrink, label, kept)


def along_columns(t: Vector, first: list[Vector], kept: Kept) -> tuple[Vector, Kept]:
    """Return t, then t∘z for each z in `first` and for each held column; and a state from which the held columns are dropped.

    Where t is 0, because the row is not finite, the products t∘z are set to 0, too.
    """
    n, held = t.size, kept.get(COLUMNS, np.zeros(0))
    weights = np.empty((1 + len(first) + (held.size // n if n else 0), n))
    weights[0] = t
    columns = held.reshape(-1, n) if held.size else held.reshape(0, n)
    for row, z in zip(weights[1:], (*first, *columns), strict=True):
        np.multiply(t, z, out=row)
        row[t == 0.0] = 0.0
    return weights.ravel(), {COLUMNS: np.zeros(0)}


def order(dimension: int) -> int:
    """Return the smallest p with p(p + 1)/2 ≥ dimension."""
    return math.ceil((math.sqrt(8.0 * dimension + 1.0) - 1.0) / 2.0 - 1e-9)


def within_triangle(query: Gram, p: int) -> bool:
    """Return True if a piece stays in the lower triangle of p columns.

    The columns of a piece are multiplied with columns of earlier parties. Only the first piece also multiplies a party's
    columns with one another.
    """
    held, first = query.held, query.fold.number == 0
    for block in query.blocks:
        S = block.coordinates
        later = held is None or (first and block.party == held.party) or block.offset >= held.coordinates.stop
        if not (S.start >= 0 and S.stop <= p and later):
            return False
    return query.own == first and (held is None or held.coordinates.start >= 0)


def pieces(
    rows: Rows,
    n_records: int,
    weighting: Callable[[int], Weighting],
    clip: GramClip,
    event: Gaussian | None,
    seed: tuple[int, ...] = (),
) -> tuple[Gram, ...]:
    """Return the queries for all products of the columns of some parties. The queries are pieces of one joint release.

    Each party's columns are multiplied with the columns of all later parties. The margins actor (in the coordinator) holds at
    most `held_at_once` columns at a time, so small data of two parties need one piece. The first piece also multiplies each
    party's columns with one another.

    rows : {party: (block of all its columns, their centres, their scales)}. weighting : function from the number of a piece to
        its weighting.
    """
    most, wholes = held_at_once(n_records), [whole for whole, _, _ in rows.values()]
    cut = [
        replace(own, start=at, stop=min(at + most, own.stop)) for own in wholes[:-1] for at in range(0, own.size, most)
    ]
    found = []
    for number, held in enumerate(cut or [None]):
        own = [row for row in rows.values() if held is None or not number or row[0].offset > held.offset]
        blocks, centres, scales = zip(*own, strict=True)
        fold = Piece(number, max(len(cut), 1), seed)
        found.append(
            Gram(weighting(number), blocks, centres, scales, clip, event, fold=fold, held=held, own=not number)
        )
    return tuple(found)


def asked(found: tuple[Gram, ...], rows: Rows) -> Iterator[Columns | Gram]:
    """Yield the pieces of a release in order, each after the query, if any, that sends columns to the margins actor."""
    for piece in found:
        if piece.held is not None:
            _, centre, scale = rows[piece.held.party]
            yield Columns({piece.held.party: (piece.held, centre[piece.held.local], scale[piece.held.local])})
        yield piece


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyGram(Solver):
    """One joint release of XᵀX and Xᵀy, μ-GDP with μ = Δ/σ under replace-one; then post-processing.

    Squared loss only. Every record's row u_i = (x_i, t(y_i − c)), over all parties and with the label, is shrunk to norm C at
    most, which keeps the record on the regression line. The lower triangle of Σ u_i u_iᵀ without its last entry is released
    with Δ = √2·C² plus rounding (`GramClip` derives Δ). There is one piece unless data are large (`pieces`). The pieces are
    fixed beforehand, and the whole release is charged before the first piece.

    Eigenvalues of the noisy XᵀX below σ√(2p), the norm of such a symmetric noise matrix, are then raised to σ√(2p) (AdaSSP
    adds that amount to all eigenvalues). Then ½wᵀGw − bᵀw + nψ(w) is minimised to convergence, with G the raised XᵀX and b
    the noisy Xᵀy. This is the strongest solver for p in the tens and large n. The noise grows with p. On shares, products of
    two parties' columns have √1.5 times the noise, so the floor may be too low by this factor. The floor affects accuracy only.

    Who sees what: under trust='trusted' the coordinator holds the raw columns of all parties but the last, and sends each
    party's columns, as weights, to the parties after it. Participants therefore see other parties' columns *before* noise.
    Under trust='secure' nobody sees them.

    clip : C. None takes a third of the largest row norm that the declared bounds allow, and up to half at large μn/p. inf clips
        nothing. label_scale : t, weight of the label in a row. None scales the largest declared label to that row norm.
    constant : True releases the constant model alone (`vfl.solvers.releases.alone`), False never does. None releases that model
        alone if μn/p is low (`outweighed`), unless `clip` or `label_scale` is given, and never under trust='secure'.
    """

    clip: float | None = option(CLIP, None)
    label_scale: float | None = option(require_positive, None)
    constant: bool | None = option(flag, None)

    name: ClassVar[str] = "NoisyGram"
    weighs: ClassVar[bool] = False

    @property
    def shows_columns(self) -> bool:
        """True unless the constant model alone is released: the coordinator holds raw columns, and parties receive them."""
        return not self.constant

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided. Raise SpecificationError for a loss that is not squared."""
        if not problem.loss.quadratic:
            raise SpecificationError(
                f"{self.name} needs loss='squared', whose optimum follows from XᵀX and Xᵀy: use SkGD for "
                f"loss={problem.loss.name!r}"
            )
        require_clip(self.name, problem, self.clip)
        exceeded = self.clip is None and self.label_scale is None and outweighed(problem)
        if alone.decided(self.name, problem, self.constant, outweighed=exceeded):
            return replace(self, constant=True)
        if problem.layout.n_coordinates > LARGEST_P:
            raise SpecificationError(
                f"{self.name} releases all p² products of columns, too many beyond p = {LARGEST_P}: use SkGD or GCD"
            )
        require_groups(problem)
        if not problem.private:
            return replace(self, clip=self.clip or math.inf, label_scale=self.label_scale or 1.0, constant=False)
        row = math.sqrt(joint.squares_bound(problem))
        label = problem.label_range / 2 + abs(problem.label_centre - _label_centre(problem))  # the largest |y − c|
        if not math.isfinite(row) or not math.isfinite(label):
            if self.clip is None or self.label_scale is None:
                raise PrivacyError(
                    f"{self.name} needs bounds for every column and for the label, or both clip and label_scale"
                )
            return replace(self, constant=False)
        t = self.label_scale or row / max(label, 1e-100)
        # Trade the bias of shrinking for noise: a third where noise dominates the error, up to half at large n.
        share = min(0.5, max(1.0, signal_to_noise(problem) / 500.0) ** 0.5 / 3.0)
        C = self.clip or share * math.hypot(row, t * label)
        return replace(self, clip=C, label_scale=t, constant=False)

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return the event of the joint release, or of the release of the constant model."""
        if self.constant:
            return ((alone.event(problem), 1),)
        event = self._event(problem)
        return ((event, 1),) if event is not None else ()

    def schedule(self, problem: Problem) -> Schedule:
        """Collect the norms, then all pieces of the products. The first piece also has the products of the label."""
        if self.constant:
            return (yield from alone.schedule(problem))
        p, n = problem.layout.n_coordinates, problem.n_records
        t, c = self.label_scale or 1.0, _label_centre(problem)
        event, M = self._event(problem), np.zeros((p + 1, p + 1))
        if self.asks_norms(problem):
            yield joint.record_norms(problem)
        for query in asked(self.pieces(problem), joint.unscaled(problem)):
            released = yield query
            if isinstance(query, Gram):
                query.fill(M, released)
        G, b = M[:p, :p], M[p, :p] / t
        if event is not None:
            G = lifted(G, event.sigma * math.sqrt(2.0 * p))
        elif not (np.isfinite(G).all() and np.isfinite(b).all()):
            raise DataError(OVERFLOW)
        w = least_squares(problem, G / n, b / n)
        return w + problem.intercept * c if problem.centred else w

    def messages(self, problem: Problem) -> int:
        """Return the number of messages: one for the norms, one per piece, and one more per piece that sends columns."""
        if self.constant:
            return 1
        return sum(1 for _ in asked(self.pieces(problem), joint.unscaled(problem))) + self.asks_norms(problem)

    def asks_norms(self, problem: Problem) -> bool:
        """Return True if rows are shrunk to a finite clip, which needs their norms."""
        return not self.constant and self._geometry(problem).finite

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option."""
        if self.constant:
            return alone.explain(self.name, problem, "Fewer columns", outweighed=outweighed(problem))
        d = self._geometry(problem).dimension
        shrunk = f"rows (x, t·y) are shrunk to C = {self.clip:.3g}, t = {self.label_scale:.3g}"
        return (
            f"one joint release of {d} products of columns; {shrunk}.",
            "under trust='trusted', the coordinator receives raw columns and sends them to other parties.",
        )

    def _geometry(self, problem: Problem) -> GramClip:
        p = problem.layout.n_coordinates
        return GramClip(float(self.clip or math.inf) ** 2, p * (p + 1) // 2 + p)

    def _event(self, problem: Problem) -> Gaussian | None:
        return self._geometry(problem).event(noise_multiplier(problem.mu, 1)) if problem.mu is not None else None

    def pieces(self, problem: Problem) -> tuple[Gram, ...]:
        """Return the queries of the release; () for the constant model alone."""
        if self.constant:
            return ()
        geometry, scale, c = self._geometry(problem), self.label_scale or 1.0, _label_centre(problem)
        return pieces(
            joint.unscaled(problem),
            problem.n_records,
            lambda number: Row(geometry.cap, scale, c, of_label=not number),
            geometry,
            self._event(problem),
        )


def outweighed(problem: Problem) -> bool:
    """Return True if, by public facts, the products are expected to hold more noise than information.

    The condition is that μn/p is below FAINT. If μn is below FAINT_MEAN, the constant model is noisy too, and the limit falls
    to FAINT·(μn/FAINT_MEAN)².
    """
    clear = (problem.mu or math.inf) * problem.n_records
    return signal_to_noise(problem) < FAINT * min(1.0, clear / FAINT_MEAN) ** 2


def lifted(G: Vector, floor: float) -> Vector:
    """Return the symmetric matrix with eigenvalues below `floor` raised to `floor`."""
    values, vectors = np.linalg.eigh(G)
    raised: Vector = (vectors * np.maximum(values, floor)) @ vectors.T
    return 0.5 * (raised + raised.T)


def _label_centre(problem: Problem) -> float:
    """Return c, which is subtracted from the labels: the middle of the labels' bounds if an intercept can absorb c, else 0."""
    return problem.label_centre if problem.centred else 0.0
