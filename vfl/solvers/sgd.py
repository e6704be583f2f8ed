"""Solver DP-SGD with proximal steps. Each record is clipped by the joint norm of its gradient over the parties."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from vfl.base.arguments import one_of, option, require_positive
from vfl.queries.protocol import require_clip
from vfl.solvers import joint
from vfl.solvers.batches import BatchSolver
from vfl.solvers.releases.start import explain as explain_start

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.privacy.calibration import Charge
    from vfl.queries.protocol import Schedule

DECAYS = {"constant": 0.0, "root": 0.5}
PUBLIC_PASSES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD(BatchSolver):
    """Stochastic gradient descent. Each step releases a Gaussian sum over a batch, of sensitivity Δ under replace-one.

    With sampling='poisson' a step is accounted as a Poisson-subsampled Gaussian of rate q. The number T of steps is fixed
    before the first step, and the steps are accounted by their privacy loss distribution. With 'disjoint' a *pass* is Δ/σ-GDP.
    vfl.solvers.batches says for whom each guarantee holds, and why shuffled and fixed-size batches are refused.

    One release is Σ_{i in batch} clip_C(ℓ'(v_i, y_i) x_i) over all parties' coordinates jointly. A record's rounded
    contribution has norm at most a = C(1 + p·2⁻⁵⁰) + g√p/2, and Δ = 2a (vfl.solvers.joint derives both). The step
    w ← prox_{sψ}(w − s·u/(qn)) is post-processing; it uses the expected size qn, never the realised one. Source: Abadi et al.
    2016, Alg. 1; accounting of a subsampled step under replace-one: vfl.privacy.pld.

    batch_size : qn, expected size of a batch. sampling : 'poisson' or 'disjoint'.
    passes : expected number of times each record is used, which gives T = passes·n/batch_size steps.
    clip, iterate, label_share : as for GD.
    step_size : γ, as for GD, with L = 1 for a loss without curvature.
    decay : 'constant' steps, or 'root' for steps of γ/√(t+1) after t passes, as subgradients require.
    seed : public seed for the order of disjoint batches. Secret samples come from the noise source.
    """

    step_size: float | None = option(require_positive, None)
    decay: str | None = option(one_of(tuple(DECAYS)), None)

    name: ClassVar[str] = "SGD"

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided from public facts."""
        require_clip(self.name, problem, self.clip)
        joint.require_blocks(self.name, problem)
        smooth = math.isfinite(problem.loss.curvature)
        solver = replace(
            self._with_batches(problem, PUBLIC_PASSES),
            clip=self.clip if self.clip is not None else joint.default_clip(problem),
            decay=self.decay or ("constant" if smooth and problem.private else "root"),
            iterate=self.iterate or "tail",
        )
        limited = joint.default_step_size(problem, float(solver.clip or math.inf), solver._batches(problem).steps)
        return replace(solver, step_size=self.step_size if self.step_size is not None else limited)

    def releases(self, problem: Problem) -> tuple[Charge, ...]:
        """Return the event of the label statistic, if released, and one event per step ('poisson') or per pass ('disjoint')."""
        if not problem.private:
            return ()
        drawn = self._batches(problem)
        return self._start(problem).planned(drawn.charge(self._clip(problem)), cost=drawn.cost)

    def schedule(self, problem: Problem) -> Schedule:
        """In every step, draw the batch, release its clipped gradient, take a step, and rebuild Xw."""
        drawn, decay = self._batches(problem), DECAYS[self.decay or "constant"]
        slower = ((1.0 + t / drawn.steps_a_pass) ** decay for t in range(drawn.steps))
        size = self.step_size or 1.0
        return self._descended(problem, drawn.draws(), size, slower, drawn.steps, drawn.divisor)

    def messages(self, problem: Problem) -> int:
        """Return the number of messages: two per step, and those before the first step. Drawing a sample takes no message."""
        return self._messages(problem, self._batches(problem).steps)

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option."""
        return (
            self._batches(problem).describe(private=problem.private),
            f"clip C = {self.clip:.3g} on a record's whole gradient, joint over the parties.",
            f"step_size γ = {self.step_size:.3g}, {self.decay}; iterate = {self.iterate}.",
            *explain_start(self.label_share or 0.0),
            *joint.standing_still(problem, (self.step_size or 1.0) * self._batches(problem).steps),
        )
