"""Solver DP-SVRG with proximal steps. Each record is clipped by the joint norm of its gradient over the parties."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.base.arguments import CLIP, option, require_positive
from vfl.errors import BudgetExceeded
from vfl.queries import Weighting
from vfl.queries.protocol import require_clip
from vfl.solvers import joint
from vfl.solvers.batches import BatchSolver
from vfl.solvers.iterates.convergence import Average
from vfl.solvers.releases.smoothness import require_curvature
from vfl.solvers.releases.start import explain as explain_start
from vfl.solvers.releases.start import is_exact

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.privacy.calibration import Charge
    from vfl.privacy.geometry import Clip
    from vfl.queries.protocol import Schedule

PUBLIC_PASSES = 100
SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class SnapshotDerivative(Weighting):
    """Weights r_i = clip_C(ℓ'(v_i)) of all records. The coordinator keeps ℓ'(v_i) under the name 'snapshot'."""

    loss: Loss
    cap: float

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and the snapshot."""
        r = self.loss.derivative(margins, labels)
        everybody = {name: vector for name, vector in kept.items() if name != "batch"}
        return joint.clipped(r, everybody, self.cap), {SNAPSHOT: r}


@dataclass(frozen=True, slots=True)
class ClippedDifference(Weighting):
    """Weights r_i = clip_D(ℓ'(v_i) − ℓ'(ṽ_i)), where ṽ_i is the margin at the snapshot; 0 outside of the batch."""

    loss: Loss
    cap: float

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and {}, since the kept snapshot does not change."""
        with np.errstate(invalid="ignore"):
            moved = self.loss.derivative(margins, labels) - kept[SNAPSHOT]
        return joint.clipped(moved, kept, self.cap), {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SVRG(BatchSolver):
    """Variance-reduced SGD. A pass releases the full gradient at a snapshot, then differences from it on batches.

    Each release has Gaussian noise. Snapshot: Σ_i clip_C(ℓ'(ṽ_i) x_i) over all records, Δ_C/σ-GDP under replace-one. Step:
    Σ_{i in batch} clip_D((ℓ'(v_i) − ℓ'(ṽ_i)) x_i), a Poisson-subsampled Gaussian or, on disjoint public batches, Δ_D/σ-GDP
    per pass (vfl.solvers.batches). With a cap c, Δ_c = 2(c(1 + p·2⁻⁵⁰) + g√p/2) (vfl.solvers.joint, rounding included). The
    snapshot's derivatives stay with the coordinator. A record's derivative is a function of that record and of released
    values, so the clip D bounds the record's influence on a step for any snapshot. The plan is fixed beforehand. Snapshots and
    steps get about the same share of the budget. D clips one record's difference as a whole; clipping ℓ'(v) and ℓ'(ṽ)
    separately would allow differences of norm 2C. Source: Johnson & Zhang 2013; clipping as in Abadi et al. 2016 (clipping
    biases the difference).

    batch_size, sampling, passes, step_size, iterate, label_share, seed : as for SGD, but steps are constant and half as long.
    clip : C. difference_clip : D. With privacy, None takes C√(b/n) for batches of size b, which balances the two noises.
    """

    difference_clip: float | None = option(CLIP, None)
    step_size: float | None = option(require_positive, None)

    name: ClassVar[str] = "SVRG"

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided. Raise an error for a loss without finite curvature."""
        for clip in (self.clip, self.difference_clip):
            require_clip(self.name, problem, clip)
        joint.require_blocks(self.name, problem)
        require_curvature(self.name, problem)  # else differences from the snapshot would not become small
        clip = self.clip if self.clip is not None else joint.default_clip(problem)
        solver = replace(
            self._with_batches(problem, PUBLIC_PASSES),
            clip=clip,
            iterate=self.iterate or ("tail" if problem.private else "last"),
        )
        if self.step_size is None:
            # Every step of a pass contains the noise of the pass's snapshot, and half of the budget pays for the snapshots.
            limited = joint.default_step_size(problem, clip, 2 * solver._batches(problem).steps)
            solver = replace(solver, step_size=min(0.5, limited))
        share = solver._batches(problem).rate
        difference = clip if not math.isfinite(clip) else clip * math.sqrt(share)
        return replace(solver, difference_clip=self.difference_clip if self.difference_clip is not None else difference)

    def _clips(self, problem: Problem) -> tuple[Clip, Clip]:
        snapshot = self._clip(problem)
        return snapshot, replace(snapshot, cap=float(self.difference_clip or math.inf))

    def asks_norms(self, problem: Problem) -> bool:
        """Return True if one of the two clips is finite."""
        return any(clip.finite for clip in self._clips(problem))

    def releases(self, problem: Problem) -> tuple[Charge, ...]:
        """Return the charges of the label statistic, if it is released, of the snapshots (one per pass), and of the steps.

        A Poisson step of rate q costs about q² of a full step, so the 1/q steps of a pass cost q. The snapshot's σ is
        therefore 1/√q times that of the steps, each in units of its Δ. A disjoint pass costs as much as a snapshot.
        """
        if not problem.private:
            return ()
        snapshot, difference = self._clips(problem)
        drawn = self._batches(problem)
        weight = 1.0 / math.sqrt(drawn.rate) if drawn.sampling == "poisson" else 1.0
        plan = (snapshot.event(weight), drawn.passes), drawn.charge(difference)
        return self._start(problem).planned(*plan, cost=drawn.cost + drawn.passes / weight**2)

    def schedule(self, problem: Problem) -> Schedule:
        """In every pass, rebuild Xw and take a step with the snapshot's gradient; then take a step per batch with a difference.

        The first step needs no batch: at the snapshot all differences are 0, so a release would be pure noise.
        """
        snapshot_clip, difference_clip = self._clips(problem)
        drawn, n, charges = self._batches(problem), problem.n_records, self.releases(problem)
        snapshot_event, step_event = (charges[-2][0], charges[-1][0]) if charges else (None, None)
        w, loss, curvature = yield from self._begun(problem, charges, 2 * drawn.steps, margins=False)
        snapshot = joint.backward(problem, SnapshotDerivative(loss, snapshot_clip.cap), snapshot_clip, snapshot_event)
        difference = ClippedDifference(loss, difference_clip.cap)
        step = (self.step_size or 1.0) / curvature
        g = np.zeros(0)
        mean = Average(self.iterate or "last", drawn.steps // 2)
        for t, (sample, fold) in enumerate(drawn.draws()):
            try:
                if t % drawn.steps_a_pass == 0:
                    yield joint.forward(problem, w, "reset")
                    g = np.concatenate((yield snapshot)) / n
                    w, before = joint.proximal(problem, w - step * g, step), w
                    yield joint.forward(problem, w - before, "add")
                if sample is not None:
                    yield sample
                released = yield joint.backward(problem, difference, difference_clip, step_event, fold)
            except BudgetExceeded:
                break
            w, before = joint.proximal(problem, w - step * (np.concatenate(released) / drawn.divisor + g), step), w
            mean.add(w)
            if (t + 1) % drawn.steps_a_pass:
                yield joint.forward(problem, w - before, "add")
        return mean.final(w)

    def messages(self, problem: Problem) -> int:
        """Return the number of messages: two per step, two per pass for the snapshot, and those before the first pass."""
        drawn = self._batches(problem)
        asked = self.asks_norms(problem) + joint.asks_mean_square(problem)
        asked += bool(self.label_share) or is_exact(problem)
        return 2 * (drawn.steps + drawn.passes) + asked

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option."""
        return (
            self._batches(problem).describe(private=problem.private),
            f"one snapshot gradient per pass, clip C = {self.clip:.3g}; differences at {self.difference_clip:.3g}.",
            f"step_size γ = {self.step_size:.3g}; iterate = {self.iterate}.",
            *explain_start(self.label_share or 0.0),
            *joint.standing_still(problem, (self.step_size or 1.0) * self._batches(problem).steps),
        )
