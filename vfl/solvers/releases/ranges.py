"""Private ranges of columns by one joint release, without a model. Called by `vfl.private_bounds`, not from a job file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vfl.messages import Ranges
from vfl.privacy import magnitudes
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import Gaussian
from vfl.solvers.protocol import Solver
from vfl.solvers.releases.smoothness import require_bearable
from vfl.types import Adjacency

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.solvers.protocol import Schedule
    from vfl.types import Vector

FAILURE = 0.01
"""Probability with which noise alone widens at least one bound."""


@dataclass(frozen=True, slots=True)
class ColumnRanges(Solver):
    """One release of histograms of the columns over powers of two, μ-GDP with the whole budget (vfl.privacy.magnitudes).

    The schedule returns (2m,): the low ends, then the high ends. NaN stands for a column without a range.

    columns : coordinates whose ranges are released.
    """

    columns: tuple[str, ...]

    cells: int = magnitudes.CELLS

    of_curves: ClassVar[bool] = False
    name: ClassVar[str] = "ColumnRanges"
    clip: ClassVar[float] = math.inf

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return the event of the release."""
        event = self._event(problem)
        return ((event, 1),) if event is not None else ()

    def schedule(self, problem: Problem) -> Schedule:
        """Release the histograms. Return the bounds, which are post-processing."""
        by_name = yield from self._counts(problem)
        least = self.least(problem)
        found = {name: magnitudes.bounds_of(noisy, least) or (math.nan, math.nan) for name, noisy in by_name.items()}
        return np.array([found[name][end] for end in (0, 1) for name in self.columns])

    def _counts(self, problem: Problem) -> Generator[Any, Any, dict[str, Vector]]:
        """Release the histograms. Return {column: noisy counts of its cells, (CELLS,)}."""
        event = self._event(problem)
        asked = {
            party: tuple(j for j, name in enumerate(names) if name in self.columns)
            for party, names in problem.layout.columns.items()
        }
        asked = {party: indices for party, indices in asked.items() if indices}
        positions = {party: tuple(range(len(own))) for party, own in asked.items()} if self.of_curves else asked
        released = yield Ranges(positions, self.cells, event, of_curves=self.of_curves)
        counts = np.concatenate(released).reshape(-1, self.cells)
        order = [problem.layout.columns[party][j] for party, indices in asked.items() for j in indices]
        return dict(zip(order, counts, strict=True))

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

    def round_trips(self, problem: Problem) -> int:
        """Return the number of messages, which is 1."""
        return 1

    def _event(self, problem: Problem) -> Gaussian | None:
        if problem.mu is None:
            return None
        Δ = magnitudes.sensitivity(len(self.columns))
        z = noise_multiplier(problem.mu, 1)
        require_bearable(z * Δ)
        return Gaussian(Adjacency.REPLACE_ONE, Δ, z * Δ, len(self.columns) * self.cells)


@dataclass(frozen=True, slots=True)
class ColumnCounts(ColumnRanges):
    """One release of histograms over the public grids of curves (vfl.features.grid). Called by `private_quantiles`.

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
