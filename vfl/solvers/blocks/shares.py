"""Division of a run's budget μ² between SkGD's passes and its other releases, such as label statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from vfl.base.types import Adjacency
from vfl.privacy.calibration import noise_multiplier, split
from vfl.privacy.events import Gaussian
from vfl.privacy.spending import mu_squared
from vfl.queries.protocol import require_bearable
from vfl.solvers.blocks.messages import Walk
from vfl.solvers.releases import correlations, excess, products, residuals, smoothness, start
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.releases.once import Phase
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.privacy.events import Event
    from vfl.queries import Query
    from vfl.queries.protocol import Released
    from vfl.solvers.blocks.options import BlockOptions
    from vfl.solvers.releases.once import OneTime, Run


def table(solver: BlockOptions, problem: Problem) -> tuple[OneTime, ...]:
    """Return what a resolved SkGD releases outside its passes, in order. Each takes a share of the μ² still left."""
    shares = solver.decided
    rows = [smoothness.row(problem)]
    if shares.label_share or start.is_exact(problem):
        rows.append(start.row(problem, shares.label_share or 0.0, by_pass=solver.by_pass))
    if solver.joint:
        rows.append(correlations.row(problem, correlations.SHARE))
    if shares.residual_share:
        rows.append(residuals.row(problem, shares.residual_share, shares.record_clip or 1.0, shares.early_share or 0.0))
    if shares.excess_share:
        rows.append(excess.row(problem, shares.excess_share, joined=_joined(solver, problem)))
    if problem.inference:
        rows.append(products.row(problem, problem.inference))
    return tuple(rows)


def _joined(solver: BlockOptions, problem: Problem) -> bool:
    """Return True if the first pass after the early passes begins an outer round, which rebuilds the margins anyway."""
    walk = Walk(solver, problem, Curvature.flat(problem))
    early = record_defaults.early_passes(walk.n_passes)
    return early * walk.draws_a_pass % (solver.inner_rounds or 1) == 0


@dataclass(frozen=True)
class Budget:
    """Budget of a resolved SkGD for one problem. All releases together are μ-GDP under replace-one, with the problem's μ.

    Releases outside the passes take their shares of μ² in the order of `table`. The passes get the remaining μ².
    """

    solver: BlockOptions
    problem: Problem

    @property
    def once(self) -> tuple[tuple[OneTime, tuple[Gaussian, ...]], ...]:
        """Return the releases outside the passes, each with its events."""
        return self._divided()[0]

    def _divided(self) -> tuple[tuple[tuple[OneTime, tuple[Gaussian, ...]], ...], float]:
        left, rows = self.problem.mu or math.inf, []
        for row in table(self.solver, self.problem):
            events: tuple[Gaussian, ...] = ()
            if row.share:
                part, left = split(left, row.share)
                events = row.events(part)
            rows.append((row, events))
        return tuple(rows), left

    def spent(self, phase: Phase) -> float:
        """Return the μ that all releases outside the passes spend together in a phase of the run."""
        return math.sqrt(sum(mu_squared(event) for row, events in self.once if row.phase is phase for event in events))

    def made(self, phase: Phase, run: Run) -> Generator[Query, Released, None]:
        """Yield the queries of all releases outside the passes in a phase of the run, which they update."""
        for row, events in self.once:
            if row.phase is phase:
                yield from row.make(run, events)

    @cached_property
    def _early(self) -> float:
        """Number of passes before the first release between passes; inf if the run has no such release."""
        if not any(row.phase is Phase.BETWEEN for row in table(self.solver, self.problem)):
            return math.inf
        return record_defaults.early_passes(Walk(self.solver, self.problem, Curvature.flat(self.problem)).n_passes)

    def due(self, number: int, run: Run) -> bool:
        """Return True if releases outside the passes that also rebuild the margins are due before pass `number`."""
        rebuild = any(row.back for row in table(self.solver, self.problem) if row.phase is Phase.BETWEEN)
        return rebuild and number >= self._early and not run.passed and bool(run.present.mask.all())

    def between(self, number: int, run: Run, w: Vector) -> Generator[Query, Released, None]:
        """Make the releases that are due after the early passes, the first 30 %.

        During the second half of the early passes, record w before each pass, for an average. number : pass that begins at w.
        """
        if run.passed:
            return
        if number >= self._early:
            run.passed, run.w = True, w
            yield from self.made(Phase.BETWEEN, run)
        elif 2 * number >= self._early and number not in run.settled:
            run.settled[number] = w.copy()

    def releases(self) -> tuple[tuple[Event, int], ...]:
        """Return the charges of a run; see `SkGD.releases`."""
        if not self.problem.private:
            return ()
        walk = self.walk(Curvature.flat(self.problem))
        if (cap := walk.cap()) is not None:
            passes = cap.prices
        elif self.solver.adaptive:
            # Caps depend on the released M, so charge in units of Δ. A σ slightly below z covers the rounding of σ = zΔ.
            largest = max(block.size for block in walk.blocks)
            ((z, _),) = walk.multipliers
            passes = ((Gaussian(Adjacency.REPLACE_ONE, 1.0, math.nextafter(z, 0.0), largest), walk.n_releases),)
        else:
            # σ = zΔ is rounded, so costs differ in the last bit between caps: charge every draw at the largest cost.
            ((z, _),) = walk.multipliers
            block = max((event for event in walk.clips(z).values() if event is not None), key=mu_squared)
            passes = ((block, walk.n_releases),)
        return (*((event, 1) for _, events in self.once for event in events), *passes)

    def walk(self, known: Curvature) -> Walk:
        """Return the sequence of block updates, with noise multipliers that spend the μ² left by all other releases."""
        walk = Walk(self.solver, self.problem, known)
        if not self.problem.private:
            return walk
        left = self._divided()[1]
        if self.solver.by_pass:
            return replace(walk, multipliers=self._passes(left, walk.n_passes))
        z = noise_multiplier(left, walk.n_releases)
        require_bearable(2.0 * z)
        return replace(
            walk, multipliers=((math.nextafter(z, math.inf) if self.solver.adaptive else z, walk.n_releases),)
        )

    def _passes(self, mu: float, passes: int) -> tuple[tuple[float, int], ...]:
        """Return ((noise multiplier z, number of passes), ...), together μ-GDP: early passes, if these spend less, then others.

        The last number includes the reserve passes, which repeat passes whose answers were lost.
        """
        share = self.solver.decided.early_share or 0.0
        early = record_defaults.early_passes(passes) if share else 0
        budgets = [(mu, passes + self.solver.reserve_passes)]
        if early:
            cheap, rest = split(mu, min(share, early / (passes + self.solver.reserve_passes)))
            budgets = [(cheap, early), (rest, passes - early + self.solver.reserve_passes)]
        found = [(math.nextafter(noise_multiplier(part, count), math.inf), count) for part, count in budgets]
        require_bearable(2.0 * found[0][0])
        # A charge may also pay for a block of an earlier pass, so an earlier pass must not have less noise.
        return tuple((max(z, found[-1][0]), count) for z, count in found)
