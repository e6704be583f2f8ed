"""DP-SGD with per-record clipping by joint norms over the parties, proximal: the baseline of the papers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.arguments import as_floats
from vfl.errors import BudgetExceeded
from vfl.privacy.calibration import scaled_to_budget
from vfl.privacy.geometry import Clip
from vfl.solvers import batches, joint
from vfl.solvers.iterates.average import Average
from vfl.solvers.options import require_clip, require_one_of, require_positive, require_whole
from vfl.solvers.protocol import Solver

if TYPE_CHECKING:
    from vfl.privacy.calibration import Charge
    from vfl.problem import Problem
    from vfl.solvers.protocol import Schedule

ITERATES = ("last", "tail")
DECAYS = {"constant": 0.0, "root": 0.5}
PUBLIC_PASSES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(Solver):
    """DP-SGD. Each step releases one Gaussian sum over a batch, of sensitivity Δ under replace-one.

    With sampling='poisson' a step is the Poisson-subsampled pair of rate q. The T steps are fixed before the first, and
    accounted by their privacy loss distribution. With 'disjoint' a *pass* is Δ/σ-GDP. vfl.solvers.batches says for whom
    each guarantee holds, and why shuffled and fixed-size batches are refused.

    One release is Σ_{i in batch} clip_C(ℓ'(v_i, y_i) x_i) over all parties' coordinates jointly. A record's rounded
    contribution has norm at most a = C(1 + p·2⁻⁵⁰) + g√p/2, and Δ = 2a (vfl.solvers.joint derives both). The step
    w ← prox_{sψ}(w − s·u/(qn)), with the expected and never the realised size, is post-processing. Source: Abadi et al.
    2016, Alg. 1; the pair under replace-one: vfl.privacy.pld.

    batch_size : qn, expected size of a batch. sampling : 'poisson' or 'disjoint'.
    passes : expected number of times each record is used; T = passes·n/batch_size steps.
    clip : C, cap on the norm of one record's whole gradient, on the scaled features; None: a public rule. inf: none.
    step_size : γ, in units of 1/(L·mean‖x‖²), with L = 1 for a loss without curvature.
    decay : 'constant' steps, or 'root': γ/√(t+1) after t passes, as subgradients require.
    iterate : 'last', or 'tail', the average of the last half.
    seed : orders disjoint batches; public. Secret samples come from the noise source.
    """

    batch_size: int | None = None
    sampling: str | None = None
    passes: int | None = None
    clip: float | None = None
    step_size: float | None = None
    decay: str | None = None
    iterate: str | None = None
    seed: int = 0

    name: ClassVar[str] = "SGD"

    def __post_init__(self) -> None:
        require_whole(self.name, "batch_size", self.batch_size)
        require_whole(self.name, "passes", self.passes)
        require_positive(self.name, "clip", self.clip, infinite=True)
        require_positive(self.name, "step_size", self.step_size)
        require_one_of(self.name, "decay", self.decay, tuple(DECAYS))
        require_one_of(self.name, "iterate", self.iterate, ITERATES)
        batches.require_sampling(self.name, self.sampling)
        as_floats(self, "clip", "step_size")

    def resolve(self, problem: Problem) -> Self:
        """Return the same solver with every option decided from public facts."""
        require_clip(self.name, problem, self.clip)
        joint.require_blocks(self.name, problem)
        smooth = math.isfinite(problem.loss.curvature)
        batch_size = self.batch_size or batches.default_batch_size(problem)
        return replace(
            self,
            batch_size=batch_size,
            sampling=self.sampling or batches.default_sampling(problem),
            passes=self.passes or (joint.default_passes(problem, batch_size) if problem.private else PUBLIC_PASSES),
            clip=self.clip if self.clip is not None else joint.default_clip(problem),
            step_size=self.step_size if self.step_size is not None else 1.0,
            decay=self.decay or ("constant" if smooth and problem.private else "root"),
            iterate=self.iterate or "tail",
        )

    def _batches(self, problem: Problem) -> batches.Batches:
        return batches.Batches(
            problem.n_records, self.sampling or "disjoint", self.batch_size or 1, self.passes or 1, self.seed
        )

    def _clip(self, problem: Problem) -> Clip:
        return Clip(float(self.clip or math.inf), problem.layout.n_coordinates)

    def releases(self, problem: Problem) -> tuple[Charge, ...]:
        """Return one event a step ('poisson') or a pass ('disjoint')."""
        if problem.epsilon is None or problem.delta is None:
            return ()
        return scaled_to_budget((self._batches(problem).charge(self._clip(problem)),), problem.epsilon, problem.delta)

    def schedule(self, problem: Problem) -> Schedule:
        """For every step: draw the batch, release its clipped gradient, step, rebuild Xw."""
        clip, drawn = self._clip(problem), self._batches(problem)
        event = next((event for event, _ in self.releases(problem)), None)
        weighting = joint.ClippedDerivative(problem.loss, clip.cap)
        L = problem.loss.curvature if math.isfinite(problem.loss.curvature) else 1.0
        step = (self.step_size or 1.0) / (L * (yield from joint.mean_square(self.name, problem)))
        if clip.finite:
            yield joint.record_norms(problem)
        w = problem.intercept * problem.label_centre  # the intercept starts where the declared labels lie
        if w.any():
            yield joint.forward(problem, w, "reset")
        mean = Average(self.iterate or "last", drawn.steps // 2)
        for t, (sample, fold) in enumerate(drawn.draws()):
            if sample is not None:
                yield sample
            try:
                released = yield joint.backward(problem, weighting, clip, event, fold)
            except BudgetExceeded:
                break
            s = step / (1.0 + t / drawn.steps_a_pass) ** DECAYS[self.decay or "constant"]
            w = joint.proximal(problem, w - s * np.concatenate(released) / drawn.divisor, s)
            mean.add(w)
            if t + 1 < drawn.steps:
                yield joint.forward(problem, w, "reset")
        return mean.final(w)

    def round_trips(self, problem: Problem) -> int:
        """Return the number of messages: two per step, and those before the first. Drawing a sample takes no message."""
        asked = self._clip(problem).finite + joint.asks_first(problem)
        return 2 * self._batches(problem).steps - 1 + asked

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return a sentence for every option that was decided."""
        return (
            self._batches(problem).describe(private=problem.private),
            f"clip C = {self.clip:.3g} on a record's whole gradient, joint over the parties.",
            f"step_size γ = {self.step_size:.3g}, {self.decay}; iterate = {self.iterate}.",
        )
