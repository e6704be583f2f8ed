"""Private ranges of columns: one joint release, no model. Called by `vfl.private_bounds`, not from a job file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.messages import Ranges
from vfl.privacy import magnitudes
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import Gaussian
from vfl.solvers.smoothness import require_bearable
from vfl.types import Adjacency

if TYPE_CHECKING:
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.solvers.protocol import Schedule

FAILURE = 0.01
"""Probability that noise alone widens any bound."""


@dataclass(frozen=True, slots=True)
class ColumnRanges:
    """Its one release, histograms of the columns over powers of two, is μ-GDP with the whole budget (vfl.privacy.magnitudes).

    The schedule returns (2m,): the low ends, then the high ends; NaN if no range was found.

    columns : coordinates whose range is released.
    """

    columns: tuple[str, ...]

    name: ClassVar[str] = "ColumnRanges"
    adaptive: ClassVar[bool] = False
    sealed: ClassVar[bool] = False
    clip: ClassVar[float] = math.inf

    def resolve(self, problem: Problem) -> Self:
        """Return the same solver: nothing is left open."""
        return self

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return the one event."""
        event = self._event(problem)
        return ((event, 1),) if event is not None else ()

    def schedule(self, problem: Problem) -> Schedule:
        """Release the histograms; bounds are post-processing."""
        event = self._event(problem)
        asked = {
            party: tuple(j for j, name in enumerate(names) if name in self.columns)
            for party, names in problem.layout.columns.items()
        }
        asked = {party: indices for party, indices in asked.items() if indices}
        released = yield Ranges(asked, magnitudes.CELLS, event)
        counts = np.concatenate(released).reshape(-1, magnitudes.CELLS)
        least = self.least(problem)
        found = [magnitudes.bounds_of(noisy, least) or (math.nan, math.nan) for noisy in counts]
        order = [problem.layout.columns[party][j] for party, indices in asked.items() for j in indices]
        by_name = dict(zip(order, found, strict=True))
        return np.array([by_name[name][end] for end in (0, 1) for name in self.columns])

    def least(self, problem: Problem) -> float:
        """Return the number of records, up to noise, that a cell needs to be detected; values in smaller cells are clamped."""
        event = self._event(problem)
        cells = len(self.columns) * magnitudes.CELLS
        return 0.5 if event is None else magnitudes.threshold(event.sigma, cells, FAILURE)

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence on the values that will be missed."""
        return (
            f"values in cells of fewer than about {self.least(problem):.0f} records are missed, and will be clamped.",
        )

    def round_trips(self, problem: Problem) -> int:
        """Return one."""
        return 1

    def _event(self, problem: Problem) -> Gaussian | None:
        if problem.mu is None:
            return None
        Δ = magnitudes.sensitivity(len(self.columns))
        z = noise_multiplier(problem.mu, 1)
        require_bearable(z * Δ)
        return Gaussian(Adjacency.REPLACE_ONE, Δ, z * Δ, len(self.columns) * magnitudes.CELLS)
