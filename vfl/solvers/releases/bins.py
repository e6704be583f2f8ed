"""Counts of records that runs without a model release: per bin, for `vfl.releases.woe` and `vfl.monitor`, and per power of two.

Counts per power of two give the ranges of columns for `vfl.releases.private_bounds`. No job file names these runs.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.base.losses import loss_of
from vfl.privacy import magnitudes
from vfl.privacy.calibration import noise_multiplier
from vfl.queries import Counts, ExactTally, Ranges, Tally, Weighting
from vfl.queries.protocol import Derivative, Solver, bearable
from vfl.queries.statistics import Scores
from vfl.solvers import joint
from vfl.solvers.releases.labels import noised

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.privacy.events import Event, Gaussian
    from vfl.queries import Query
    from vfl.queries.protocol import Exchange, Schedule


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

    def messages(self, problem: Problem) -> int:
        """Return the number of messages: one per query."""
        return len(self.queries(problem))


@dataclass(frozen=True, slots=True)
class Ones(Weighting):
    """Weights r_i = 1, to count records of every label."""

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), without reading labels or replacing state."""
        return np.ones(len(margins)), {}


def _counts(
    weighting: Weighting,
    problem: Problem,
    bins: Mapping[str, Collection[str]],
    most: Mapping[str, int],
    z: float | None,
) -> list[Counts]:
    """Return one query per party with bins, {party: coordinates}, each with noise zΔ; None for no noise."""
    found = []
    for party, own in problem.layout.columns.items():
        if positions := tuple(j for j, name in enumerate(own) if name in bins.get(party, ())):
            Δ = magnitudes.sensitivity(most[party])
            event = None if z is None else bearable(Δ, z, 2 * len(positions))
            found.append(Counts(weighting, {party: positions}, {party: most[party]}, event))
    return found


def _placed(problem: Problem, query: Counts, values: float | Vector) -> Vector:
    """Return (2, p) with these values at the query's coordinates and 0 elsewhere; the row of r_i > 0 comes first."""
    ((party, positions),) = query.columns.items()
    placed = np.zeros((2, problem.layout.n_coordinates))
    at = problem.layout.whole()[party].offset + np.array(positions)
    placed[:, at] = np.reshape(values, (2, -1)) if np.ndim(values) else values
    return placed


