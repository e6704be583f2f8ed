"""Output perturbation (Chaudhuri, Monteleoni, Sarwate 2011): solve without noise, then add noise to the minimiser once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.base.arguments import flag, option, require_positive
from vfl.errors import PrivacyError, SpecificationError
from vfl.privacy.calibration import noise_multiplier
from vfl.privacy.geometry import Clip
from vfl.privacy.mechanisms import release
from vfl.queries import Draw
from vfl.queries.protocol import Derivative, Solver
from vfl.queries.query import Joint
from vfl.solvers import joint
from vfl.solvers.releases import alone
from vfl.solvers.releases.smoothness import require_curvature
from vfl.solvers.rules.defaults import typical_spread

if TYPE_CHECKING:
    from vfl.base.problem import Problem
    from vfl.base.types import Vector
    from vfl.privacy.events import Event, Gaussian, ReleaseKey
    from vfl.privacy.noise import NoiseSource
    from vfl.queries.protocol import Released, Schedule

PRIVATE_TOLERANCE = 1e-3
GAINED = 0.1
"""Assumed share of the constant model's loss that an unpenalised model removes."""
PUBLIC_DISTANCE = 1e-10
"""Default distance from the minimiser at which a run without privacy stops."""


@dataclass(frozen=True, slots=True, eq=False)
class Publish(Joint, Draw):
    """Query that releases w, rounded to the grid of `clip`, with the noise of `event`. The coordinator answers the query."""

    w: Vector
    clip: Clip
    event: Gaussian | None

    def sizes(self) -> tuple[int, ...]:
        """Return p."""
        return (self.w.size,)

    def drawn(self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey) -> tuple[Released, tuple[()]]:
        """Return w, rounded to the grid, plus noise."""
        if self.event is None:
            return (self.w.copy(),), ()
        on_grid = np.rint(self.w / self.clip.grid).astype(np.int64)
        return (release(on_grid, self.clip.grid, self.event, noise, key, self.clip.sensitivity),), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPerturbation(Solver):
    """One release, the noisy minimiser of a strongly convex F. The release is μ-GDP with μ = Δ/σ under replace-one.

    Nothing leaves the participants before that release. Participants exchange gradients without noise (trust='trusted').

    Sensitivity. F must be λ-strongly convex in *all* coordinates, so ψ penalises the intercept too, unlike in most solvers
    (`plan` prints this). ℓ is R-Lipschitz, and ‖x_i‖ ≤ √ΣB_j² by the declared bounds. So replacing one record changes ∇f by
    at most 2Λ/n, with Λ = R√ΣB_j², and moves the minimiser by at most 2Λ/(λn) (Chaudhuri et al. 2011, Lemma 7, for
    replace-one). At the w to be published, F has a subgradient of norm at most τ, so w lies within τ/λ of the minimiser.
    Rounding to the grid g = 2^k moves w by at most g√p/2. Together Δ = 2Λ/(λn) + 2τ/λ + g√p.

    Solving. The solver takes accelerated proximal gradient steps, with ∇f from the parties. Public facts set the number of
    steps, which is enough *for any data within the bounds* (Beck 2017, Thm. 10.42). A number of rounds that depended on data
    would be visible. After the last step v → w⁺ = prox(v − ∇f(v)/L), the subgradient L(v − w⁺) + ∇f(w⁺) − ∇f(v) of F at w⁺
    has norm at most 2L‖v − w⁺‖, for L ≥ λ_max(∇²f). Before the release, the solver verifies that this bound is at most τ.

    tolerance : τ in units of Λ/n. The tolerance increases the noise by this share. None takes 1e-3 with privacy.
    constant : True releases the constant model alone (`vfl.solvers.releases.alone`), False never does. None releases that model
        alone if noise would raise F by more than a model can lower F (`outweighed`), unless `tolerance` is given or the job
        bounds fairness.
    """

    tolerance: float | None = option(require_positive, None)
    constant: bool | None = option(flag, None)

    name: ClassVar[str] = "OutputPerturbation"
    penalises_intercept: ClassVar[bool] = True

    @property
    def sealed(self) -> bool:
        """True unless the run releases only the constant model."""
        return not self.constant

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with its tolerance decided. Raise an error for an objective without a finite Δ."""
        loss, penalty = problem.loss, problem.penalty
        if not penalty.convexity > 0:
            raise SpecificationError(
                f"{self.name} needs a strongly convex objective, or one record may move the minimiser anywhere; the "
                f"{penalty.name} penalty adds no convexity: use L2 or ElasticNet with l1_ratio below 1, or SkGD"
            )
        if not math.isfinite(loss.slope):
            raise SpecificationError(
                f"{self.name} needs a loss with a bounded derivative, which bounds how far one record moves the minimiser; "
                f"{loss.name} has none: use 'huber', or SkGD"
            )
        require_curvature(self.name, problem)
        joint.require_blocks(self.name, problem)
        if not np.isfinite(problem.reach).all():
            raise PrivacyError(f"{self.name} needs declared bounds for every column: Δ follows from them")
        exceeded = self.tolerance is None and outweighed(problem)
        if alone.decided(self.name, problem, self.constant, outweighed=exceeded):
            return replace(self, constant=True)
        tolerance = self.tolerance
        if tolerance is None:
            exact = PUBLIC_DISTANCE * penalty.convexity * problem.n_records / _lipschitz(problem)
            tolerance = PRIVATE_TOLERANCE if problem.private else min(exact, PRIVATE_TOLERANCE)
        rounding = max(2.0**-44, _condition(problem) * 2.0**-51)
        if tolerance < rounding * problem.n_records:
            if self.tolerance is None and not problem.private:
                tolerance = rounding * problem.n_records
            else:
                raise SpecificationError(
                    f"{self.name}: tolerance={tolerance!r} is below what double precision can verify for so many records "
                    "under so weak a penalty: raise it, or the penalty's strength"
                )
        return replace(self, tolerance=tolerance, constant=False)

    def releases(self, problem: Problem) -> tuple[tuple[Event, int], ...]:
        """Return the event of releasing the minimiser, or of releasing the constant model."""
        if self.constant:
            return ((alone.event(problem), 1),)
        event = self._event(problem)
        return ((event, 1),) if event is not None else ()

    def schedule(self, problem: Problem) -> Schedule:
        """Take the planned number of steps, verify the subgradient, and release."""
        if self.constant:
            return (yield from alone.schedule(problem))
        n, p = problem.n_records, problem.layout.n_coordinates
        L, λ = _largest_curvature(problem), problem.penalty.convexity
        query = joint.backward(problem, Derivative(problem.loss), Clip(math.inf, p), None)
        root = math.sqrt(λ / (L + λ))
        momentum = (1.0 - root) / (1.0 + root)
        w = v = np.zeros(p)
        steps = self.steps(problem)
        for k in range(1, steps + 1):
            released = yield query
            moved = joint.proximal(problem, v - np.concatenate(released) / (n * L), 1.0 / L)
            v, w = moved + (momentum * (moved - w) if k < steps else 0.0), moved
            yield joint.forward(problem, v, "reset")
        released = yield query
        w = joint.proximal(problem, v - np.concatenate(released) / (n * L), 1.0 / L)
        if not 2.0 * L * float(np.linalg.norm(v - w)) <= self._tau(problem):
            raise PrivacyError(f"{self.name}: the minimiser was not reached to within the tolerance: raise tolerance")
        (published,) = yield Publish(w, self._geometry(problem), self._event(problem))
        return published

    def steps(self, problem: Problem) -> int:
        """Return a number of steps after which 2L‖v − w⁺‖ ≤ τ/2, for any data within the bounds.

        ‖L(v − w⁺)‖² ≤ 2L(F(v) − F*) (Beck 2017, Lemma 10.4), so F(v) − F* ≤ τ²/(32L) is enough. With
        f + λ‖·‖²/2 in place of f, the gap is at most (1 − 1/√κ)^k (F(0) − F* + λ‖w*‖²/2) (Thm. 10.42). The factor in brackets
        is at most ‖∇f(0)‖²/λ ≤ Λ²/λ by strong convexity, because ψ is minimal at 0.
        """
        L, λ, Λ = _largest_curvature(problem), problem.penalty.convexity, _lipschitz(problem)
        wanted = 32.0 * L * Λ**2 / (λ * self._tau(problem) ** 2)
        return 1 + math.ceil(math.sqrt(_condition(problem)) * math.log(max(wanted, math.e)))

    def messages(self, problem: Problem) -> int:
        """Return the number of messages: two per step, and one to verify the subgradient. The release takes no message."""
        return 1 if self.constant else 2 * self.steps(problem) + 1

    def radius(self, problem: Problem, chance: float) -> float:
        """Return a distance from the minimiser that the published w exceeds with probability at most `chance`.

        The distance is public and costs no budget. The noise is N(0, σ²) on p coordinates, and the solved w lies within τ/λ
        of the minimiser. w and the noise are each rounded to the grid g, which moves each of them by at most g√p/2.
        """
        from scipy.special import chdtri

        if self.constant:
            raise SpecificationError(
                f"{self.name}(constant=True) gives no bound on the distance from the model without noise: leave constant out, "
                "or set the bound of fairness to false"
            )
        event, geometry, p = self._event(problem), self._geometry(problem), problem.layout.n_coordinates
        solved = self._tau(problem) / problem.penalty.convexity
        if event is None:
            return solved
        noise = event.sigma * math.sqrt(float(chdtri(p, chance)))
        return (noise + solved + geometry.grid * math.sqrt(p)) * (1.0 + 1e-12)

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option."""
        if self.constant:
            remedy = "A stronger penalty, fewer columns"
            return alone.explain(self.name, problem, remedy, outweighed=outweighed(problem))
        Λ, λ = _lipschitz(problem), problem.penalty.convexity
        move = f"Λ = {Λ:.3g} by the declared bounds, λ = {λ:.3g}, 2Λ/(λn) = {2 * Λ / (λ * problem.n_records):.3g}"
        enough = f"enough for any data within the bounds; subgradient verified to {self._tau(problem):.2g}"
        return (
            f"one release, of the minimiser: {move}.",
            f"{self.steps(problem)} exact steps, {enough}.",
            "participants see exact gradients before that release: for trust='trusted' only.",
        )

    def _tau(self, problem: Problem) -> float:
        return (self.tolerance or PRIVATE_TOLERANCE) * _lipschitz(problem) / problem.n_records

    def _geometry(self, problem: Problem) -> Clip:
        """Return the grid step and Δ.

        For both of two adjacent data sets, training ends within `cap` of the midpoint between their two minimisers.
        """
        half = (_lipschitz(problem) / problem.n_records + self._tau(problem)) / problem.penalty.convexity
        return Clip(half, problem.layout.n_coordinates)

    def _event(self, problem: Problem) -> Gaussian | None:
        return self._geometry(problem).event(noise_multiplier(problem.mu, 1)) if problem.mu is not None else None


