"""DP-SkGD with block sampling (Maranjyan, Sadiev, Richtárik 2024), proximal as DP-CD (Mangold et al. 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from vfl.arguments import require_number
from vfl.errors import BudgetExceeded, PartyLost, PrivacyError, SpecificationError
from vfl.messages import Descend, Forward, Step, packed, unpacked
from vfl.privacy.calibration import noise_multiplier, split
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip
from vfl.privacy.spending import mu_squared
from vfl.samplers import grouped_by_owner, in_parallel, sampler_of
from vfl.solvers import defaults
from vfl.solvers.average import Average
from vfl.solvers.labels import labels_event, spread
from vfl.solvers.protocol import Derivative
from vfl.solvers.smoothness import (
    Curvature,
    asks_moments,
    buys_moments,
    curvature,
    moments_event,
    require_bearable,
    require_curvature,
    require_representable,
)
from vfl.solvers.standstill import Standstill, describe, require_tolerance, tolerance
from vfl.types import Adjacency

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from vfl.messages import Block, Query
    from vfl.penalties import Penalty
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.samplers import Draw, Sampler
    from vfl.solvers.protocol import Released, Schedule
    from vfl.types import Vector

SWEEPS = ("party", "visit", "block")
ITERATES = ("last", "average", "tail")
GEOMETRIES = ("scaled", "isotropic")
BOUNDS = "bounds"
COUNTED = 1 << 17
"""Draws after which a plan no longer counts one by one in how many messages they come."""


@dataclass(frozen=True, slots=True, eq=False)
class ProxStep:
    """Δ = prox_{s ψ}(w_S − s √M u/n) − w_S, a function of released values (DESIGN §3).

    gain : (s,) s_j/(n·scale_j), what multiplies u.
    steps : (s,) s_j, 0 for an unpenalised coordinate, where the prox is the identity.
    """

    gain: Vector
    steps: Vector
    penalty: Penalty

    def __call__(self, w: Vector, u: Vector) -> Vector:
        """Return Δ, (s,)."""
        return self.penalty.prox(w - self.gain * u, self.steps) - w

    def __reduce__(self) -> tuple[Any, ...]:
        return _prox_step, (packed(self.gain), packed(self.steps), self.penalty)


def _prox_step(gain: bytes, steps: bytes, penalty: Penalty) -> ProxStep:
    return ProxStep(unpacked(gain), unpacked(steps), penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkGD:
    """DP-SkGD with block sampling. Options left at None are decided by public rules (`vfl.plan` says which and why).

    block_size : columns a block; blocks never span two parties. Left out when the partition names blocks.
    sampling : 'shuffled', 'cyclic', 'uniform', 'importance', 'nice' (with `tau`), 'full'.
    parallel : blocks of up to so many different parties are updated at once, from the same margins. It joins the draws of
        a pass into fewer rounds; which blocks are drawn, and how many, does not change.
    passes : passes over the coordinates, or give outer_rounds and inner_rounds.
    outer_rounds, inner_rounds : T and K of the paper, K counts draws; Xw is rebuilt at the start of every outer round.
    clip : κ, cap on one record's gradient in units of √M_j, per coordinate: a block's cap is κ√|S|. inf: no clipping.
        'bounds': what the loss's largest derivative and the declared bounds allow, so that nothing is ever clipped.
    label_share : share of μ², of what the moments leave, that buys mean and spread of the labels (vfl.solvers.labels): the
        intercept starts at the mean, and the cap is κ times the spread over that of typical labels (`typical_spread` of
        vfl.solvers.defaults). 0 buys nothing, as does a clip that is given: then κ is the cap as it stands.
    noise_geometry : 'scaled' clips and noises M_S^{-1/2} r_i x_{i,S}, so each coordinate gets noise in its own unit;
        'isotropic' (the DP-SkGD paper) clips r_i x_{i,S} itself at κ√(Σ M_j).
    step_size : γ in the step γ/(β_S M_j) with the data-independent β_S = |S|, of all blocks that move at once.
    tol : without privacy, stop once whole steps would move no coordinate by more than this share of the largest one
        (vfl.solvers.standstill), at the iterate that stands still. None: 1e-9, or no stop where the number of steps is
        given. Refused with privacy: how many steps a private run makes never depends on data.
    iterate : what an outer round ends with: its 'last' θ or the 'average' of its θ (the paper's); 'tail' ends with the
        average of the last half of the whole run.
    sweep : 'party' (a party's turn is one message, and a pass is grouped by party), 'visit' (only runs that the order
        happens to contain), 'block' (one block a message; parties see residuals only).
    seed : orders blocks; public.
    """

    block_size: int | None = None
    sampling: str = "shuffled"
    tau: int | None = None
    parallel: int = 1
    passes: int | None = None
    outer_rounds: int | None = None
    inner_rounds: int | None = None
    clip: float | str | None = None
    label_share: float | None = None
    noise_geometry: str = "scaled"
    step_size: float | None = None
    tol: float | None = None
    iterate: str | None = None
    sweep: str = "party"
    seed: int = 0

    name: ClassVar[str] = "SkGD"
    sealed: ClassVar[bool] = False
    goes_on_without: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for option in ("block_size", "passes", "outer_rounds", "inner_rounds", "parallel"):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SpecificationError(f"{self.name}: {option} must be a whole number of at least 1, not {value!r}")
        for option in ("clip", "step_size", "label_share"):
            value = getattr(self, option)
            if value is not None and not (option == "clip" and isinstance(value, str)):
                require_number(f"{self.name}: {option}", value)
        if isinstance(self.clip, str):
            if self.clip != BOUNDS:
                raise SpecificationError(
                    f"{self.name}: clip must be a positive number or {BOUNDS!r}, not {self.clip!r}"
                )
        elif self.clip is not None and not self.clip > 0:
            raise SpecificationError(f"{self.name}: clip must be positive, not {self.clip!r}")
        elif self.clip is not None and self.clip < math.inf and not 1e-90 <= self.clip <= 1e90:
            raise SpecificationError(
                f"{self.name}: clip={self.clip!r} is beyond what exact sums can hold: rescale the columns"
            )
        require_tolerance(self.name, self.tol)
        if self.label_share is not None and not 0.0 <= self.label_share < 1.0:
            raise SpecificationError(
                f"{self.name}: label_share must lie between 0 and 1, without 1, not {self.label_share!r}"
            )
        if self.step_size is not None and not (math.isfinite(self.step_size) and self.step_size > 0):
            raise SpecificationError(f"{self.name}: step_size must be positive and finite, not {self.step_size!r}")
        for option, known in (("sweep", SWEEPS), ("iterate", ITERATES), ("noise_geometry", GEOMETRIES)):
            value = getattr(self, option)
            if value not in known and not (option == "iterate" and value is None):
                raise SpecificationError(f"{self.name}: {option} must be one of {', '.join(known)}, not {value!r}")
        if self.passes is not None and self.inner_rounds is not None:
            raise SpecificationError(f"{self.name}: give passes, or outer_rounds and inner_rounds, not both")
        if self.parallel > 1 and self.sampling in ("nice", "full"):
            raise SpecificationError(
                f"{self.name}: sampling={self.sampling!r} draws several blocks by itself: leave parallel at 1"
            )
        sampler_of(self.sampling, self.tau)

    def resolve(self, problem: Problem) -> Self:
        """Return the same solver with every option decided from public facts (vfl.solvers.defaults)."""
        self._check(problem)
        size = self.block_size
        if size is None and problem.layout.explicit is None:
            size = defaults.block_size(problem)
        solver = replace(self, block_size=size)
        if solver.inner_rounds is None:
            passes = self.passes or defaults.passes(problem)
            outer = self.outer_rounds or defaults.outer_rounds(passes)
            inner = -(-passes * solver._draws_a_pass(problem) // outer)
            solver = replace(solver, passes=None, outer_rounds=outer, inner_rounds=inner)
        return replace(
            solver,
            outer_rounds=solver.outer_rounds or 1,
            clip=self.clip if self.clip is not None else defaults.clip(problem),
            label_share=self._label_share(problem),
            step_size=self.step_size if self.step_size is not None else defaults.step_size(problem),
            iterate=self.iterate or defaults.iterate(problem),
            tol=tolerance(self.name, problem, self.tol, limited=(self.passes or self.inner_rounds) is not None),
        )

    def _label_share(self, problem: Problem) -> float:
        if self.label_share is None:
            return defaults.label_share(problem) if self.clip is None else 0.0
        if self.label_share and not (problem.private and defaults.has_spread(problem)):
            raise SpecificationError(
                f"{self.name}: label_share={self.label_share!r} buys the spread of labels: it needs squared loss, an "
                "intercept, declared bounds for the label, and privacy; leave it out"
            )
        return self.label_share

    def _check(self, problem: Problem) -> None:
        require_representable(problem)
        require_curvature(self.name, problem)
        if problem.private and self.clip == math.inf:
            raise PrivacyError(
                f"{self.name}: clip=inf bounds no record's influence: give a finite clip, or train with privacy=None"
            )
        if self.clip == BOUNDS and not (math.isfinite(problem.loss.slope) and np.isfinite(problem.reach).all()):
            raise SpecificationError(
                f"{self.name}: clip='bounds' needs a loss with a bounded derivative and bounds for every column; "
                f"{problem.loss.name} loss has slope {problem.loss.slope:g}: give a clip"
            )
        if problem.penalty.grouped and problem.layout.explicit is None:
            raise SpecificationError(
                f"the {problem.penalty.name} penalty groups columns by the partition's blocks: name them, "
                "FeaturePartition(..., blocks=...)"
            )

    def schedule(self, problem: Problem) -> Schedule:
        """Run DESIGN §3: for t < T, rebuild Xθ; for K draws, release the block and take its prox step."""
        known = yield from curvature(problem)
        start, labels = problem.label_centre, self._label_budget(problem)
        if labels is not None:
            found = yield from spread(problem, labels_event(problem, labels))
            start, known = found.mean, replace(known, unit=found.deviation / defaults.typical_spread(problem))
        outer = self._outer(problem, known)
        weighting = Derivative(problem.loss)
        whole = problem.layout.whole()
        mean = Average(self.iterate or "last", self._n_releases(problem) // 2)
        rest = Standstill(self.tol, np.sqrt(known.smoothness), problem.intercept)
        w = problem.intercept * start  # the intercept starts where the labels lie, or are declared to
        there = np.ones(problem.layout.n_coordinates)  # 0 for the coordinates of parties that are given up
        for t, draws in enumerate(outer):
            if t or self._begins(problem):
                w = yield from self._rebuild(problem, known, w, there)
            θ = w.copy()
            for drawn in self._visits(draws, self._draws_a_pass(problem)):
                visit = {q: steps for q, steps in drawn.items() if there[whole[q].coordinates].all()}
                if not visit:
                    continue
                query = Descend(
                    weighting, visit, {q: θ[whole[q].coordinates].copy() for q in visit}, sweep=self._sweeps
                )
                try:
                    released = yield query
                except BudgetExceeded:  # a resumed run that paid twice for what was lost ends with what it has
                    return known.uncentred(mean.final(mean.outer(θ)) * there, problem.intercept)
                except PartyLost as lost:  # nothing came of this visit
                    there[whole[lost.party].coordinates] = 0.0
                    θ = yield from self._rebuild(problem, known, θ, there)
                    continue
                steps = query.ordered()
                moving = sum(step.block.size for step in steps)
                still = False
                for step, u in zip(steps, released, strict=True):
                    S = step.block.coordinates
                    Δ = step.rule(θ[S], u)
                    θ[S] += Δ
                    β = step.block.size if self._sweeps else moving
                    still = rest.after(θ, Δ, S, stretch=max(1.0, β / (self.step_size or 1.0)))
                    if self._sweeps:
                        mean.add(θ, S)
                if not self._sweeps:  # the steps of a query are one draw, and blocks that move together one iterate
                    mean.add(θ, *(step.block.coordinates for step in steps))
                if still:
                    return known.uncentred(θ, problem.intercept)
            w = mean.outer(θ)
        return known.uncentred(mean.final(w) * there, problem.intercept)

    def _rebuild(
        self, problem: Problem, known: Curvature, w: Vector, there: Vector
    ) -> Generator[Query, Released, Vector]:
        """Have Xw computed anew from w, over the parties that are there; returns w with 0 for the others.

        there : (p,) of 0 and 1; set to 0 in place for a party that is lost meanwhile.
        """
        whole = problem.layout.whole()
        while True:
            v = known.uncentred(w * there, problem.intercept)
            present = {q: (block, v[block.coordinates]) for q, block in whole.items() if there[block.coordinates].all()}
            try:
                yield Forward(present, into="reset")
            except PartyLost as lost:
                there[whole[lost.party].coordinates] = 0.0
                continue
            return w * there

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return private moments and labels, if any, and T·K draws of block releases, which all cost the same."""
        if not problem.private:
            return ()
        bought, labels = moments_event(problem), self._label_budget(problem)
        begin = (bought, None if labels is None else labels_event(problem, labels))
        z = self._noise_multiplier(problem)
        largest = max(block.size for block in problem.layout.blocks(self.block_size))
        if self.adaptive:
            # Caps follow the released M. In units of the sensitivity, and dearer than any σ = zΔ rounded once.
            block = Gaussian(Adjacency.REPLACE_ONE, 1.0, math.nextafter(z, 0.0), largest)
        else:
            flat = Curvature.flat(problem)
            clips = {self._geometry(problem, flat, block)[1] for block in problem.layout.blocks(self.block_size)}
            # σ = zΔ is rounded, so costs differ in the last bit between caps: count each draw as the dearest.
            block = max((clip.event(z) for clip in clips), key=mu_squared)
        return (*((event, 1) for event in begin if event), (block, self._n_releases(problem)))

    def round_trips(self, problem: Problem) -> int:
        """Return how many messages a run waits for: visits, rebuilds, and one for smoothness where that is asked for.

        Importance sampling draws by the M that is yet to be released; its visits are counted for equal M. Those of a run
        without privacy are the most that there can be. Long runs are counted in part, and the rest by proportion.
        """
        flat = Curvature.flat(problem)
        a_pass, rounds = self._draws_a_pass(problem), self.outer_rounds or 1
        counted = min(rounds, -(-COUNTED // (self.inner_rounds or 1)))
        some = islice(self._outer(problem, flat), counted)
        visits = round(sum(1 for draws in some for _ in self._visits(draws, a_pass)) * rounds / counted)
        return asks_moments(problem) + self._begins(problem) + rounds - 1 + visits

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence for every option that was decided."""
        return (*defaults.explain(problem, self), *describe(self.tol))

    @property
    def adaptive(self) -> bool:
        """Importance sampling draws blocks by the released M; two options set caps, and so noise, by it."""
        return self.sampling == "importance" or self.noise_geometry == "isotropic" or self.clip == BOUNDS

    @property
    def _sweeps(self) -> bool:
        return self.sweep != "block" and self.sampling not in ("nice", "full") and self.parallel == 1

    @property
    def _n_draws(self) -> int:
        return (self.outer_rounds or 1) * (self.inner_rounds or 1)

    def _sampler(self) -> Sampler:
        return sampler_of(self.sampling, self.tau)

    def _draws_a_pass(self, problem: Problem) -> int:
        blocks = problem.layout.blocks(self.block_size)
        return -(-len(blocks) // self._sampler().width(len(blocks)))

    def _n_releases(self, problem: Problem) -> int:
        """Return how many releases the draws come to, whatever is drawn."""
        return self._n_draws * self._sampler().width(len(problem.layout.blocks(self.block_size)))

    def _begins(self, problem: Problem) -> bool:
        """Whether the run starts elsewhere than at 0; a public fact, so that all runs of a plan ask the same queries."""
        return bool(self.label_share) or bool((problem.intercept * problem.label_centre).any())

    def _left(self, problem: Problem) -> float:
        """Return what the moments leave of μ."""
        mu = problem.mu or math.inf
        return split(mu, problem.smoothness_share)[1] if buys_moments(problem) else mu

    def _label_budget(self, problem: Problem) -> float | None:
        """Return μ of the labels' spread, None where it is not bought."""
        return split(self._left(problem), self.label_share)[0] if self.label_share else None

    def _noise_multiplier(self, problem: Problem) -> float:
        """Return z: the releases share evenly what the moments and the labels leave of μ²."""
        left = self._left(problem)
        if self.label_share:
            left = split(left, self.label_share)[1]
        z = noise_multiplier(left, self._n_releases(problem))
        require_bearable(2.0 * z)
        return math.nextafter(z, math.inf) if self.adaptive else z

    def _geometry(self, problem: Problem, known: Curvature, block: Block) -> tuple[Vector, Clip]:
        """Return what multiplies r_i x_{i,S}, and the cap on the norm of that: one place for both.

        The unit of residuals divides what is clipped instead of raising the cap, so that events are the same for any.
        """
        S, M = block.coordinates, known.smoothness[block.coordinates]
        scale = (np.ones(block.size) if self.noise_geometry == "isotropic" else 1.0 / np.sqrt(M)) / known.unit
        if self.clip == BOUNDS:
            farthest = scale * (problem.reach[S] + abs(known.centre[S]))
            return scale, Clip(problem.loss.slope * math.sqrt(float(farthest @ farthest)), block.size)
        κ = float(self.clip or math.inf)
        unit = math.sqrt(float(M.sum())) if self.noise_geometry == "isotropic" else math.sqrt(block.size)
        return scale, Clip(κ * unit, block.size)

    def _steps(self, problem: Problem, known: Curvature) -> tuple[Step, ...]:
        """Return what a release of each block and its update are where it moves alone."""
        z = self._noise_multiplier(problem) if problem.private else None
        steps = []
        same: dict[Clip, tuple[Clip, Gaussian | None]] = {}  # equal ones are one, which travels once in a message
        for block in problem.layout.blocks(self.block_size):
            scale, clip = self._geometry(problem, known, block)
            clip, event = same.setdefault(clip, (clip, clip.event(z) if z is not None else None))
            rule = self._rule(problem, known, block, block.size)
            steps.append(Step(block, known.centre[block.coordinates], scale, clip, rule, event))
        return tuple(steps)

    def _rule(self, problem: Problem, known: Curvature, block: Block, moving: int) -> ProxStep:
        """Return the update of a block while so many coordinates move at once: s_j = γ/(β M_j), β = |S| of all of them.

        Nothing is known of how the columns of different blocks go together, so nothing less is safe.
        """
        S, M = block.coordinates, known.smoothness[block.coordinates]
        s = (self.step_size or 1.0) / (moving * M)
        scale, _ = self._geometry(problem, known, block)
        return ProxStep(s / (problem.n_records * scale), s * problem.penalised[S], problem.penalty)

    def _indices(self, known: Curvature, blocks: Sequence[Block]) -> Iterator[Draw]:
        """Yield draws of blocks for ever, pass after pass, in the order that the seed fixes."""
        rng = np.random.default_rng(self.seed)
        while True:
            draws = self._sampler().draws(blocks, known.smoothness, rng)
            if self.parallel == 1 and self.sweep == "party":
                draws = grouped_by_owner(draws, blocks)
            yield from draws

    def _outer(self, problem: Problem, known: Curvature) -> Iterator[Iterator[tuple[Step, ...]]]:
        """Yield, for each outer round, the steps that are made together, in turn; each to be used up before the next."""
        steps = self._steps(problem, known)
        blocks = [step.block for step in steps]
        indices = self._indices(known, blocks)
        shared: dict[tuple[int, int], Step] = {}

        def together(draw: Draw) -> tuple[Step, ...]:
            if len(draw) == 1:
                return (steps[draw[0]],)
            moving = sum(blocks[b].size for b in draw)
            for b in draw:
                if (b, moving) not in shared:
                    shared[b, moving] = replace(steps[b], rule=self._rule(problem, known, blocks[b], moving))
            return tuple(shared[b, moving] for b in draw)

        def rounds() -> Iterator[Draw]:
            left = self.inner_rounds or 0
            while left > 0:  # pass by pass: the order of what is drawn moves by less than one
                drawn = list(islice(indices, min(left, len(blocks))))
                left -= len(drawn)
                yield from in_parallel(drawn, blocks, self.parallel) if self.parallel > 1 else drawn

        for _ in range(self.outer_rounds or 1):
            yield map(together, rounds())

    def _visits(self, draws: Iterable[tuple[Step, ...]], a_pass: int) -> Iterator[dict[str, tuple[Step, ...]]]:
        """Join draws into visits: maximal runs of one owner where sweeps are allowed, else one draw each.

        a_pass : draws in a pass, whose end ends a visit where the run may stop then.
        """
        if self._sweeps:
            last = math.inf if self.tol is None else a_pass
            for (owner, _), run in groupby(enumerate(draws), key=lambda it: (it[1][0].block.party, it[0] // last)):
                yield {owner: tuple(step for _, draw in run for step in draw)}
        else:
            for draw in draws:
                yield {q: tuple(own) for q, own in groupby(draw, key=lambda step: step.block.party)}
