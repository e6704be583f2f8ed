"""Order of blocks, the step of each block, and the messages that carry the steps to parties.

A draw is a set of blocks that move at the same time. A message to a party can carry steps of several draws.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from vfl.base.types import Adjacency
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip
from vfl.queries import RecordCap, Step
from vfl.queries.rules import ClassesStep, ColumnStep, ProxStep
from vfl.queries.samplers import grouped_by_owner, in_parallel, sampler_of
from vfl.solvers.blocks.options import BOUNDS, RECORD
from vfl.solvers.iterates.anderson import WINDOW, accelerated
from vfl.solvers.iterates.convergence import length_of
from vfl.solvers.rules import record_defaults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vfl.base.problem import Block, Problem
    from vfl.base.types import Vector
    from vfl.queries.samplers import Draw, Sampler
    from vfl.solvers.blocks.options import BlockOptions
    from vfl.solvers.releases.curvature import Curvature

    Message = dict[str, tuple[Step, ...]]
    Draws = tuple[int, tuple[Draw, ...]]

COUNTED = 1 << 17
"""Number of draws that a plan simulates to count messages. For longer runs the plan extrapolates."""


@dataclass(eq=False)
class Walk:
    """Sequence of block updates of a resolved SkGD: draws → messages → steps. Given the released M, the sequence is public.

    factor : factor on the record cap, computed from released values. The factor changes only between passes.
    multipliers : ((z, number of passes), ...), the noise multipliers of the block releases, in order. The last z applies until
        the end of the run. () means no noise.
    """

    solver: BlockOptions
    problem: Problem
    known: Curvature
    multipliers: tuple[tuple[float, int], ...] = ()
    factor: float = 1.0
    _made: dict[tuple[float | None, float, float], dict[tuple[int, int], Step]] = field(default_factory=dict)
    _caps: dict[float, RecordCap] = field(default_factory=dict)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks in the order of the layout."""
        return self.problem.layout.blocks(self.solver.block_size)

    @property
    def sampler(self) -> Sampler:
        """Sampler that the solver's options name."""
        return sampler_of(self.solver.sampling, self.solver.tau)

    @property
    def draws_a_pass(self) -> int:
        """Number of draws per pass. Together the draws contain as many blocks as the layout has, `local_passes` times."""
        count = len(self.blocks)
        return -(-count // self.sampler.width(count)) * self.solver.turns

    @property
    def n_draws(self) -> int:
        """Number of draws of the whole run."""
        return (self.solver.outer_rounds or 1) * (self.solver.inner_rounds or 1)

    @property
    def n_releases(self) -> int:
        """Number of block releases of the whole run. The number does not depend on which blocks are drawn."""
        return self.n_draws * self.sampler.width(len(self.blocks))

    @property
    def n_passes(self) -> int:
        """Number of passes of the whole run, including the last one even if it is incomplete."""
        return -(-self.n_draws // self.draws_a_pass)

    @property
    def skipped(self) -> int:
        """Number of block updates before the tail, which the average omits."""
        early = self.n_releases * record_defaults.early_passes(self.n_passes) // self.n_passes
        return early if self.solver.by_pass else self.n_releases // 2

    def geometry(self, block: Block) -> tuple[Vector, Clip]:
        """Return a scale for the products r_i x_{i,S} of the columns S of a block, and the cap on the norm of a scaled product.

        Under a record cap, the unit of residuals multiplies the cap, since record norms use the same scale. If a block is
        clipped separately, the unit divides the scale, so that events do not depend on the unit.
        """
        solver, known = self.solver, self.known
        S, M = block.coordinates, known.smoothness[block.coordinates]
        isotropic = solver.noise_geometry == "isotropic"
        scale = np.ones(block.size) if isotropic else 1.0 / np.sqrt(M)
        if solver.clip == RECORD:
            layout = self.problem.layout
            size = math.sqrt(float(known.smoothness.sum()) / layout.width if isotropic else layout.n_used)
            cap = float(solver.decided.record_clip or math.inf) * size * known.unit * self.factor
            return scale, Clip(cap, layout.n_coordinates)
        scale /= known.unit
        if solver.clip == BOUNDS:
            farthest = (scale * (self.problem.reach[S] + abs(known.centre[S])))[:: self.problem.layout.width]
            return scale, Clip(self.problem.loss.slope * math.sqrt(float(farthest @ farthest)), block.size)
        κ = float(solver.clip or math.inf)
        size = float(M.sum()) / self.problem.layout.width if isotropic else self.columns(block)
        return scale, Clip(κ * math.sqrt(size), block.size)

    def cap(self) -> RecordCap | None:
        """Return the record cap that all passes share; None if blocks are clipped separately, or not at all.

        Passes are charged in units of the sensitivity Δ, because the cap may depend on a released unit of residuals. In units
        of Δ the charged σ is slightly below z, so that the charge covers the rounding of σ = zΔ.
        """
        if self.solver.clip != RECORD:
            return None
        if self.factor in self._caps:
            return self._caps[self.factor]
        rows = {}
        for party, whole in self.problem.layout.whole().items():
            rows[party] = whole, self.known.centre[whole.coordinates], self.geometry(whole)[0]
        prices = tuple(
            (Gaussian(Adjacency.REPLACE_ONE, 1.0, math.nextafter(z, 0.0), self.problem.layout.n_coordinates), count)
            for z, count in self.multipliers
        )
        self._caps[self.factor] = RecordCap(self.geometry(self.blocks[0])[1].cap, rows, prices)
        return self._caps[self.factor]

    def clips(self, z: float | None) -> dict[Clip, Gaussian | None]:
        """Return {clip: event of a sum under this clip}. The noise has standard deviation zΔ."""
        return {
            clip: clip.event(z) if z is not None else None
            for clip in dict.fromkeys(self.geometry(block)[1] for block in self.blocks)
        }

    def steps(self, z: float | None = None, length: float = 1.0) -> tuple[Step, ...]:
        """Return the step of each block: a release, and the update that follows if no other block moves at the same time.

        length : length of the steps, in units of γ.
        """
        # Equal clips and events are shared, so that pickle sends each one once.
        shared = {clip: (clip, event) for clip, event in self.clips(z).items()}
        steps = []
        for block in self.blocks:
            scale, clip = self.geometry(block)
            centre = self.known.centre[block.coordinates]
            rule = self.rule(block, self.columns(block) / length)
            steps.append(Step(block, centre, scale, shared[clip][0], rule, shared[clip][1]))
        return tuple(steps)

    def columns(self, block: Block) -> int:
        """Return the number of columns of a block. With K classes, each column has K coordinates, which move together."""
        return block.size // self.problem.layout.width

    def rule(self, block: Block, moving: float) -> ProxStep:
        """Return the update of a block while `moving` columns move at once: s_j = γ/(β M_j) with β = `moving`.

        The correlation between columns of different blocks is unknown, so no smaller β is safe. The K classes of a column
        need no division: M_j bounds them together (vfl.losses.Multinomial).
        """
        problem, S = self.problem, block.coordinates
        curvature, terms = self.known.smoothness[S], problem.terms
        if terms is not None:
            curvature = curvature + terms.curvature(problem.layout.n_coordinates)[S]
        s = (self.solver.step_size or 1.0) / (moving * curvature)
        scale, _ = self.geometry(block)
        gain, steps = s / (problem.n_records * scale), s * problem.penalised[S]
        near, pull = ((), np.zeros(0)) if terms is None else terms.rows(S)
        if terms is not None and near:
            own = tuple(j - block.offset for j in near)
            return ColumnStep(
                gain, steps, problem.penalty, terms.low[S], terms.high[S], tuple(pull.ravel().tolist()), own
            )
        if problem.layout.classes:
            return ClassesStep(gain, steps, problem.penalty, problem.layout.width)
        return ProxStep(gain, steps, problem.penalty)

    def outer(self) -> Iterator[Iterator[Draws]]:
        """Yield, for each outer round, an iterator over (pass, draws of one message). Exhaust each before the next."""
        indices = self._indices()
        for _ in range(self.solver.outer_rounds or 1):
            yield self._messages(self._draws(indices))

    def message(self, number: int, draws: Iterable[Draw]) -> Message:
        """Return the steps of a message, by party. number : number of the pass."""
        z, made = self._multiplier(number), Counter[int]()
        steps: list[Step] = []
        for draw in draws:
            steps += self._together(z, draw, length_of(made[draw[0]], self.solver.turns))
            made[draw[0]] += 1
        return {party: tuple(own) for party, own in groupby(steps, key=lambda step: step.block.party)}

    def messages(self) -> tuple[int, int]:
        """Return the number of messages, and the number of parties in all messages together."""
        solver, owners = self.solver, [block.party for block in self.blocks]
        rounds = solver.outer_rounds or 1
        counted = min(rounds, -(-COUNTED // (solver.inner_rounds or 1)))
        messages = asked = 0
        for draws in islice(self.outer(), counted):
            for _, drawn in draws:
                messages += 1
                asked += 1 if solver.several_steps else len({owners[b] for draw in drawn for b in draw})
        return round(messages * rounds / counted), round(asked * rounds / counted)

    def _together(self, z: float | None, draw: Draw, length: float) -> tuple[Step, ...]:
        """Return the steps of the blocks in one draw. These blocks move at the same time, so each step is shorter."""
        known = self._made.setdefault((z, self.factor, length), {})
        if (0, 0) not in known:
            known.update({(block, 0): step for block, step in enumerate(self.steps(z, length))})
        if len(draw) == 1:
            return (known[draw[0], 0],)
        blocks = self.blocks
        moving = sum(self.columns(blocks[b]) for b in draw)
        for b in draw:
            if (b, moving) not in known:
                known[b, moving] = replace(known[b, 0], rule=self.rule(blocks[b], moving))
        return tuple(known[b, moving] for b in draw)

    def _messages(self, draws: Iterable[tuple[int, Draw]]) -> Iterator[Draws]:
        """Return the messages for some draws: one per draw, or one per run of draws from one party if messages have many steps.

        A message ends with its pass if the run may stop there, or if a pass is charged as one release.
        """
        if not self.solver.several_steps:
            yield from ((number, (draw,)) for number, draw in draws)
            return
        owners = [block.party for block in self.blocks]
        ends = self.solver.tol is not None or self.solver.clip == RECORD
        for (_, number), run in groupby(draws, key=lambda it: (owners[it[1][0]], it[0] if ends else 0)):
            yield number, tuple(draw for _, draw in run)

    def _multiplier(self, number: int) -> float | None:
        if not self.multipliers:
            return None
        ends = itertools.accumulate(count for _, count in self.multipliers)
        z = next(
            (z for (z, _), end in zip(self.multipliers, ends, strict=True) if number < end), self.multipliers[-1][0]
        )
        turns = self.solver.turns  # the factor 1 + 2⁻⁵⁰ covers the rounding of √turns, of the product and of σ = zΔ
        return z if turns == 1 else z * math.sqrt(turns) * (1.0 + 2.0**-50)

    def _indices(self) -> Iterator[tuple[int, Draw]]:
        """Yield pairs (number of the pass, draw of blocks) without end, in the order that the public seed determines."""
        rng = np.random.default_rng(self.solver.seed)
        kept = WINDOW if accelerated(self.solver, self.problem) else 1  # passes with the same order
        draws: list[Draw] = []
        for number in itertools.count():
            if number % kept == 0:
                turns = [self.sampler.draws(self.blocks, self.known.smoothness, rng) for _ in range(self.solver.turns)]
                draws = list(itertools.chain.from_iterable(turns))
                if self.solver.parallel == 1 and self.solver.message == "party":
                    draws = grouped_by_owner(draws, self.blocks)
            yield from ((number, draw) for draw in draws)

    def _draws(self, indices: Iterator[tuple[int, Draw]]) -> Iterator[tuple[int, Draw]]:
        """Yield the draws of one outer round. If parties work in parallel, the draws of a pass are joined into rounds."""
        drawn = islice(indices, self.solver.inner_rounds or 0)
        if self.solver.parallel == 1:
            yield from drawn
            return
        for number, run in groupby(drawn, key=itemgetter(0)):
            for draw in in_parallel([draw for _, draw in run], self.blocks, self.solver.parallel):
                yield number, draw
