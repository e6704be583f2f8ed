"""Solvers DP-SkGD with block sampling (Maranjyan et al. 2024), and DP-CD, with the same prox steps (Mangold et al. 2022).

First the checks of options and the public rules that decide options left at None, then the schedules.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import numpy as np

from vfl.base.arguments import option, require_positive
from vfl.base.losses import MEAN
from vfl.errors import BudgetExceeded, SpecificationError
from vfl.queries import Descend
from vfl.queries.protocol import Derivative, Solver, Vectors, require_clip, require_groups
from vfl.queries.samplers import sampler_of
from vfl.solvers.blocks.messages import Walk
from vfl.solvers.blocks.options import BOUNDS, COORDINATE, RECORD, BlockOptions, Details
from vfl.solvers.blocks.presence import Presence
from vfl.solvers.blocks.shares import Budget, table
from vfl.solvers.iterates.anderson import MESSAGES, WINDOW, accelerated
from vfl.solvers.iterates.convergence import describe, tolerance
from vfl.solvers.iterates.quadratic import JointSteps
from vfl.solvers.iterates.trail import Trail
from vfl.solvers.releases import correlations, counts, products
from vfl.solvers.releases.curvature import Curvature
from vfl.solvers.releases.once import Phase, Run
from vfl.solvers.releases.smoothness import require_curvature, require_representable
from vfl.solvers.releases.start import begins
from vfl.solvers.rules import defaults, intervals, record_defaults

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.privacy.events import Event
    from vfl.queries import Gram
    from vfl.queries.protocol import Schedule

Own = TypeVar("Own", bound="BlockOptions")

ONCE_A_PASS = ("shuffled", "cyclic", "full")
OF_BLOCKS = ("tau", "parallel", "noise_geometry")
"""Fields of `Details` that CD does not have."""
OF_RECORD = ("record_clip", "early_share", "residual_share", "excess_share")
"""Fields of `Details` that apply only under a record cap."""


def require_options(solver: BlockOptions) -> None:
    """Raise SpecificationError for an option that contradicts another option."""
    if solver.momentum is not None and not 0.0 <= solver.momentum <= record_defaults.MOMENTUM:
        raise SpecificationError(
            f"{solver.name}: momentum={solver.momentum!r} must lie between 0 and {record_defaults.MOMENTUM}, where joint steps "
            "are sure not to diverge: lower it"
        )
    if solver.momentum and solver.joint is False:
        raise SpecificationError(f"{solver.name}: only joint steps have a momentum: leave momentum out")
    if solver.passes is not None and solver.inner_rounds is not None:
        raise SpecificationError(f"{solver.name}: give passes, or outer_rounds and inner_rounds of details, not both")
    if solver.parallel > 1 and solver.sampling in ("nice", "full"):
        raise SpecificationError(
            f"{solver.name}: sampling={solver.sampling!r} draws several blocks by itself: leave parallel at 1"
        )
    if solver.turns > 1 and not (_moves_locally(solver) and solver.clip in (None, RECORD)):
        raise SpecificationError(
            f"{solver.name}: local_passes={solver.local_passes} needs clip='record', message='party', sampling 'shuffled' or "
            "'cyclic', iterate='tail' and no parallel or joint steps: leave local_passes out, or change those options"
        )
    _require_record_options(solver)
    _require_joint_options(solver)
    sampler_of(solver.sampling, solver.tau)


def _require_record_options(solver: BlockOptions) -> None:
    if solver.clip == RECORD and solver.sampling not in ONCE_A_PASS:
        raise SpecificationError(
            f"{solver.name}: clip='record' needs a sampling that updates every block once per pass: "
            f"{', '.join(ONCE_A_PASS)}, not {solver.sampling!r}. Change sampling, or leave clip out"
        )
    asked = [f"details.{name}" for name in OF_RECORD if getattr(solver, name) is not None]
    if solver.clip not in (None, RECORD) and (asked or solver.reserve_passes):
        asked_for = (asked or ["details.reserve_passes"])[0]
        raise SpecificationError(
            f"{solver.name}: {asked_for} has an effect only with clip='record': leave {asked_for} out"
        )


def resolved(given: Own, problem: Problem) -> Own:
    """Return a copy of the solver with every option decided from public facts (rules.defaults, rules.record_defaults)."""
    label_share = _label_share(given, problem)
    if given.joint is None:
        given = replace(given, joint=False)
    elif given.joint and declined(given, problem):
        given = given.changed(joint=False, momentum=None)
    solver = given.changed(clip=_clip(given, problem), label_share=label_share)
    if solver.joint:
        given = solver = _with_joint_steps(solver)
    if given.block_size is None and problem.layout.explicit is None:
        solver = replace(solver, block_size=1 if solver.by_pass else defaults.block_size(problem))
    solver = solver.changed(local_passes=_local_passes(solver, problem))
    if given.inner_rounds is None:
        passes = -(-given.passes // solver.turns) if given.passes else _default_passes(solver, problem)
        outer = given.outer_rounds or defaults.outer_rounds(passes)
        draws = Walk(solver, problem, Curvature.flat(problem)).draws_a_pass
        inner = -(-passes * draws // outer) if solver.turns == 1 else -(-passes // outer) * draws
        solver = solver.changed(passes=None, outer_rounds=outer, inner_rounds=inner)
    else:
        solver = solver.changed(outer_rounds=given.outer_rounds or 1)
        draws = Walk(solver, problem, Curvature.flat(problem)).draws_a_pass
        # A pass that two outer rounds divide would need a second charge.
        if solver.turns > 1 and solver.outer_rounds != 1 and given.inner_rounds % draws:
            raise SpecificationError(
                f"{solver.name}: local_passes={solver.local_passes} needs outer rounds of whole passes, {draws} draws each: "
                f"make inner_rounds a multiple of {draws}, or leave it out"
            )
    solver = solver.changed(
        iterate=given.iterate or defaults.iterate(problem),
        tol=tolerance(given.name, problem, given.tol, limited=(given.passes or given.inner_rounds) is not None),
    )
    if not solver.by_pass:
        if problem.inferred:
            intervals.require(solver, problem)
        return replace(
            solver, step_size=given.step_size if given.step_size is not None else defaults.step_size(problem)
        )
    passes = Walk(solver, problem, Curvature.flat(problem)).n_passes
    solver = solver.changed(
        record_clip=given.record_clip or record_defaults.record_clip(problem),
        early_share=record_defaults.early_share(problem) if given.early_share is None else given.early_share,
        residual_share=_share("residual_share", solver, problem, passes),
        excess_share=_share("excess_share", solver, problem, passes),
    )
    size = given.step_size
    if size is None:
        size = record_defaults.step_size(problem, passes * solver.turns)
    solver = replace(solver, step_size=size)
    if problem.inferred:
        intervals.require(solver, problem)
    return solver


def _clip(solver: BlockOptions, problem: Problem) -> float | str:
    """Return the clip: a number (cap per coordinate), 'record' or 'bounds'."""
    asked = solver.reserve_passes or any(getattr(solver, name) is not None for name in OF_RECORD)
    clip = solver.clip
    if clip is None and problem.private:
        serves = record_defaults.serves(problem) or counts.has_counts(problem)
        clip = RECORD if asked or (serves and solver.sampling in ONCE_A_PASS) else COORDINATE
    if clip is None or (clip == RECORD and not problem.private and solver.record_clip is None):
        return math.inf
    return defaults.clip(problem) if clip == COORDINATE else clip


def _local_passes(solver: BlockOptions, problem: Problem) -> int:
    """Return the passes of a party per message: the user's number, else the rule's if the number of passes is left open."""
    if (given := solver.decided.local_passes) is not None:
        return given
    open_ = solver.passes is None and solver.inner_rounds is None and solver.outer_rounds is None
    fits = open_ and solver.by_pass and _moves_locally(solver)
    return 1 if not fits else record_defaults.local_passes(problem, solver.step_size)


def _moves_locally(solver: BlockOptions) -> bool:
    """Return True if a party may make several passes over its columns per message, and their mean is the result."""
    return (
        solver.message == "party"
        and solver.sampling in ("shuffled", "cyclic")
        and solver.sequential
        and (solver.iterate in (None, "tail") and not solver.joint)
    )


def declined(solver: BlockOptions, problem: Problem) -> str:
    """Return, as a clause, why the public rule takes no joint steps; '' if joint steps pay."""
    if _clip(solver, problem) != RECORD:
        return "each column has a clip of its own, whose charge is not one per pass"
    noise = correlations.radius(problem.layout.n_coordinates, record_defaults.signal_to_noise(problem))
    return record_defaults.declines_joint_steps(problem, noise, products.messages_of(problem, 1)["messages"])


def _with_joint_steps(solver: Own) -> Own:
    return solver.changed(
        sampling="full",
        block_size=solver.block_size or 1,
        passes=None,
        outer_rounds=solver.passes or solver.outer_rounds or record_defaults.FEW,
        inner_rounds=1,
        momentum=record_defaults.MOMENTUM if solver.momentum is None else solver.momentum,
        step_size=1.0,
    )


def _require_joint_options(solver: BlockOptions) -> None:
    usual = {
        "clip": (None, RECORD),
        "sampling": ("shuffled", "full"),
        "parallel": (1,),
        "inner_rounds": (None, 1),
        "step_size": (None, 1.0),
        "iterate": (None, "tail"),
        "noise_geometry": ("scaled",),
        "tol": (None,),
    }
    for asked_for, values in usual.items():
        if solver.joint and getattr(solver, asked_for) not in values:
            raise SpecificationError(
                f"{solver.name}: joint=True moves all columns at once and decides {asked_for} itself: leave {asked_for} out"
            )


def _require_joint_fit(solver: BlockOptions, problem: Problem) -> None:
    several = problem.subsamples > 1 or problem.inference is not None
    for fits, what in (
        (
            (problem.loss.log_odds or problem.loss.quadratic) and not counts.has_counts(problem),
            "logistic or squared loss",
        ),
        (not problem.layout.classes, "one margin per record"),
        (problem.terms is None, "columns without terms of their own"),
        (problem.layout.explicit is None and not problem.penalty.grouped, "single columns: no blocks, no groups"),
        (not several, "a run without standard errors, whose covariance assumes steps column by column"),
    ):
        if not fits:
            raise SpecificationError(f"{solver.name}: joint=True needs {what}: leave joint out")


def _default_passes(solver: BlockOptions, problem: Problem) -> int:
    if not solver.by_pass:
        return defaults.passes(problem)
    averaged = solver.iterate in (None, "tail")  # a last iterate has more noise after longer steps
    halved = solver.turns == 1 and averaged and solver.sequential and problem.inference is None
    count = record_defaults.passes(problem, solver.step_size, halved=halved)
    if solver.turns > 1:
        count = max(record_defaults.ROUNDS, -(-count // solver.turns))
    return defaults.in_equal_parts(count)


def _share(name: str, solver: BlockOptions, problem: Problem, passes: int) -> float:
    """Return the share of a release that chooses the cap: the user's, else the rule's if the release fits the run."""
    loss, given = problem.loss, getattr(solver.decided, name)
    numeric = (loss.quadratic or loss.start == MEAN) and problem.centred and problem.label_range < math.inf
    fits, needs = {
        "residual_share": (
            numeric,
            "a histogram of residuals, which needs squared or Huber loss, an intercept, bounds of the label",
        ),
        "excess_share": (
            loss.log_odds or loss.quadratic,
            "sums of the parts that the record cap cuts, which needs logistic or squared loss",
        ),
    }[name]
    fits = fits and problem.private and record_defaults.early_passes(passes) > 0
    if given is None:
        # The rule assumes an average of iterates, so it would underestimate the noise of a last iterate.
        chosen_here = fits and solver.decided.record_clip is None and solver.iterate == "tail"
        return float(getattr(record_defaults, name)(problem)) if chosen_here else 0.0
    if given and not fits:
        raise SpecificationError(
            f"{solver.name}: details.{name}={given!r} spends budget on {needs}, privacy and at least 3 passes: leave {name} out"
        )
    return float(given)


def _label_share(solver: BlockOptions, problem: Problem) -> float:
    record, given = _clip(solver, problem) == RECORD, solver.decided.label_share
    starts = problem.start is not None and (
        record_defaults.has_balance(problem) or record_defaults.releases_mean(problem)
    )
    if starts and given:
        raise SpecificationError(
            f"{solver.name}: details.label_share={given!r} pays for the start of the intercept, and the job starts from a "
            "model: leave it out"
        )
    if starts:
        return 0.0
    if given is None:
        if record:
            return record_defaults.label_share(problem) if solver.record_clip is None else 0.0
        return defaults.label_share(problem) if solver.clip in (None, COORDINATE) else 0.0
    starts = (
        record_defaults.has_balance(problem) or counts.has_counts(problem) or record_defaults.releases_mean(problem)
    )
    fits = defaults.has_spread(problem) or (record and starts)
    if given and not (problem.private and fits):
        raise SpecificationError(
            f"{solver.name}: details.label_share={given!r} spends budget on the spread of labels, which needs "
            "squared loss, an intercept, declared bounds for the label, and privacy: leave label_share out"
        )
    return given


def require_fit(solver: BlockOptions, problem: Problem) -> None:
    """Raise SpecificationError or PrivacyError if the solver's options do not fit the problem."""
    require_representable(problem)
    require_curvature(solver.name, problem)
    require_clip(solver.name, problem, solver.clip)
    if solver.clip == BOUNDS and not (math.isfinite(problem.loss.slope) and np.isfinite(problem.reach).all()):
        raise SpecificationError(
            f"{solver.name}: clip='bounds' needs bounds for every column and a loss with a bounded derivative; "
            f"{problem.loss.name} loss has slope {problem.loss.slope:g}. Give a clip"
        )
    require_groups(problem)
    if solver.joint:
        _require_joint_fit(solver, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkGD(BlockOptions):
    """Block coordinate descent with sampled blocks. Public rules decide options left at None; `vfl.plan` prints the reasons.

    block_size : number of columns per block; blocks never span two parties. Leave it out if the partition names blocks.
    sampling : 'shuffled', 'cyclic', 'uniform', 'importance', 'nice' or 'full'.
    passes : number of passes over the coordinates.
    clip : None takes 'record' if every pass draws each block once, except for squared loss without an intercept at high μn/p
        (`record_defaults.serves`). Otherwise None takes 'coordinate'.
        'record': the residual of a record is capped so that its contributions to all coordinates have norm at most C,
        and a pass over all blocks is charged as one release of sensitivity 2C. Every pass must then draw each block once.
        'coordinate', or a number κ: every block is clipped and charged separately, with the cap κ√|S| in units of √M_j.
        'bounds': the loss's largest derivative and the declared bounds imply the cap, so nothing is clipped.
        inf: nothing is clipped, which is allowed only without privacy.
    step_size : γ in the step γ/(β_S M_j) with the data-independent β_S = |S|, where S are all columns that move at once.
    joint : True lets long runs take 36 passes. A pass then releases all parties' gradients at the same margins, and takes a
        step in a joint model of all columns (vfl.solvers.iterates.quadratic). 5 % of μ² pay for noisy products of the
        columns, which this model needs. Under trust='trusted', the coordinator then holds the scaled columns of all parties
        but the last, and later parties receive these columns, before noise: policies must say `products = true`. Parties see
        residuals instead of margins and labels. If joint steps do not pay (`record_defaults.declines_joint_steps`), True
        changes nothing. None means False under trust='trusted'. Under trust='secure', which shows no columns, None means True
        if passes and blocks are left open.
    seed : public seed for the order of blocks.
    details : all other options, for studies (`Details`). None lets public rules decide them.
    """

    name: ClassVar[str] = "SkGD"
    goes_on_without: ClassVar[bool] = True
    multinomial: ClassVar[bool] = True
    infers: ClassVar[bool] = True
    warm_starts: ClassVar[bool] = True
    takes_terms: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Solver.__post_init__(self)
        require_options(self)
        if self.details == Details():  # equal solvers must have equal digests
            object.__setattr__(self, "details", None)

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided from public facts (vfl.solvers.skgd)."""
        self._check(problem)
        return resolved(self, problem)

    def _check(self, problem: Problem) -> None:
        require_fit(self, problem)

    def schedule(self, problem: Problem) -> Schedule:
        """Run Algorithm 1 of the paper, where a draw may hold several blocks.

        for t < T:   rebuild Xw, θ ← w
            for K draws of a block S:   u ← Σ_i clip(r_i x_{i,S}) + noise,   θ_S ← prox(θ_S − γ M_S⁻¹ u/n)
            w ← the last θ, or the average
        """
        budget, run = Budget(self, problem), Run(problem, Curvature.flat(problem), problem.label_centre, problem.loss)
        try:
            yield from budget.made(Phase.START, run)
        except BudgetExceeded:  # stop as below: without moments or a start, the step sizes are unknown
            return problem.begin
        known, weighting = run.known, Derivative(run.loss)
        run.walk, run.present = walk, present = budget.walk(known), Presence(problem, known)
        # Without a model to start from, the intercept starts at the labels' released or declared centre.
        start = problem.start
        w = θ = problem.intercept * run.start if start is None else known.centred(start, problem.intercept)
        trail = Trail(self, run, w)
        yield from present.norms(walk.cap(), w)
        run.w = w
        try:
            yield from budget.made(Phase.FIRST, run)
            joint = self._joint_steps(run)
            for t, draws in enumerate(walk.outer()):
                first = t * (self.inner_rounds or 1) // walk.draws_a_pass
                if (t or self._begins(problem)) and not budget.due(first, run):
                    w = yield from present.rebuilt(w)
                θ = w.copy()
                for number, drawn in draws:
                    yield from budget.between(number, run, θ)
                    yield from trail.before(number, θ)
                    if not (message := present.of(walk.message(number, drawn))):
                        continue
                    begun, recomputes = present.parts(θ, message), self.several_steps
                    query = Descend(weighting, message, begun, recomputes=recomputes, capped=walk.cap())
                    moving = sum(query.sizes()) // problem.layout.width
                    released = (yield from present.put(query, θ)) or ()  # empty if a party was lost
                    steps = tuple(zip(query.ordered(), released, strict=bool(released)))
                    moves = None if joint is None else joint.moves(steps, θ, present.mask)
                    for step, u in steps:
                        S = step.block.coordinates
                        Δ = step.moved(θ[step.block.offset :], u) if moves is None else moves[S]
                        θ[S] += Δ
                        trail.moved(θ, Δ, step, u, walk.columns(step.block) if self.several_steps else moving)
                    if (yield from trail.ends(θ)):
                        return known.uncentred(θ, problem.intercept)
                w = trail.outer(θ)
        except BudgetExceeded:  # a resumed run that paid twice for lost releases ends with its current model
            w = trail.outer(θ)
        else:
            run.w = trail.final(w)
            with contextlib.suppress(BudgetExceeded):
                yield from budget.made(Phase.END, run)
        return known.uncentred(trail.final(w, shrunk=True) * present.mask, problem.intercept)

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return the charges of releases outside the passes, and of passes (if charged separately, of every drawn block)."""
        return Budget(self, problem).releases()

    def messages(self, problem: Problem) -> int:
        """Return the number of messages that a run waits for: steps, rebuilds of Xw, record norms, other releases.

        Importance sampling depends on M, which is not known yet, so messages are counted as if all M were equal. For a run
        without privacy the number is an upper bound. For long runs the number is extrapolated from the first COUNTED draws.
        """
        before = self.asks_norms(problem) + self._begins(problem) + sum(row.messages for row in table(self, problem))
        before += MESSAGES * self._extrapolations(problem)
        return before + (self.outer_rounds or 1) - 1 + self._pass_messages(problem)[0]

    def vectors(self, problem: Problem) -> Vectors:
        """Return the number of vectors that a run sends.

        There are two vectors for each message to a party, one per party for each rebuild or extrapolation of Xw, the vectors of
        releases outside the passes, and vectors that parties keep to cap records or to take several steps per message.
        """
        parties, once = len(problem.layout.whole()), table(self, problem)
        asked, several = self._pass_messages(problem)[1], parties * self.several_steps
        rebuilds = (self.outer_rounds or 1) - 1 + self._begins(problem) + sum(row.back for row in once)
        return Vectors(
            out=asked + parties * sum(row.out for row in once),
            back=asked + parties * (rebuilds + self._extrapolations(problem)),
            in_steps=asked * self.several_steps,
            labels=several,
            limits=several * self.by_pass,
            norms=parties * self.asks_norms(problem),
        )

    def _pass_messages(self, problem: Problem) -> tuple[int, int]:
        """Return the number of messages of the passes, and the number of parties in all of them together."""
        return Walk(self, problem, Curvature.flat(problem)).messages()

    def _extrapolations(self, problem: Problem) -> int:
        if not accelerated(self, problem):
            return 0
        return Walk(self, problem, Curvature.flat(problem)).n_passes // WINDOW

    def last_pass(self, problem: Problem) -> int | None:
        """Return the number of passes of a run that never meets the stopping rule; None without a tolerance."""
        return None if self.tol is None else Walk(self, problem, Curvature.flat(problem)).n_passes

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option that a rule decided."""
        still = (record_defaults.standing_still(problem), record_defaults.shrinking(problem)) if self.by_pass else ()
        return (
            *filter(None, still),
            *defaults.explain(problem, self, [row.said for row in table(self, problem) if row.said]),
            *filter(None, [self._rounds(problem)]),
            *describe(self.tol),
        )

    def _rounds(self, problem: Problem) -> str:
        """Return a sentence about passes per message; '' if it says nothing about this run."""
        count = Walk(self, problem, Curvature.flat(problem)).n_passes
        if self.turns > 1:
            return (
                f"local_passes = {self.turns}: a party makes {self.turns} passes over its columns per message, so "
                f"{count * self.turns} passes take {count} rounds of messages."
            )
        why = (
            record_defaults.needs_rounds(problem)
            if self.by_pass
            else "a clip per coordinate charges every step by itself"
        )
        many = problem.private and not self.joint and count > record_defaults.ROUNDS
        return f"{count} rounds of messages, one per pass: {why}." if many and why else ""

    def remark(self, problem: Problem, resolved: Self) -> str:
        """Return what joint steps would save and show; or the reason why a run takes no joint steps despite joint=True."""
        if resolved.joint or not problem.private:
            return ""
        if self.joint:
            return f"joint = true changes nothing: {declined(self, problem)}; without joint, no policy has to allow products"
        try:
            other = replace(self, joint=True).resolve(problem)
        except SpecificationError:
            return ""
        if not other.joint:
            return ""
        fewer, now = other.messages(problem), resolved.messages(problem)
        return (
            f"joint = true would train in {fewer:,} messages in place of {now:,}, but shows columns to other participants "
            "before noise: policies must say products = true"
        )

    def _begins(self, problem: Problem) -> bool:
        """Return True if, by public facts, the run starts at a nonzero model. All runs of a plan then send the same queries."""
        return begins(problem, self.label_share or 0.0) or problem.start is not None

    def pieces(self, problem: Problem) -> tuple[Gram, ...]:
        """Return the queries for the matrix of products of unscaled columns; () for a run without products."""
        return products.planned(problem) if problem.inference or self.joint else ()

    def skipped(self, problem: Problem) -> int:
        """Return the number of block updates before the tail, which the average omits."""
        return Walk(self, problem, Curvature.flat(problem)).skipped

    @property
    def shows_columns(self) -> bool:
        """True if participants may see other parties' columns before noise. The public rule may decline joint steps."""
        return bool(self.joint)

    def _joint_steps(self, run: Run) -> JointSteps | None:
        if run.joint is None:
            return None
        passes = max(1, math.ceil(record_defaults.OF_MODEL * record_defaults.passes(run.problem) / run.walk.n_passes))
        β = self.momentum or 0.0
        return JointSteps(run.problem, run.known.smoothness, run.joint, passes=passes, momentum=β, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class CD(SkGD):
    """DP coordinate descent. A pass is one release, μ-GDP with μ = Δ/σ under replace-one; the run is √passes·Δ/σ-GDP.

    This holds under a record cap C, the default if a pass updates every coordinate once: Δ = `Clip(C, p).sensitivity`. With
    clip="coordinate" or a number κ, each coordinate update is one release instead, and the run is √(p·passes)·Δ/σ-GDP. Such a
    release is Σ_i clip_κ(r_i x_ij/√M_j), with M_j the smoothness constant of coordinate j, rounded to the grid g:
    Δ = 2(κ(1 + 2⁻⁵⁰) + g/2), `Clip(κ, 1).sensitivity`, in units of √M_j. This is the paper's rule C_j = C√(M_j/ΣM) with
    κ = C/√ΣM. The step prox_{γψ_j/M_j}(w_j − γ√M_j u/(nM_j)) is post-processing. Source: Mangold et al. 2022, Algorithm 1
    with its prox, and appendix F for private M_j (`smoothness="private"`). The accounting here is exact and uses Δ for
    replace-one; the paper's accounting is looser.

    CD is SkGD with other defaults: whole steps γ = 1 and the last iterate, as in the paper's experiments. SkGD's rules decide
    options left at None. `sampling="uniform"` is the paper's algorithm. The default is 'shuffled', since the paper's tables
    can only be reached by an order without replacement. The options are those of SkGD, except the options of blocks.
    """

    step_size: float | None = option(require_positive, 1.0)

    name: ClassVar[str] = "CD"
    block_size: ClassVar[int] = 1  # type: ignore[misc]  # no options, since a block is one coordinate
    joint: ClassVar[bool] = False  # type: ignore[misc]

    @property
    def iterate(self) -> str:
        """Result of an outer round, by default the last model of the round."""
        return self.decided.iterate or "last"

    def __post_init__(self) -> None:
        if self.sampling in ("nice", "full"):
            raise SpecificationError(
                f"CD: sampling={self.sampling!r} moves several coordinates at once: use SkGD, or one of shuffled, cyclic, "
                "uniform, importance"
            )
        if alone := [name for name in OF_BLOCKS if getattr(self.decided, name) != getattr(Details(), name)]:
            raise SpecificationError(f"CD moves one coordinate at a time: leave {alone[0]} out of details, or use SkGD")
        SkGD.__post_init__(self)

    def remark(self, problem: Problem, resolved: Self) -> str:
        """Return '', since CD takes no joint steps on which to remark."""
        return ""

    def _check(self, problem: Problem) -> None:
        if problem.layout.explicit is not None or problem.penalty.grouped:
            raise SpecificationError(
                "CD moves one coordinate at a time: leave the blocks out of the partition and penalties of groups out of "
                "the job, or use SkGD"
            )
        SkGD._check(self, problem)
