"""DP-SkGD with block sampling (Maranjyan, Sadiev, Richtárik 2024), proximal as DP-CD (Mangold et al. 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.arguments import as_floats, require_number
from vfl.errors import WITHOUT_PRIVACY, BudgetExceeded, PrivacyError, SpecificationError
from vfl.messages import Descend
from vfl.privacy.calibration import noise_multiplier, split
from vfl.privacy.events import Gaussian
from vfl.privacy.spending import mu_squared
from vfl.samplers import sampler_of
from vfl.solvers import counts, defaults, record_defaults
from vfl.solvers.average import Average
from vfl.solvers.labels import balance_event, labels_event, log_odds, spread
from vfl.solvers.presence import Presence
from vfl.solvers.protocol import Derivative
from vfl.solvers.residuals import best_cap, residuals_event
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
from vfl.solvers.trail import Trail
from vfl.solvers.visits import BOUNDS, COORDINATE, RECORD, Walk
from vfl.types import Adjacency

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfl.losses import Loss
    from vfl.messages import Query
    from vfl.privacy.events import Event
    from vfl.problem import Problem
    from vfl.solvers.protocol import Released, Schedule

SWEEPS = ("party", "visit", "block")
ITERATES = ("last", "average", "tail")
GEOMETRIES = ("scaled", "isotropic")
CLIPS = (RECORD, COORDINATE, BOUNDS)
ONCE_A_PASS = ("shuffled", "cyclic", "full")
COUNTED = 1 << 17
"""Draws after which a plan counts messages by proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkGD:
    """DP-SkGD with block sampling. Public rules decide the options left at None; `vfl.plan` says which and why.

    block_size : columns per block; blocks never span two parties. Leave it out when the partition names blocks.
    sampling : 'shuffled', 'cyclic', 'uniform', 'importance', 'nice' (with `tau`), 'full'.
    parallel : update the blocks of up to this many different parties at once, from the same margins. The draws of a pass
        are joined into fewer rounds; the blocks drawn, and their number, stay the same.
    passes : passes over the coordinates; or give outer_rounds and inner_rounds.
    outer_rounds, inner_rounds : T and K of the paper, K counts draws; Xw is rebuilt at the start of every outer round.
    clip : None: 'record' where the order is without replacement, but for squared loss without an intercept; else 'coordinate'.
        'record': the residual of a record is capped so that its contributions to all coordinates have norm at most C,
        and a pass over all blocks is charged as one release of sensitivity 2C; it needs an order without replacement.
        'coordinate', or a number κ: every block is clipped and charged by itself, at κ per coordinate in units of √M_j; a
        block's cap is κ√|S|. 'bounds': the cap that the loss's largest derivative and the declared bounds imply, so that
        nothing is clipped. inf: no clipping.
    record_clip : C/√p of clip='record', in units of √M_j.
    early_share : of clip='record': share of the passes' μ² that the first 30 % of the passes spend; the average of the
        tail leaves these out. 0 spends evenly.
    residual_share : of clip='record' and squared loss: share of the passes' μ² that buys, after the early passes, a
        histogram of residuals, by which C is then chosen (vfl.solvers.residuals). 0 buys nothing.
    spares : passes that are set aside for repeats, with clip='record': a run that loses an answer, or is resumed, charges
        one more pass for what may have been released before. Without spares its last passes are not made.
    label_share : share of μ² after the moments that buys mean and spread of the labels (vfl.solvers.labels): the
        intercept starts at the mean, and the cap is κ times the spread over that of typical labels (`typical_spread` of
        vfl.solvers.defaults). For logistic loss with clip='record' it buys the share of positive labels, and the intercept
        starts at their log-odds. 0 buys nothing, and neither does a given clip: then κ is the cap as it stands.
    noise_geometry : 'scaled' clips and noises M_S^{-1/2} r_i x_{i,S}, so each coordinate gets noise in its own unit;
        'isotropic' (the DP-SkGD paper) clips r_i x_{i,S} itself at κ√(Σ M_j).
    step_size : γ in the step γ/(β_S M_j) with the data-independent β_S = |S|, of all blocks that move at once.
    tol : without privacy, stop once whole steps would move no coordinate by more than this share of the largest one
        (vfl.solvers.standstill), at the iterate that stands still. None: 1e-9, or no stop where the number of steps is
        given. Refused with privacy: the number of steps of a private run never depends on data.
    iterate : the model that an outer round ends with: its 'last' θ or the 'average' of its θ (the paper's); 'tail' ends
        with the average of the last half of the whole run.
    sweep : 'party' (one message per party and pass; a pass is grouped by party), 'visit' (one message per run of blocks of
        one party in the order drawn), 'block' (one block per message; parties see residuals only).
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
    record_clip: float | None = None
    early_share: float | None = None
    residual_share: float | None = None
    spares: int = 0
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
        for option in ("clip", "step_size", "label_share", "record_clip", "early_share", "residual_share"):
            value = getattr(self, option)
            if value is not None and not (option == "clip" and isinstance(value, str)):
                require_number(f"{self.name}: {option}", value)
        if isinstance(self.clip, str):
            if self.clip not in CLIPS:
                raise SpecificationError(
                    f"{self.name}: clip must be a positive number or one of {', '.join(CLIPS)}, not {self.clip!r}"
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
        self._require_record_options()
        sampler_of(self.sampling, self.tau)
        as_floats(self, "clip", "label_share", "step_size", "tol")

    def _require_record_options(self) -> None:
        """Raise SpecificationError for options of the record cap that are out of range, or without it."""
        if self.clip == RECORD and self.sampling not in ONCE_A_PASS:
            raise SpecificationError(
                f"{self.name}: clip='record' charges a pass as one release, so that every block is drawn once a pass: "
                f"sampling must be one of {', '.join(ONCE_A_PASS)}, not {self.sampling!r}; or leave clip out"
            )
        if self.record_clip is not None and not 1e-90 <= self.record_clip <= 1e90:
            raise SpecificationError(f"{self.name}: record_clip must be positive, not {self.record_clip!r}")
        for option in ("early_share", "residual_share"):
            share = getattr(self, option)
            if share is not None and not 0.0 <= share < 1.0:
                raise SpecificationError(f"{self.name}: {option} must lie between 0 and 1, without 1, not {share!r}")
        if not isinstance(self.spares, int) or isinstance(self.spares, bool) or self.spares < 0:
            raise SpecificationError(f"{self.name}: spares must be a whole number of at least 0, not {self.spares!r}")
        for option, preset in (("record_clip", None), ("early_share", None), ("residual_share", None), ("spares", 0)):
            if self.clip not in (None, RECORD) and getattr(self, option) != preset:
                raise SpecificationError(f"{self.name}: {option} is for clip='record' alone: leave it out")

    def resolve(self, problem: Problem) -> Self:
        """Return the same solver with every option decided from public facts (vfl.solvers.defaults, record_defaults)."""
        self._check(problem)
        solver = replace(self, clip=self._clip(problem), label_share=self._label_share(problem))
        if self.block_size is None and problem.layout.explicit is None:
            solver = replace(solver, block_size=1 if solver.by_pass else defaults.block_size(problem))
        if self.inner_rounds is None:
            passes = self.passes or solver._default_passes(problem)
            outer = self.outer_rounds or defaults.outer_rounds(passes)
            inner = -(-passes * Walk(solver, problem, Curvature.flat(problem)).draws_a_pass // outer)
            solver = replace(solver, passes=None, outer_rounds=outer, inner_rounds=inner)
        else:
            solver = replace(solver, outer_rounds=self.outer_rounds or 1)
        solver = replace(
            solver,
            iterate=self.iterate or defaults.iterate(problem),
            tol=tolerance(self.name, problem, self.tol, limited=(self.passes or self.inner_rounds) is not None),
        )
        if not solver.by_pass:
            return replace(
                solver, step_size=self.step_size if self.step_size is not None else defaults.step_size(problem)
            )
        passes = Walk(solver, problem, Curvature.flat(problem)).n_passes
        return replace(
            solver,
            record_clip=self.record_clip or record_defaults.record_clip(problem),
            early_share=self.early_share if self.early_share is not None else record_defaults.EARLY_SHARE,
            residual_share=self._residual_share(problem, passes),
            step_size=self.step_size if self.step_size is not None else record_defaults.step_size(problem, passes),
        )

    def _clip(self, problem: Problem) -> float | str:
        """Return the clip: a number for each coordinate, 'record' or 'bounds'."""
        asked = any((self.record_clip, self.early_share is not None, self.residual_share is not None, self.spares))
        clip = self.clip
        if clip is None and problem.private:
            serves = record_defaults.serves(problem) or counts.has_counts(problem)
            clip = RECORD if asked or (serves and self.sampling in ONCE_A_PASS) else COORDINATE
        if clip is None or (clip == RECORD and not problem.private and self.record_clip is None):
            return math.inf
        return defaults.clip(problem) if clip == COORDINATE else clip

    def _default_passes(self, problem: Problem) -> int:
        return record_defaults.passes(problem, self.step_size) if self.by_pass else defaults.passes(problem)

    def _residual_share(self, problem: Problem, passes: int) -> float:
        fits = problem.private and defaults.has_spread(problem) and record_defaults.early_passes(passes) > 0
        if self.residual_share is None:
            return record_defaults.residual_share(problem) if fits and self.record_clip is None else 0.0
        if self.residual_share and not fits:
            raise SpecificationError(
                f"{self.name}: residual_share={self.residual_share!r} buys a histogram of residuals between two passes: it "
                "needs squared loss, an intercept, declared bounds for the label, privacy and at least 3 passes; leave it out"
            )
        return self.residual_share

    def _label_share(self, problem: Problem) -> float:
        record = self._clip(problem) == RECORD
        if self.label_share is None:
            if record:
                return record_defaults.label_share(problem) if self.record_clip is None else 0.0
            return defaults.label_share(problem) if self.clip in (None, COORDINATE) else 0.0
        buys = record_defaults.has_balance(problem) or counts.has_counts(problem)
        fits = defaults.has_spread(problem) or (record and buys)
        if self.label_share and not (problem.private and fits):
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
                f"{self.name}: clip=inf bounds no record's influence: give a finite clip, or {WITHOUT_PRIVACY}"
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
        """Run Algorithm 1: for t < T, rebuild Xθ; for K draws, release the block's gradient and take its prox step."""
        known, start, loss = yield from self._begin(problem)
        walk, weighting = self._walk(problem, known), Derivative(loss)
        present, trail = Presence(problem, known), self._trail(problem, known)
        w = θ = problem.intercept * start  # the intercept starts where the labels lie, or are declared to
        yield from present.norms(walk.cap(), w)
        try:
            for t, draws in enumerate(walk.outer()):
                if t or self._begins(problem):
                    w = yield from present.rebuilt(w)
                θ = w.copy()
                for number, drawn in draws:
                    yield from self._measure(walk, number)
                    if not (visit := present.of(walk.visit(number, drawn))):
                        continue
                    w_own = present.parts(θ, visit)
                    query = Descend(weighting, visit, w_own, sweep=walk.sweeps, capped=walk.cap())
                    moving = sum(query.sizes())
                    for step, u in (yield from present.descended(query, θ)):
                        S = step.block.coordinates
                        Δ = step.rule(θ[S], u)
                        θ[S] += Δ
                        trail.moved(θ, Δ, S, step.block.size if walk.sweeps else moving)
                    if trail.still:
                        return known.uncentred(θ, problem.intercept)
                w = trail.outer(θ)
        except BudgetExceeded:  # a resumed run that paid twice for lost releases ends with its present model
            w = trail.outer(θ)
        return known.uncentred(trail.final(w) * present.mask, problem.intercept)

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return private moments and labels, if any, and the passes; or T·K draws, where each block is charged by itself."""
        if not problem.private:
            return ()
        begin = (moments_event(problem), self._labels_event(problem))
        walk = self._walk(problem, Curvature.flat(problem))
        if (cap := walk.cap()) is not None:
            passes = cap.prices
        elif self.adaptive:
            # Caps follow the released M. In units of the sensitivity, and dearer than any σ = zΔ rounded once.
            largest = max(block.size for block in walk.blocks)
            ((z, _),) = walk.multipliers
            passes = ((Gaussian(Adjacency.REPLACE_ONE, 1.0, math.nextafter(z, 0.0), largest), walk.n_releases),)
        else:
            # σ = zΔ is rounded, so costs differ in the last bit between caps: count each draw as the dearest.
            ((z, _),) = walk.multipliers
            block = max((event for event in walk.clips(z).values() if event is not None), key=mu_squared)
            passes = ((block, walk.n_releases),)
        return (*((event, 1) for event in (*begin, self._residuals_event(problem)) if event), *passes)

    def round_trips(self, problem: Problem) -> int:
        """Return the number of messages that a run waits for: visits, rebuilds, and one for smoothness where it is asked for.

        Importance sampling draws by the M that is yet to be released; its visits are counted for equal M. For a run
        without privacy the number is an upper bound. Long runs are counted in part, and the rest by proportion.
        """
        walk = Walk(self, problem, Curvature.flat(problem))
        rounds = self.outer_rounds or 1
        counted = min(rounds, -(-COUNTED // (self.inner_rounds or 1)))
        visits = sum(1 for draws in islice(walk.outer(), counted) for _ in draws)
        before = asks_moments(problem) + self.by_pass + self._begins(problem)
        return before + rounds - 1 + round(visits * rounds / counted)

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence for every option that a rule decided."""
        return (*defaults.explain(problem, self), *describe(self.tol))

    @property
    def adaptive(self) -> bool:
        """True if released values decide draws or noise. Importance sampling draws by M, and two options set caps by M.

        Passes under a record cap are charged by their number, whatever is released.
        """
        if self.by_pass:
            return False
        return self.sampling == "importance" or self.noise_geometry == "isotropic" or self.clip == BOUNDS

    @property
    def by_pass(self) -> bool:
        """True if a pass is charged as one release."""
        return self.clip == RECORD

    def _begin(self, problem: Problem) -> Generator[Query, Released, tuple[Curvature, float, Loss]]:
        """Return centres, M and unit, the value that the intercept starts at, and the loss that is descended."""
        known, event = (yield from curvature(problem)), self._labels_event(problem)
        if event is None:
            return known, problem.label_centre, problem.loss
        if counts.has_counts(problem):
            c = counts.typical_cap(record_defaults.signal_to_noise(problem))
            return (yield from counts.near_the_mean(problem, known, event, c))
        if problem.loss.classification:
            return known, (yield from log_odds(problem, event)), problem.loss
        found = yield from spread(problem, event)
        known = replace(known, unit=found.deviation / defaults.typical_spread(problem))
        return known, found.mean, problem.loss

    def _begins(self, problem: Problem) -> bool:
        """Return True if the run does not start at 0; a public fact, so that all runs of a plan send the same queries."""
        return bool(self.label_share) or bool((problem.intercept * problem.label_centre).any())

    def _walk(self, problem: Problem, known: Curvature) -> Walk:
        """Return the walk, with z such that its releases share evenly the μ² left by moments and labels."""
        walk = Walk(self, problem, known)
        if not problem.private:
            return walk
        left = self._left_for_passes(problem)
        if self.residual_share:
            left = split(left, self.residual_share)[1]
        if self.by_pass:
            return replace(walk, multipliers=self._passes(left, walk.n_passes))
        z = noise_multiplier(left, walk.n_releases)
        require_bearable(2.0 * z)
        return replace(walk, multipliers=((math.nextafter(z, math.inf) if self.adaptive else z, walk.n_releases),))

    def _passes(self, mu: float, passes: int) -> tuple[tuple[float, int], ...]:
        """Return ((z, passes), ...) of the early passes and of the others, spares among these; together they are μ-GDP."""
        early = record_defaults.early_passes(passes) if self.early_share else 0
        budgets = [(mu, passes + self.spares)]
        if early:
            cheap, rest = split(mu, min(self.early_share or 0.0, early / (passes + self.spares)))
            budgets = [(cheap, early), (rest, passes - early + self.spares)]
        found = [(math.nextafter(noise_multiplier(share, count), math.inf), count) for share, count in budgets]
        require_bearable(2.0 * found[0][0])
        # A charge may also pay for a block of an earlier pass, which must not have less noise than it.
        return tuple((max(z, found[-1][0]), count) for z, count in found)

    def _trail(self, problem: Problem, known: Curvature) -> Trail:
        walk = Walk(self, problem, known)
        early = walk.n_releases * record_defaults.early_passes(walk.n_passes) // walk.n_passes
        average = Average(self.iterate or "last", early if self.by_pass else walk.n_releases // 2)
        standstill = Standstill(self.tol, np.sqrt(known.smoothness), problem.intercept)
        return Trail(average, standstill, self.step_size or 1.0)

    def _measure(self, walk: Walk, number: int) -> Generator[Query, Released, None]:
        """Choose the record cap by a histogram of residuals, once, before the first pass after the early ones."""
        if not self.residual_share or walk.measured or number < record_defaults.early_passes(walk.n_passes):
            return
        problem, walk.measured = walk.problem, True
        event = self._residuals_event(problem)
        if event is None:
            return
        typical = defaults.typical_spread(problem)
        c = (self.record_clip or 1.0) * math.sqrt(problem.loss.curvature) / typical
        ρ = record_defaults.signal_to_noise(problem) * math.sqrt(1.0 - (self.early_share or 0.0))
        found = yield from best_cap(
            typical * walk.known.unit, event, problem.n_records, problem.layout.n_coordinates, ρ
        )
        walk.factor = found / c

    def _residuals_event(self, problem: Problem) -> Gaussian | None:
        if not self.residual_share:
            return None
        return residuals_event(split(self._left_for_passes(problem), self.residual_share)[0])

    def _left_for_passes(self, problem: Problem) -> float:
        """Return what the moments and the labels leave of μ."""
        left = self._left(problem)
        return split(left, self.label_share)[1] if self.label_share else left

    def _left(self, problem: Problem) -> float:
        """Return the part of μ that the moments leave."""
        mu = problem.mu or math.inf
        return split(mu, problem.smoothness_share)[1] if buys_moments(problem) else mu

    def _labels_event(self, problem: Problem) -> Gaussian | None:
        """Return the event of the labels' spread or balance, None where it is not bought."""
        if not self.label_share:
            return None
        mu = split(self._left(problem), self.label_share)[0]
        if counts.has_counts(problem):
            return counts.counts_event(problem, mu)
        return balance_event(mu) if problem.loss.classification else labels_event(problem, mu)
