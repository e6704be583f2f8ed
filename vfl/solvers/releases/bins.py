"""Private counts of records per bin of columns: of each class for `vfl.woe`, of columns and scores for `vfl.monitor`."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.evaluation.statistics import Scores
from vfl.losses import loss_of
from vfl.messages import Backward, Tally, Unnoised, Weighting
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.geometry import Clip
from vfl.solvers import joint
from vfl.solvers.protocol import Derivative, Solver
from vfl.solvers.releases.labels import noised
from vfl.solvers.releases.smoothness import require_bearable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vfl.messages import Block, Query
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.solvers.protocol import Schedule
    from vfl.types import Kept, Vector


class Release(Solver):
    """Base of releases without a model, for which vfl writes the jobs."""

    __slots__ = ()
    clip: ClassVar[float] = math.inf

    @abstractmethod
    def queries(self, problem: Problem) -> Sequence[Query]:
        """Return all queries, in order. They depend on public facts alone."""

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return one event per release."""
        events = [event for query in self.queries(problem) for event in query.events()]
        return tuple((event, 1) for event in events if event is not None)

    def round_trips(self, problem: Problem) -> int:
        """Return the number of messages: one per query."""
        return len(self.queries(problem))


@dataclass(frozen=True, slots=True)
class Ones(Weighting):
    """Weights r_i = 1, for plain sums of columns."""

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), without reading labels or replacing state."""
        return np.ones(len(margins)), {}


def _sum(weighting: Weighting, block: Block, scales: Vector, norm: float, z: float | None) -> Backward:
    """Return the query for Σ_i r_i·scales ∘ x_i, with contributions clipped to `norm`, and noise zΔ; None for no noise."""
    clip = Clip(math.nextafter(norm, math.inf), block.size)
    if z is not None:
        require_bearable(z * clip.sensitivity / clip.cap)
    event = None if z is None else clip.event(z)
    return Backward(weighting, (block,), (np.zeros(block.size),), (scales,), clip, event)


def _sigma(query: Query) -> float:
    (event,) = query.events()
    return 0.0 if event is None else float(event.sigma)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class LabelledCounts(Release):
    """Two releases per party. For each bin they hold the sum S of y_i/2 and the number C of records. Jointly μ-GDP.

    A record is in one bin of each of a party's columns, so its row x_i has ‖x_i‖ ≤ R with R² = `squares[party]`, and
    ‖y_i x_i/2‖ ≤ R/2. Replacing one record moves S by at most 2·R/2, attained if the label changes and the bins do not. The
    replacement moves C by at most 2R. Rows are clipped at these norms (`Clip`), so both bounds hold for any data of the
    party. Q parties make 2Q Gaussian releases, each with noise z·Δ and z = √(2Q)/μ, for μ the whole budget. The count of
    positives is C/2 + S, the count of negatives C/2 − S, and their noise is independent.

    S is the negative gradient of logistic loss at w = 0. The owner of a column therefore receives −y_i/2 for each record, and
    so learns every label.

    The schedule returns (2p,): the counts of positives, then the counts of negatives, in the order of the coordinates.

    squares : {party: largest ‖x_i‖² of the declared columns}.
    """

    squares: Mapping[str, int]

    name: ClassVar[str] = "LabelledCounts"

    def queries(self, problem: Problem) -> list[Backward]:
        """Return two queries per party: S, then C."""
        blocks = problem.layout.whole()
        z = None if problem.mu is None else noise_multiplier(problem.mu, 2 * len(blocks))
        return [
            _sum(weighting, block, np.ones(block.size), math.sqrt(self.squares[party]) * share, z)
            for party, block in blocks.items()
            for weighting, share in ((Derivative(loss_of("logistic")), 0.5), (Ones(), 1.0))
        ]

    def schedule(self, problem: Problem) -> Schedule:
        """Release the sums at w = 0. The counts follow by post-processing."""
        found = np.zeros((2, problem.layout.n_coordinates))
        for number, query in enumerate(self.queries(problem)):
            (found[number % 2, query.blocks[0].coordinates],) = yield query
        half, count = -found[0], found[1]
        return np.concatenate([count / 2.0 + half, count / 2.0 - half])

    def noise(self, problem: Problem) -> Vector:
        """Return the standard deviation of the noise in a count of positives (or of negatives), for each coordinate, (p,)."""
        squares = np.zeros(problem.layout.n_coordinates)
        for number, query in enumerate(self.queries(problem)):
            squares[query.blocks[0].coordinates] += ((0.5 if number % 2 else 1.0) * _sigma(query)) ** 2
        return np.sqrt(squares)

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the noise of the counts."""
        return (
            f"counts of positives and of negatives per bin, with noise of up to {self.noise(problem).max():.3g} records.",
        )


