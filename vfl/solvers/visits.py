"""Draws of blocks, the step that each block takes, and the visits in which parties are asked for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING

import numpy as np

from vfl.messages import Step
from vfl.privacy.geometry import Clip
from vfl.samplers import grouped_by_owner, in_parallel, sampler_of
from vfl.solvers.prox import ProxStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vfl.messages import Block
    from vfl.privacy.events import Gaussian
    from vfl.problem import Problem
    from vfl.samplers import Draw, Sampler
    from vfl.solvers.skgd import SkGD
    from vfl.solvers.smoothness import Curvature
    from vfl.types import Vector

    Visit = dict[str, tuple[Step, ...]]

BOUNDS = "bounds"


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The walk of a resolved SkGD through the blocks: draws → steps → visits. Public, given the released M.

    multiplier : z of the block releases; None releases without noise.
    """

    solver: SkGD
    problem: Problem
    known: Curvature
    multiplier: float | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks, in the order of the layout."""
        return self.problem.layout.blocks(self.solver.block_size)

    @property
    def sampler(self) -> Sampler:
        """The sampler of the solver's option."""
        return sampler_of(self.solver.sampling, self.solver.tau)

    @property
    def sweeps(self) -> bool:
        """Whether a party takes several steps in one message, each from the margins that the one before left."""
        solver = self.solver
        return solver.sweep != "block" and solver.sampling not in ("nice", "full") and solver.parallel == 1

    @property
    def draws_a_pass(self) -> int:
        """Draws in which a pass has as many blocks as there are."""
        count = len(self.blocks)
        return -(-count // self.sampler.width(count))

    @property
    def n_releases(self) -> int:
        """Block releases of the whole run, whatever is drawn."""
        solver = self.solver
        return (solver.outer_rounds or 1) * (solver.inner_rounds or 1) * self.sampler.width(len(self.blocks))

    def geometry(self, block: Block) -> tuple[Vector, Clip]:
        """Return the factor of r_i x_{i,S}, and the cap on the norm of the product: one place for both.

        The unit of residuals divides the contribution instead of raising the cap, so that events are the same for any.
        """
        solver, known = self.solver, self.known
        S, M = block.coordinates, known.smoothness[block.coordinates]
        isotropic = solver.noise_geometry == "isotropic"
        scale = (np.ones(block.size) if isotropic else 1.0 / np.sqrt(M)) / known.unit
        if solver.clip == BOUNDS:
            farthest = scale * (self.problem.reach[S] + abs(known.centre[S]))
            return scale, Clip(self.problem.loss.slope * math.sqrt(float(farthest @ farthest)), block.size)
        κ = float(solver.clip or math.inf)
        return scale, Clip(κ * math.sqrt(float(M.sum()) if isotropic else block.size), block.size)

    def clips(self) -> dict[Clip, Gaussian | None]:
        """Return the event of each clip that occurs."""
        z = self.multiplier
        return {
            clip: clip.event(z) if z is not None else None
            for clip in dict.fromkeys(self.geometry(block)[1] for block in self.blocks)
        }

    def steps(self) -> tuple[Step, ...]:
        """Return the release of each block and the update that follows where the block moves alone."""
        # Equal clips and events are shared, so that pickle sends each one once.
        shared = {clip: (clip, event) for clip, event in self.clips().items()}
        steps = []
        for block in self.blocks:
            scale, clip = self.geometry(block)
            centre = self.known.centre[block.coordinates]
            steps.append(Step(block, centre, scale, shared[clip][0], self.rule(block, block.size), shared[clip][1]))
        return tuple(steps)

    def rule(self, block: Block, moving: int) -> ProxStep:
        """Return the update of a block where `moving` coordinates move at once: s_j = γ/(β M_j) with β = `moving`.

        Nothing is known of the correlation between columns of different blocks, so nothing less is safe.
        """
        problem, S = self.problem, block.coordinates
        s = (self.solver.step_size or 1.0) / (moving * self.known.smoothness[S])
        scale, _ = self.geometry(block)
        return ProxStep(s / (problem.n_records * scale), s * problem.penalised[S], problem.penalty)

    def outer(self) -> Iterator[Iterator[tuple[Step, ...]]]:
        """Yield, for each outer round, its draws as the steps that are made together. Use up each before the next."""
        steps, blocks = self.steps(), self.blocks
        indices = self._indices()
        shared: dict[tuple[int, int], Step] = {}

        def together(draw: Draw) -> tuple[Step, ...]:
            if len(draw) == 1:
                return (steps[draw[0]],)
            moving = sum(blocks[b].size for b in draw)
            for b in draw:
                if (b, moving) not in shared:
                    shared[b, moving] = replace(steps[b], rule=self.rule(blocks[b], moving))
            return tuple(shared[b, moving] for b in draw)

        for _ in range(self.solver.outer_rounds or 1):
            yield map(together, self._draws(indices))

    def visits(self, draws: Iterable[tuple[Step, ...]]) -> Iterator[Visit]:
        """Join draws into visits: maximal runs of one owner in a sweep, else one visit per draw.

        Where the run may stop at the end of a pass, the end of a pass ends a visit.
        """
        if self.sweeps:
            last = math.inf if self.solver.tol is None else self.draws_a_pass
            for (owner, _), run in groupby(enumerate(draws), key=lambda it: (it[1][0].block.party, it[0] // last)):
                yield {owner: tuple(step for _, draw in run for step in draw)}
        else:
            for draw in draws:
                yield {party: tuple(own) for party, own in groupby(draw, key=lambda step: step.block.party)}

    def _indices(self) -> Iterator[Draw]:
        """Yield draws of blocks without end, pass after pass, in the order that the seed fixes."""
        rng = np.random.default_rng(self.solver.seed)
        while True:
            draws = self.sampler.draws(self.blocks, self.known.smoothness, rng)
            if self.solver.parallel == 1 and self.solver.sweep == "party":
                draws = grouped_by_owner(draws, self.blocks)
            yield from draws

    def _draws(self, indices: Iterator[Draw]) -> Iterator[Draw]:
        """Yield the draws of one outer round, joined into rounds of several parties where those go in parallel."""
        left, blocks, parties = self.solver.inner_rounds or 0, self.blocks, self.solver.parallel
        while left > 0:  # pass by pass: the order of what is drawn moves by less than one
            drawn = list(islice(indices, min(left, len(blocks))))
            left -= len(drawn)
            yield from in_parallel(drawn, blocks, parties) if parties > 1 else drawn
