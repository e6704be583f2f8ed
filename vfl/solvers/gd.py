"""Solver DP-GD: full-batch proximal gradient descent with per-record clipping, the simplest baseline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from vfl.base.arguments import option, require_positive
from vfl.queries.protocol import require_clip
from vfl.solvers import joint
from vfl.solvers.iterates.convergence import TOLERANCE, describe, tolerance
from vfl.solvers.releases.smoothness import require_curvature
from vfl.solvers.releases.start import explain as explain_start
from vfl.solvers.releases.start import share_of

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.privacy.calibration import Charge
    from vfl.queries.protocol import Schedule

PUBLIC_PASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GD(joint.JointSolver):
    """Gradient descent. Each pass releases once, μ-GDP with μ = Δ/σ under replace-one; the run is √passes·Δ/σ-GDP, exactly.

    One release is Σ_i clip_C(ℓ'(v_i, y_i) x_i) over all parties' coordinates jointly, with Δ = 2(C(1 + p·2⁻⁵⁰) + g√p/2)
    and noise N(0, σ²) on every coordinate. vfl.solvers.joint derives Δ, rounding to the grid g included. The step
    w ← prox_{sψ}(w − s·u/n), with s = γ/(L·mean‖x‖²) and L the largest ℓ'', is post-processing. Source: Bassily, Smith,
    Thakurta 2014, without sampling; clipping as in Abadi et al. 2016.

    passes : number of steps. None lets a public rule decide (vfl.solvers.joint).
    clip : C, cap on the norm of one record's whole gradient on the scaled features. None lets a public rule decide; inf clips
        nothing.
    step_size : γ. The value 1 is safe, because mean‖x‖² bounds the largest eigenvalue of XᵀX/n. None takes 1, or less if noise
        would cost more than the steps gain (`joint.time_limit`).
    iterate : 'last', or 'tail' for the average of the last half.
    label_share : approximate share of the budget μ² that pays for starting the intercept at the constant model
        (vfl.solvers.releases.start). None lets a public rule decide, but takes 0 if the clip is given. 0 releases nothing.
    tol : without privacy, stop once a step moves no coordinate by more than this share of the largest one. None takes 1e-9, but
        never stops early if `passes` is given. With privacy `tol` must be None: the number of steps must not depend on data.
    """

    step_size: float | None = option(require_positive, None)
    tol: float | None = option(TOLERANCE, None)

    name: ClassVar[str] = "GD"
    multinomial: ClassVar[bool] = True
    warm_starts: ClassVar[bool] = True

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided. Raises an error for a loss without finite curvature."""
        require_clip(self.name, problem, self.clip)
        joint.require_blocks(self.name, problem)
        require_curvature(self.name, problem)
        passes = self.passes or (joint.default_steps(problem) if problem.private else PUBLIC_PASSES)
        clip = self.clip if self.clip is not None else joint.default_clip(problem)
        size = self.step_size if self.step_size is not None else joint.default_step_size(problem, clip, passes)
        return replace(
            self,
            passes=passes,
            clip=clip,
            step_size=size,
            label_share=share_of(self.name, problem, self.label_share, self.clip),
            iterate=self.iterate or ("tail" if problem.private else "last"),
            tol=tolerance(self.name, problem, self.tol, limited=self.passes is not None),
        )

    def releases(self, problem: Problem) -> tuple[Charge, ...]:
        """Return one event for the label statistic, if it is released, and one Gaussian event per pass."""
        if not problem.private:
            return ()
        passes = self.passes or 1
        return self._start(problem).planned((self._clip(problem).event(1.0), passes), cost=passes)

    def schedule(self, problem: Problem) -> Schedule:
        """In every pass, release the clipped gradient, take a step, and rebuild Xw."""
        passes, size = self.passes or 1, self.step_size or 1.0
        whole = [(None, None)] * passes
        return self._descended(problem, whole, size, [1.0] * passes, passes, problem.n_records, self.tol)

    def messages(self, problem: Problem) -> int:
        """Return the number of messages: two per pass, and those before the first pass."""
        return self._messages(problem, self.passes or 1)

    def last_pass(self, problem: Problem) -> int | None:
        """Return the number of passes of a run that never meets the stopping rule; None without a tolerance."""
        return None if self.tol is None else self.passes

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option."""
        return (
            f"{self.passes} steps over all records and coordinates; clip C = {self.clip:.3g} on a record's whole gradient.",
            f"step_size γ = {self.step_size:.3g}, in units of 1/(L·mean‖x‖²); iterate = {self.iterate}.",
            *explain_start(self.label_share or 0.0),
            *joint.standing_still(problem, (self.step_size or 1.0) * (self.passes or 1)),
            *describe(self.tol),
        )