@dataclass(frozen=True, slots=True)
class DriftCounts(Release):
    """Counts per bin of each party's columns, and histograms of the margins by class. Together μ-GDP with the whole budget.

    A record is in one bin of each of a party's m columns. The record's contribution therefore has norm at most √m, and `Clip`
    enforces this norm. Replacing a record moves the counts by at most 2√m, and the histograms by at most √2 (`Scores`). Each
    of the Q parties with columns makes one Gaussian release, and so does the coordinator. Each release has noise z·Δ,
    z = √(Q + 1)/μ.

    The schedule returns the counts (p,), with 0 for coordinates that are not counted, then the histograms, the negative class
    first.

    counted : {party: {coordinate: 1.0}}, the bins to count. squares : {party: m}, its number of columns.
    w : {coordinate: coefficient} of the released model. edges : public edges of the histograms of margins.
    private : False if the model's own certificate gives no guarantee. Every party receives w with the job. This job's
        certificate then gives no guarantee either, and parties refuse the job unless their policies allow such jobs.
    """

    counted: Mapping[str, Mapping[str, float]]
    squares: Mapping[str, int]
    w: Mapping[str, float]
    edges: tuple[float, ...]
    private: bool = True

    name: ClassVar[str] = "DriftCounts"

    def queries(self, problem: Problem) -> list[Query]:
        """Return the sums of columns at margins of 0, the query for the margins, and the histograms."""
        layout, counted = problem.layout, {party: own for party, own in self.counted.items() if own}
        z = None if problem.mu is None else noise_multiplier(problem.mu, len(counted) + 1)
        asked: list[Query] = []
        for party, block in layout.whole().items():
            if own := counted.get(party):
                scales = np.array([own.get(name, 0.0) for name in layout.names[block.coordinates]])
                asked.append(_sum(Ones(), block, scales, math.sqrt(self.squares[party]), z))
        scores, w = Scores(np.array(self.edges)), np.array([self.w.get(name, 0.0) for name in layout.names])
        of_scores = Unnoised(scores, None) if z is None else Tally(scores, noised(scores, z))
        return [*asked, joint.forward(problem, w, "reset"), of_scores]

    def schedule(self, problem: Problem) -> Schedule:
        """Release the counts. Then compute the margins and release their histograms."""
        counts = np.zeros(problem.layout.n_coordinates)
        for query in self.queries(problem):
            released = yield query
            if isinstance(query, Backward):
                counts[query.blocks[0].coordinates] = released[0] * (query.scales[0] > 0.0)
        return np.concatenate([counts, *released])

    def noise(self, problem: Problem) -> tuple[Vector, float]:
        """Return the standard deviation of the noise in each column's count, (p,), and in each count of margins."""
        sigma, queries = np.zeros(problem.layout.n_coordinates), self.queries(problem)
        for query in queries:
            if isinstance(query, Backward):
                sigma[query.blocks[0].coordinates] = _sigma(query)
        return sigma, _sigma(queries[-1])

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the noise of the counts."""
        of_columns, of_scores = self.noise(problem)
        return (f"counts per bin, with noise of up to {max(of_scores, *of_columns):.3g} records.",)
