"""Private ranges of columns by one joint release, without a model. Called by `vfl.private_bounds`, not from a job file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.messages import Ranges
from vfl.privacy import magnitudes
from vfl.privacy.calibration import noise_multiplier
from vfl.solvers.protocol import bearable
from vfl.solvers.releases.bins import Release

if TYPE_CHECKING:
    from vfl.privacy.events import Gaussian
    from vfl.problem import Problem
    from vfl.solvers.protocol import Exchange, Schedule
    from vfl.types import Vector

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
    """One release of histograms over the public grids of curves (vfl.features.curve). Called by `private_quantiles`.

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
