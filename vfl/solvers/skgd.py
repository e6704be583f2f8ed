"""DP-SkGD with block sampling (Maranjyan, Sadiev, Richtárik 2024), proximal as DP-CD (Mangold et al. 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.messages import Descend, Forward, Step
from vfl.privacy.calibration import noise_multiplier, split
from vfl.privacy.geometry import Clip
from vfl.privacy.spending import mu_squared
from vfl.samplers import grouped_by_owner, sampler_of
from vfl.solvers import defaults
from vfl.solvers.protocol import Derivative
from vfl.solvers.smoothness import Curvature, buys_moments, curvature, moments_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vfl.penalties import Penalty
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.samplers import Sampler
    from vfl.solvers.protocol import Schedule
    from vfl.types import Vector

SWEEPS = ("party", "visit", "block")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SkGD:
    """DP-SkGD with block sampling. Options left at None are decided by public rules (`vfl.plan` says which and why).

    block_size : columns a block; blocks never span two parties. Left out when the partition names blocks.
    sampling : 'shuffled', 'cyclic', 'uniform', 'importance', 'nice' (with `tau`), 'full'.
    passes : passes over the coordinates, or give outer_rounds and inner_rounds.
    outer_rounds, inner_rounds : T and K of the paper; Xw is rebuilt at the start of every outer round.
    clip : κ, cap on one record's gradient in units of √M_j, per coordinate: a block's cap is κ√|S|. inf: no clipping.
    step_size : γ in the step γ/(β_S M_j) with the data-independent β_S = |S|.
    sweep : 'party' (a party's turn is one message, and a pass is grouped by party), 'visit' (only runs that the order
        happens to contain), 'block' (one block a message; parties see residuals only).
    seed : orders blocks; public.
    """

    block_size: int | None = None
    sampling: str = "shuffled"
    tau: int | None = None
    passes: int | None = None
    outer_rounds: int | None = None
    inner_rounds: int | None = None
    clip: float | None = None
    step_size: float = 1.0
    sweep: str = "party"
    seed: int = 0

    name: ClassVar[str] = "SkGD"

    def __post_init__(self) -> None:
        for option in ("block_size", "passes", "outer_rounds", "inner_rounds"):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SpecificationError(f"SkGD: {option} must be a whole number of at least 1, not {value!r}")
        if self.clip is not None and not self.clip > 0:
            raise SpecificationError(f"SkGD: clip must be positive, not {self.clip!r}")
        if not (math.isfinite(self.step_size) and self.step_size > 0):
            raise SpecificationError(f"SkGD: step_size must be positive and finite, not {self.step_size!r}")
        if self.sweep not in SWEEPS:
            raise SpecificationError(f"SkGD: sweep must be one of {', '.join(SWEEPS)}, not {self.sweep!r}")
        if self.passes is not None and self.inner_rounds is not None:
            raise SpecificationError("SkGD: give passes, or outer_rounds and inner_rounds, not both")
        sampler_of(self.sampling, self.tau)

    def resolve(self, problem: Problem) -> Self:
        """Return the same solver with every option decided from public facts (vfl.solvers.defaults)."""
        if problem.private and self.clip is not None and math.isinf(self.clip):
            raise PrivacyError(
                "SkGD: clip=inf bounds no record's influence: give a finite clip, or train with privacy=None"
            )
        size = self.block_size
        if size is None and problem.layout.explicit is None:
            size = defaults.block_size(problem)
        solver = replace(self, block_size=size)
        if solver.inner_rounds is None:
            passes = self.passes or defaults.passes(problem)
            outer = self.outer_rounds or defaults.outer_rounds(passes)
            inner = -(-passes * solver._draws_a_pass(problem) // outer)
            solver = replace(solver, passes=None, outer_rounds=outer, inner_rounds=inner)
        clip = self.clip if self.clip is not None else defaults.clip(problem)
        return replace(solver, outer_rounds=solver.outer_rounds or 1, clip=clip)

    def schedule(self, problem: Problem) -> Schedule:
        """Run DESIGN §3: for t < T, rebuild Xθ; for K draws, release the block and take its prox step."""
        known = yield from curvature(problem)
        draws = self._draws(known, self._steps(problem, known))
        weighting = Derivative(problem.loss)
        whole = problem.layout.whole()
        w = np.zeros(problem.layout.n_coordinates)
        for t in range(self.outer_rounds or 0):
            if t:
                v = known.uncentred(w, problem.intercept)
                yield Forward({q: (block, v[block.coordinates]) for q, block in whole.items()}, into="reset")
            θ = w.copy()
            for visit in self._visits(islice(draws, self.inner_rounds)):
                query = Descend(weighting, visit, {q: θ[whole[q].coordinates] for q in visit}, sweep=self._sweeps)
                try:
                    released = yield query
                except BudgetExceeded:  # a resumed run that paid twice for what was lost ends with what it has
                    return known.uncentred(θ, problem.intercept)
                for step, u in zip(query.ordered(), released, strict=True):
                    S = step.block.coordinates
                    θ[S] += step.rule(θ[S], u)
            w = θ
        return known.uncentred(w, problem.intercept)

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return private moments, if any, and T·K draws of block releases, which all cost the same."""
        if not problem.private:
            return ()
        bought = moments_event(problem)
        z = self._noise_multiplier(problem)
        sizes = {block.size for block in problem.layout.blocks(self.block_size)}
        # σ = zΔ is rounded, so costs differ in the last bit between sizes of block: count each draw as the dearest.
        block = max((self._clip(size).event(z) for size in sizes), key=mu_squared)
        return (*(((bought, 1),) if bought else ()), (block, self._n_releases(problem)))

    def round_trips(self, problem: Problem) -> int:
        """Return how many messages a run waits for: visits, rebuilds, and one for smoothness."""
        p = problem.layout.n_coordinates
        flat = Curvature(np.zeros(p), np.ones(p))
        draws = self._draws(flat, self._steps(problem, flat))
        outer = self.outer_rounds or 0
        return outer + sum(1 for _ in range(outer) for _ in self._visits(islice(draws, self.inner_rounds)))

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence for every option that was decided."""
        return defaults.explain(problem, self)

    @property
    def adaptive(self) -> bool:
        """Importance sampling draws blocks by the released M."""
        return self.sampling == "importance"

    @property
    def _sweeps(self) -> bool:
        return self.sweep != "block" and self.sampling not in ("nice", "full")

    def _sampler(self) -> Sampler:
        return sampler_of(self.sampling, self.tau)

    def _draws_a_pass(self, problem: Problem) -> int:
        n_blocks = len(problem.layout.blocks(self.block_size))
        return -(-n_blocks // self._sampler().width(n_blocks))

    def _n_releases(self, problem: Problem) -> int:
        width = self._sampler().width(len(problem.layout.blocks(self.block_size)))
        return (self.outer_rounds or 1) * (self.inner_rounds or 1) * width

    def _clip(self, size: int) -> Clip:
        return Clip((self.clip or math.inf) * math.sqrt(size), size)

    def _noise_multiplier(self, problem: Problem) -> float:
        """Return z: the releases share evenly what the moments leave of μ²."""
        mu = problem.mu or math.inf
        left = split(mu, problem.smoothness_share)[1] if buys_moments(problem) else mu
        return noise_multiplier(left, self._n_releases(problem))

    def _steps(self, problem: Problem, known: Curvature) -> tuple[Step, ...]:
        """Return what a release of each block and its update are: s_j = γ/(β M_j), β = |S| over all blocks of a draw."""
        blocks = problem.layout.blocks(self.block_size)
        width = self._sampler().width(len(blocks))
        z = self._noise_multiplier(problem) if problem.private else None
        penalised, M = problem.penalised, known.smoothness
        steps = []
        for block in blocks:
            S = block.coordinates
            β = sum(sorted((other.size for other in blocks), reverse=True)[:width]) if width > 1 else block.size
            s = self.step_size / (β * M[S])
            scale = 1.0 / np.sqrt(M[S])
            rule = ProxStep(s / (problem.n_records * scale), s * penalised[S], problem.penalty)
            clip = self._clip(block.size)
            steps.append(Step(block, known.centre[S], scale, clip, rule, clip.event(z) if z is not None else None))
        return tuple(steps)

    def _draws(self, known: Curvature, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
        """Yield draws of blocks for ever, pass after pass, in the order that the seed fixes."""
        rng = np.random.default_rng(self.seed)
        blocks = [step.block for step in steps]
        while True:
            draws = self._sampler().draws(blocks, known.smoothness, rng)
            for draw in grouped_by_owner(draws, blocks) if self.sweep == "party" else draws:
                yield tuple(steps[b] for b in draw)

    def _visits(self, draws: Iterable[tuple[Step, ...]]) -> Iterator[dict[str, tuple[Step, ...]]]:
        """Join draws into visits: maximal runs of one owner where sweeps are allowed, else one draw each."""
        if self._sweeps:
            for owner, run in groupby(draws, key=lambda draw: draw[0].block.party):
                yield {owner: tuple(step for draw in run for step in draw)}
        else:
            for draw in draws:
                yield {q: tuple(own) for q, own in groupby(draw, key=lambda step: step.block.party)}