def _sigma(query: Query) -> float:
    (event,) = query.events()
    return 0.0 if event is None else float(event.sigma)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class LabelledCounts(Release):
    """Counts of positive and of negative records per bin, one release per party. Jointly μ-GDP.

    A record is in one bin of each of a party's m columns, with its own label, so Δ = √(2m), attained if all bins change, or the
    label (`Counts` has the proof; the party enforces it). Q parties make Q Gaussian releases, each with noise z·Δ and
    z = √Q/μ, for μ the whole budget.

    The weights are the residuals −y_i/2 of logistic loss at w = 0. The owner of a column receives these residuals, and so
    learns every label.

    The schedule returns (2p,): the counts of positives, then the counts of negatives, in the order of the coordinates.

    squares : {party: m}, largest number of bins that a record enters.
    """

    squares: Mapping[str, int]

    name: ClassVar[str] = "LabelledCounts"

    def queries(self, problem: Problem) -> list[Counts]:
        """Return one query per party."""
        bins = problem.layout.columns
        z = None if problem.mu is None else noise_multiplier(problem.mu, sum(bool(own) for own in bins.values()))
        return _counts(Derivative(loss_of("logistic")), problem, bins, self.squares, z)

    def schedule(self, problem: Problem) -> Schedule:
        """Release the counts at w = 0."""
        found = np.zeros((2, problem.layout.n_coordinates))
        for query in self.queries(problem):
            (counts,) = yield query
            found += _placed(problem, query, counts)
        return found[::-1].ravel()  # swapped, since positives have negative residuals

    def noise(self, problem: Problem) -> Vector:
        """Return the standard deviation of the noise in a count of positives (or of negatives), for each coordinate, (p,)."""
        sigmas: Vector = sum(_placed(problem, query, _sigma(query))[0] for query in self.queries(problem))
        return sigmas

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the noise of the counts."""
        return (
            f"counts of positives and of negatives per bin, with noise of up to {self.noise(problem).max():.3g} records.",
        )


@dataclass(frozen=True, slots=True)
class DriftCounts(Release):
    """Counts per bin of each party's columns, and histograms of the margins by class. Together μ-GDP with the whole budget.

    A record is in one bin of each of a party's m columns. Replacing a record moves the counts by at most √(2m) (`Counts`), and
    the histograms by at most √2 (`Scores`). Each of the Q parties with columns makes one Gaussian release, and so does the
    coordinator. Each release has noise z·Δ, z = √(Q + 1)/μ.

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
        z = (
            None
            if problem.mu is None
            else noise_multiplier(problem.mu, sum(bool(own) for own in self.counted.values()) + 1)
        )
        asked = _counts(Ones(), problem, self.counted, self.squares, z)
        scores, w = Scores(np.array(self.edges)), np.array([self.w.get(name, 0.0) for name in problem.layout.names])
        of_scores = ExactTally(scores, None) if z is None else Tally(scores, noised(scores, z))
        return [*asked, joint.forward(problem, w, "reset"), of_scores]

    def schedule(self, problem: Problem) -> Schedule:
        """Release the counts. Then compute the margins and release their histograms."""
        counts = np.zeros(problem.layout.n_coordinates)
        for query in self.queries(problem):
            released = yield query
            if isinstance(query, Counts):
                counts += _placed(problem, query, released[0])[0]
        return np.concatenate([counts, *released])

    def noise(self, problem: Problem) -> tuple[Vector, float]:
        """Return the standard deviation of the noise in each column's count, (p,), and in each count of margins."""
        sigma, queries = np.zeros(problem.layout.n_coordinates), self.queries(problem)
        for query in queries:
            if isinstance(query, Counts):
                sigma += _placed(problem, query, _sigma(query))[0]
        return sigma, _sigma(queries[-1])

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the noise of the counts."""
        of_columns, of_scores = self.noise(problem)
        return (f"counts per bin, with noise of up to {max(of_scores, *of_columns):.3g} records.",)


FAILURE = 0.01
"""Probability with which noise alone widens at least one bound."""


@dataclass(frozen=True, slots=True)
class ColumnRanges(Release):
    """One release of histograms of the columns over powers of two, μ-GDP with the whole budget (vfl.privacy.magnitudes).

    The schedule returns (2m,): the low ends, then the high ends. NaN stands for a column without a range.

    columns : coordinates whose ranges are released.
    """

    columns: tuple[str, ...]

    cells: int = magnitudes.CELLS

    of_curves: ClassVar[bool] = False
    name: ClassVar[str] = "ColumnRanges"

    def queries(self, problem: Problem) -> list[Ranges]:
        """Return the query of all histograms."""
        columns = problem.layout.columns
        asked = {party: [j for j, name in enumerate(own) if name in self.columns] for party, own in columns.items()}
        positions = {party: tuple(range(len(own)) if self.of_curves else own) for party, own in asked.items() if own}
        return [Ranges(positions, self.cells, self._event(problem), of_curves=self.of_curves)]

    def schedule(self, problem: Problem) -> Schedule:
        """Release the histograms. Return the bounds, which are post-processing."""
        by_name = yield from self._counts(problem)
        least = self.least(problem)
        found = {name: magnitudes.bounds_of(noisy, least) or (math.nan, math.nan) for name, noisy in by_name.items()}
        return np.array([found[name][end] for end in (0, 1) for name in self.columns])

    def _counts(self, problem: Problem) -> Exchange[dict[str, Vector]]:
        """Release the histograms. Return {column: noisy counts of its cells, (CELLS,)}."""
        (query,) = self.queries(problem)
        released = yield query
        order = [name for names in problem.layout.columns.values() for name in names if name in self.columns]
        return dict(zip(order, np.concatenate(released).reshape(-1, self.cells), strict=True))

    def least(self, problem: Problem) -> float:
        """Return the noisy count above which a cell counts as occupied. Values in cells with fewer records will be clamped."""
        event = self._event(problem)
        cells = len(self.columns) * magnitudes.CELLS
        return 0.5 if event is None else magnitudes.threshold(event.sigma, cells, FAILURE)

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the values that training will clamp."""
        return (
            f"values in cells of fewer than about {self.least(problem):.0f} records are missed, and will be clamped.",
        )

    def _event(self, problem: Problem) -> Gaussian | None:
        if problem.mu is None:
            return None
        m = len(self.columns)
        return bearable(magnitudes.sensitivity(m), noise_multiplier(problem.mu, 1), m * self.cells)


@dataclass(frozen=True, slots=True)
class ColumnCounts(ColumnRanges):
    """One release of histograms over the public grids of curves (vfl.base.features.curve). Called by `private_quantiles`.

    The schedule returns (m·cells,): the noisy counts of each column in the order of `columns`.

    columns : first coordinate of each curve without declared knots. The coordinate stands for the curve's column.
    """

    of_curves: ClassVar[bool] = True
    name: ClassVar[str] = "ColumnCounts"

    def schedule(self, problem: Problem) -> Schedule:
        """Release the histograms."""
        by_name = yield from ColumnRanges._counts(self, problem)
        return np.concatenate([by_name[name] for name in self.columns])

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the noise of a count."""
        event = self._event(problem)
        return (f"each count has noise of standard deviation {0.0 if event is None else event.sigma:.3g}.",)
