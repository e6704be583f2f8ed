"""Division of a run's μ² among the releases of SkGD: moments, labels, what a cap cuts, and passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vfl.privacy.calibration import noise_multiplier, split
from vfl.privacy.events import Gaussian
from vfl.privacy.spending import mu_squared
from vfl.solvers.blocks.visits import Walk
from vfl.solvers.releases import counts
from vfl.solvers.releases.excess import excess_events
from vfl.solvers.releases.labels import balance_event, labels_event, mean_event
from vfl.solvers.releases.smoothness import Curvature, moments_event, releases_moments, require_bearable
from vfl.solvers.rules import record_defaults
from vfl.types import Adjacency

if TYPE_CHECKING:
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.solvers.skgd import SkGD


@dataclass(frozen=True, slots=True)
class Shares:
    """Budget of a resolved SkGD on a problem. All releases together are μ-GDP under replace-one, μ the problem's.

    The moments take their share of μ² first, then the labels, and what the cap cuts. The passes share the rest.
    """

    solver: SkGD
    problem: Problem

    def releases(self) -> tuple[tuple[Event, int], ...]:
        """Return private moments and labels, if any, and the passes; or T·K draws, where each block is charged by itself."""
        if not self.problem.private:
            return ()
        begin = (moments_event(self.problem), self.labels_event)
        walk = self.walk(Curvature.flat(self.problem))
        if (cap := walk.cap()) is not None:
            passes = cap.prices
        elif self.solver.adaptive:
            # Caps follow the released M. In units of the sensitivity, and dearer than any σ = zΔ rounded once.
            largest = max(block.size for block in walk.blocks)
            ((z, _),) = walk.multipliers
            passes = ((Gaussian(Adjacency.REPLACE_ONE, 1.0, math.nextafter(z, 0.0), largest), walk.n_releases),)
        else:
            # σ = zΔ is rounded, so costs differ in the last bit between caps: count each draw as the dearest.
            ((z, _),) = walk.multipliers
            block = max((event for event in walk.clips(z).values() if event is not None), key=mu_squared)
            passes = ((block, walk.n_releases),)
        once = (*begin, *self.excess_events)
        return (*((event, 1) for event in once if event), *passes)

    def walk(self, known: Curvature) -> Walk:
        """Return the walk, with z such that its releases share evenly the μ² left by moments and labels."""
        walk = Walk(self.solver, self.problem, known)
        if not self.problem.private:
            return walk
        left = self._left_for_passes
        if self.solver.excess_share:
            left = split(left, self.solver.excess_share)[1]
        if self.solver.by_pass:
            return replace(walk, multipliers=self._passes(left, walk.n_passes))
        z = noise_multiplier(left, walk.n_releases)
        require_bearable(2.0 * z)
        return replace(
            walk, multipliers=((math.nextafter(z, math.inf) if self.solver.adaptive else z, walk.n_releases),)
        )

    def _passes(self, mu: float, passes: int) -> tuple[tuple[float, int], ...]:
        """Return ((z, passes), ...) of the early passes and of the others, spares among these; together they are μ-GDP."""
        early = record_defaults.early_passes(passes) if self.solver.early_share else 0
        budgets = [(mu, passes + self.solver.spares)]
        if early:
            cheap, rest = split(mu, min(self.solver.early_share or 0.0, early / (passes + self.solver.spares)))
            budgets = [(cheap, early), (rest, passes - early + self.solver.spares)]
        found = [(math.nextafter(noise_multiplier(share, count), math.inf), count) for share, count in budgets]
        require_bearable(2.0 * found[0][0])
        # A charge may also pay for a block of an earlier pass, which must not have less noise than it.
        return tuple((max(z, found[-1][0]), count) for z, count in found)

    @property
    def excess_events(self) -> tuple[Gaussian, ...]:
        """Return the events of the sums of what the cap cuts, none if there are no such releases."""
        if not self.solver.excess_share:
            return ()
        mu = split(self._left_for_passes, self.solver.excess_share)[0]
        return excess_events(mu, self.problem.layout.n_coordinates)

    @property
    def _left_for_passes(self) -> float:
        """Return the μ that remains after the moments and the labels."""
        left = self._left
        return split(left, self.solver.label_share)[1] if self.solver.label_share else left

    @property
    def _left(self) -> float:
        """Return the part of μ that the moments leave."""
        mu = self.problem.mu or math.inf
        return split(mu, self.problem.smoothness_share)[1] if releases_moments(self.problem) else mu

    @property
    def labels_event(self) -> Gaussian | None:
        """Return the event of the labels' spread or balance, None if there is no such release."""
        if not self.solver.label_share:
            return None
        mu = split(self._left, self.solver.label_share)[0]
        if counts.has_counts(self.problem):
            return counts.counts_event(self.problem, mu)
        if self.problem.loss.classification:
            return balance_event(self.problem, mu)
        return mean_event(mu) if self.releases_mean else labels_event(self.problem, mu)

    @property
    def releases_mean(self) -> bool:
        """True if the labels' mean is released without their spread."""
        return bool(self.solver.label_share) and self.solver.by_pass and record_defaults.releases_mean(self.problem)