def bounding(solver: Solver) -> Solver:
    """Return the solver of a job that bounds unfairness: output perturbation trains a model unless `constant` is True.

    The bound follows from the noise of the minimiser (`OutputPerturbation.radius`). The constant model has no such bound.
    """
    if isinstance(solver, OutputPerturbation) and solver.constant is None:
        return replace(solver, constant=False)
    return solver


def outweighed(problem: Problem) -> bool:
    """Return True if, by public facts, noise is expected to raise F by more than a model can lower F.

    Let v be the mean variance of a column, assumed to be B_j²/9. The noise raises F by ½(Lpv + λp)σ². A model lowers F by
    GAINED·ℓ·Lv/(Lv + λ), where the last factor is the effect of the penalty. Here ℓ is the loss at margin 0, for a label of 1
    or for a numeric label at one typical spread from 0.
    """
    if problem.mu is None:
        return False
    L, λ, p = problem.loss.curvature, problem.penalty.convexity, problem.layout.n_coordinates
    σ = 2.0 * _lipschitz(problem) / (λ * problem.n_records * problem.mu)
    bend = L * joint.squares_bound(problem) / (9.0 * p)
    label = typical_spread(problem) if math.isfinite(problem.label_range) else problem.loss.slope
    constant = float(problem.loss.value(np.zeros(1), np.array([1.0 if problem.loss.classification else label])).mean())
    gained = GAINED * constant * bend / (bend + λ)
    return 0.5 * p * (bend + λ) * σ**2 > gained


def _lipschitz(problem: Problem) -> float:
    """Return Λ = R√ΣB_j², the largest norm of one record's gradient."""
    return problem.loss.slope * math.sqrt(joint.squares_bound(problem))


def _largest_curvature(problem: Problem) -> float:
    return problem.loss.curvature * joint.squares_bound(problem)


def _condition(problem: Problem) -> float:
    return 1.0 + _largest_curvature(problem) / problem.penalty.convexity
