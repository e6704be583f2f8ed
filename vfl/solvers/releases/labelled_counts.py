"""Private counts of each class in every bin of one-hot columns, for `vfl.woe`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.losses import loss_of
from vfl.messages import Backward, Weighting
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.geometry import Clip
from vfl.solvers.protocol import Derivative, Solver
from vfl.solvers.releases.smoothness import require_bearable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages import Block
    from vfl.privacy.events import Event, Gaussian
    from vfl.problem import Problem
    from vfl.solvers.protocol import Schedule
    from vfl.types import Vector


@dataclass(frozen=True, slots=True)
class Ones(Weighting):
    """Weights r_i = 1, for plain sums of columns."""

    def __call__(
        self, margins: Vector, labels: Vector, kept: Mapping[str, Vector]
    ) -> tuple[Vector, Mapping[str, Vector]]:
        """Return r, (n,), without reading labels or replacing state."""
        return np.ones(len(margins)), {}


@dataclass(frozen=True, slots=True)
class LabelledCounts(Solver):
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
    clip: ClassVar[float] = math.inf

    def _asked(self, problem: Problem) -> list[tuple[Block, Weighting, Clip, Gaussian | None]]:
        blocks = problem.layout.whole()
        z = None if problem.mu is None else noise_multiplier(problem.mu, 2 * len(blocks))
        asked: list[tuple[Block, Weighting, Clip, Gaussian | None]] = []
        for party, block in blocks.items():
            norm = math.sqrt(self.squares[party])
            for weighting, cap in ((Derivative(loss_of("logistic")), norm / 2.0), (Ones(), norm)):
                clip = Clip(math.nextafter(cap, math.inf), block.size)
                if z is not None:
                    require_bearable(z * clip.sensitivity / clip.cap)
                asked.append((block, weighting, clip, None if z is None else clip.event(z)))
        return asked

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return one event per release."""
        return tuple((event, 1) for *_, event in self._asked(problem) if event is not None)

    def schedule(self, problem: Problem) -> Schedule:
        """Release the sums at w = 0. The counts follow by post-processing."""
        p = problem.layout.n_coordinates
        found = np.zeros((2, p))
        for number, (block, weighting, clip, event) in enumerate(self._asked(problem)):
            zeros, ones = np.zeros(block.size), np.ones(block.size)
            (released,) = yield Backward(weighting, (block,), (zeros,), (ones,), clip, event)
            found[number % 2, block.coordinates] = released
        half, count = -found[0], found[1]
        return np.concatenate([count / 2.0 + half, count / 2.0 - half])

    def noise(self, problem: Problem) -> Vector:
        """Return the standard deviation of the noise in a count of positives (or of negatives), for each coordinate, (p,)."""
        squares = np.zeros(problem.layout.n_coordinates)
        for number, (block, _, _, event) in enumerate(self._asked(problem)):
            share = 1.0 if number % 2 == 0 else 0.5
            squares[block.coordinates] += (share * (0.0 if event is None else event.sigma)) ** 2
        return np.sqrt(squares)

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the noise of the counts."""
        return (
            f"counts of positives and of negatives per bin, with noise of up to {self.noise(problem).max():.3g} records.",
        )

    def round_trips(self, problem: Problem) -> int:
        """Return the number of messages: one per release."""
        return len(self._asked(problem))
