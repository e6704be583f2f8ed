"""Private counts of records per bin of columns and scores, for `vfl.monitor`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vfl.evaluation.statistics import Scores
from vfl.messages import Backward, Tally, Unnoised
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip
from vfl.solvers import joint
from vfl.solvers.protocol import Solver
from vfl.solvers.releases.labelled_counts import Ones
from vfl.solvers.releases.smoothness import require_bearable
from vfl.types import Adjacency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfl.messages import Block
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.solvers.protocol import Schedule
    from vfl.types import Vector


@dataclass(frozen=True, slots=True)
class DriftCounts(Solver):
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
    clip: ClassVar[float] = math.inf

    def _multiplier(self, problem: Problem) -> float | None:
        parties = sum(bool(own) for own in self.counted.values())
        return None if problem.mu is None else noise_multiplier(problem.mu, parties + 1)

    def _asked(self, problem: Problem) -> list[tuple[Block, Vector, Clip, Gaussian | None]]:
        z, asked = self._multiplier(problem), []
        for party, block in problem.layout.whole().items():
            own = self.counted.get(party)
            if own:
                names = problem.layout.names[block.coordinates]
                clip = Clip(math.nextafter(math.sqrt(self.squares[party]), math.inf), block.size)
                if z is not None:
                    require_bearable(z * clip.sensitivity / clip.cap)
                scales = np.array([own.get(name, 0.0) for name in names])
                asked.append((block, scales, clip, None if z is None else clip.event(z)))
        return asked

    def _of_scores(self, problem: Problem) -> tuple[Scores, Gaussian | None]:
        z, scores = self._multiplier(problem), Scores(np.array(self.edges))
        if z is None:
            return scores, None
        Δ = scores.sensitivity
        return scores, Gaussian(Adjacency.REPLACE_ONE, Δ, z * Δ, scores.dimension)

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return one event per release."""
        events = [event for *_, event in self._asked(problem)] + [self._of_scores(problem)[1]]
        return tuple((event, 1) for event in events if event is not None)

    def schedule(self, problem: Problem) -> Schedule:
        """Release the counts at margins of 0. Then compute the margins and release their histograms."""
        counts = np.zeros(problem.layout.n_coordinates)
        for block, scales, clip, event in self._asked(problem):
            (released,) = yield Backward(Ones(), (block,), (np.zeros(block.size),), (scales,), clip, event)
            counts[block.coordinates] = released * (scales > 0.0)
        w = np.array([self.w.get(name, 0.0) for name in problem.layout.names])
        yield joint.forward(problem, w, "reset")
        scores, event = self._of_scores(problem)
        (histograms,) = yield Unnoised(scores, None) if event is None else Tally(scores, event)
        return np.concatenate([counts, histograms])

    def noise(self, problem: Problem) -> tuple[Vector, float]:
        """Return the standard deviation of the noise in each column's count, (p,), and in each count of margins."""
        sigma = np.zeros(problem.layout.n_coordinates)
        for block, _, _, event in self._asked(problem):
            sigma[block.coordinates] = 0.0 if event is None else event.sigma
        event = self._of_scores(problem)[1]
        return sigma, 0.0 if event is None else event.sigma

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence about the noise of the counts."""
        of_columns, of_scores = self.noise(problem)
        return (f"counts per bin, with noise of up to {max(of_scores, *of_columns):.3g} records.",)

    def round_trips(self, problem: Problem) -> int:
        """Return the number of messages: one per release, and one for the margins."""
        return len(self._asked(problem)) + 2
