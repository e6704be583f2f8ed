"""Solver DP-SCD: dual coordinate ascent over the records (Damaskinos et al. 2021), with noise only on the shared vector v."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vfl.base.arguments import one_of, option, require_positive
from vfl.base.penalties import L2
from vfl.errors import BudgetExceeded, PrivacyError, SpecificationError
from vfl.kernels.geometry import record_limits
from vfl.privacy.events import Gaussian
from vfl.privacy.geometry import Clip
from vfl.privacy.mechanisms import release
from vfl.queries import Draw, Weighting
from vfl.queries.protocol import require_clip
from vfl.solvers import joint
from vfl.solvers.batches import BatchSolver
from vfl.solvers.iterates.convergence import Average
from vfl.solvers.releases import counts
from vfl.solvers.releases.start import explain as explain_start
from vfl.solvers.rules.defaults import signal_to_noise

if TYPE_CHECKING:
    from vfl.base.losses import Loss
    from vfl.base.problem import Problem
    from vfl.base.types import Kept, Vector
    from vfl.privacy.calibration import Charge
    from vfl.privacy.events import ReleaseKey
    from vfl.privacy.noise import NoiseSource
    from vfl.queries.protocol import Released, Schedule

RELEASES = ("v", "both")
DUALS, PERTURBATION = "duals", "perturbation"
PUBLIC_PASSES = 200
PRIVATE_OVERLAP = 0.3
"""Share of a batch that is assumed to pull in one direction. 1 is safe for any data, but too slow for private runs."""


@dataclass(frozen=True, slots=True)
class DualStep(Weighting):
    """Weights r_i = ζ_i·min(1, C/(|ζ_i|‖x_i‖)), 0 outside of the batch. The coordinator keeps α + r under the name 'duals'.

    If one label is rarer than the other, logistic steps are first shrunk by a factor that leaves the intercept unchanged.

    coupling : σ'/(λn), the factor of ‖x_i‖² in the q of `Loss.dual_step`.
    grid : grid of the changes of α if α has its own noise ('perturbation'). Then |ζ_i| ≤ C, too. None adds no noise to α.
    """

    loss: Loss
    cap: float
    coupling: float
    grid: float | None = None

    def __call__(self, margins: Vector, labels: Vector, kept: Kept) -> tuple[Vector, Kept]:
        """Return r, (n,), and the new α, (n,)."""
        α = kept.get(DUALS, np.zeros_like(margins))
        q = self.coupling * kept["norms"]
        held = kept if self.grid is None else {**kept, "norms": np.maximum(kept["norms"], 1.0)}
        ζ = self.loss.dual_step(margins, labels, α, q)
        if self.loss.log_odds and math.isfinite(self.cap):
            # The cap alone would clip mainly the longer steps of the rarer label, and so bias the intercept. This factor hardly
            # depends on the label, since α is small if caps are tight (vfl.kernels.geometry.capped).
            residual = abs(self.loss.derivative(margins, labels))
            longest = (np.maximum(residual, 1.0 - residual) + abs(α)) / (1.0 + q * self.loss.curvature)
            ζ = ζ * np.minimum(1.0, record_limits(held["norms"], self.cap) / longest)
        r = joint.clipped(ζ, held, self.cap)
        if self.grid is None:
            return r, {DUALS: α + r}
        return r, {DUALS: α + self.grid * np.rint(r / self.grid) + kept[PERTURBATION] * kept["batch"]}


@dataclass(frozen=True, slots=True, eq=False)
class Perturb(Draw):
    """Query for the noise on α in a joint release of [α; v]. The coordinator keeps this noise, (n,), so nothing is released.

    After a loss of the state, and in a new process, it is drawn again. Drawing again costs nothing, because α stays secret: by
    the argument of `SCD`, the noise on v covers the releases for any α.

    event : event of the joint release, which is charged when v is released.
    clip : geometry of the noise of one α_i.
    """

    event: Gaussian
    clip: Clip

    @property
    def target(self) -> str:
        """Name under which the coordinator keeps the noise, in addition to the margins."""
        return PERTURBATION

    def drawn(
        self, counts: tuple[int, ...], noise: NoiseSource, key: ReleaseKey
    ) -> tuple[Released, tuple[Vector, ...]]:
        """Draw the noise, for all records at once."""
        zeros = np.zeros(sum(counts), np.int64)
        drawn = release(zeros, self.clip.grid, self.event, noise, key, self.clip.sensitivity)
        return (), tuple(np.split(drawn, np.cumsum(counts[:-1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class SCD(BatchSolver):
    """Dual coordinate ascent. Each step releases a Gaussian sum over a batch, with Δ = 2C plus rounding under replace-one.

    The dual of F has one variable α_i per record, and w = v/(λn) with v = Σ α_i x_i. A step computes ζ_i for the records of
    a batch, each from the same released v. The step adds the ζ_i to α, which the coordinator keeps beside the margins and
    never releases or logs. The step then releases Σ_{i in batch} ζ_i x_i, with ‖ζ_i x_i‖ ≤ C over all parties jointly, and
    noise of one event. A record's rounded contribution has norm at most a = C(1 + p·2⁻⁵⁰) + g√p/2, and Δ = 2a
    (vfl.solvers.joint).

    Noise on v alone is enough, but *not* by post-processing: ζ_i depends on α_i, which holds the record's own past. Proof:
    Let two data sets differ in record i.

    1. Fix the coins that draw all other records, at all steps. The coins are independent of the data. By joint convexity, a
       bound for every value of the coins bounds the mixture over them.
    2. Given the values o released so far, the other records' α and contributions are the same function of o in both
       worlds.
    3. α_i is a function of record i, o, and i's own earlier coins. Its distribution given o differs between the worlds.
       The draw of i in *this* step is independent of all of that, with probability q. The step's output given o is
       therefore (1 − q)·N(c, σ²) + q·E_{α_i}[N(c + ζ_i(α_i) x_i, σ²)], with the same c in both worlds and contributions
       of norm at most a. By joint convexity this is no worse than the worst pair of single contributions, the
       Poisson-subsampled pair of vfl.privacy.pld, for any o.
    4. The steps therefore compose adaptively like such pairs, for a plan that is fixed beforehand.

    The argument needs independent draws of fixed probability, a fixed divisor (λn here, never the realised size), updates
    that do not see each other inside a batch, and an α that never leaves the coordinator. With disjoint public batches, the
    same argument, with q = 1 for the record's own batch and 0 for all other batches, makes a pass Δ/σ-GDP. That argument
    needs secrecy of α, but the batches may be public.

    The paper's variant, release='both', adds noise to α as well, so that [α; v] could be published (vfl never does). α on a
    batch shows the records that were drawn, so there is no amplification and sampling='poisson' is refused. On disjoint public
    batches a pass is Δ/σ-GDP with Δ² = Δ_α² + Δ_v², that is 2√2·C plus rounding: one entry of α moves, by 2(C + g/2) with
    |ζ_i| ≤ C. Everything else is post-processing, because no secret state remains. The variant needs √2 times the noise
    and is meant for comparisons.

    The duality gap needs every record's α and margin. No query computes the gap, and no charge would cover the gap, so no
    decision depends on it. The schedule follows from public facts.

    Related: sequential SDCA is batch_size=1, overlap=1, sampling='disjoint'. The primal variant, vfl.solvers.CD, descends along
    features instead of records.

    F needs λ > 0 on every coordinate: penalty=L2(λ), and the intercept, if any, is penalised too (`plan` says so).
    Source: Damaskinos, Mendler-Dünner, Guerraoui, Papandreou, Parnell 2021, Alg. 1; the argument above is this project's.

    batch_size, sampling, passes, seed : as for SGD.
    clip : C, cap on ‖ζ_i x_i‖. None lets a public rule decide; inf clips nothing.
    overlap : σ', number of records of a batch that are assumed to pull in one direction. The batch size is always safe; 1 suits
        orthogonal records. Without privacy, None takes the batch size. With privacy, None takes 0.3 of the batch size, or more
        if noise would cost more than the steps gain (`joint.time_limit`).
    label_share : approximate share of μ² for the starting model w₀, the constant model, as for SGD. The penalty then applies to
        w − w₀ instead of w; w₀ and 0 differ only in the intercept.
    release : 'v', or 'both' for the paper's [α; v].
    iterate : 'last', or 'tail' for the average of the last half.
    """

    overlap: float | None = option(require_positive, None)
    release: str = option(one_of(RELEASES), "v")

    name: ClassVar[str] = "SCD"
    weighs: ClassVar[bool] = False
    penalises_intercept: ClassVar[bool] = True

    def __post_init__(self) -> None:
        BatchSolver.__post_init__(self)
        if self.release == "both" and self.sampling == "poisson":
            raise PrivacyError(
                "SCD: release='both' cannot have sampling='poisson', since α on a batch shows which records were "
                "drawn. Use sampling='disjoint', where a pass is charged once, or release='v'"
            )

    def resolve(self, problem: Problem) -> Self:
        """Return a copy of the solver with every option decided. Raise an error for a loss or penalty without a dual step."""
        require_clip(self.name, problem, self.clip)
        joint.require_blocks(self.name, problem)
        loss = problem.loss
        if not loss.closed_dual and not math.isfinite(loss.curvature):
            raise SpecificationError(
                f"SCD with loss={loss.name!r} needs a closed form of the dual step or a bounded second derivative; "
                "it has neither: use SGD"
            )
        if not isinstance(problem.penalty, L2) or not problem.penalty.strength > 0:
            raise SpecificationError(
                "SCD solves the dual of a strongly convex objective: give an L2 penalty of positive strength"
            )
        solver = replace(
            self,
            sampling=self.sampling or ("disjoint" if self.release == "both" else None),
            passes=self.passes or (_default_passes(problem) if problem.private else PUBLIC_PASSES),
            iterate=self.iterate or ("tail" if problem.private else "last"),
        )._with_batches(problem, PUBLIC_PASSES)
        overlap = self.overlap or max(
            1.0, (PRIVATE_OVERLAP if problem.private else 1.0) * solver._batches(problem).divisor, solver._slow(problem)
        )
        solver = replace(solver, overlap=overlap)
        return replace(solver, clip=self.clip if self.clip is not None else solver._default_clip(problem))

    def _default_clip(self, problem: Problem) -> float:
        """Return the default clip: the gradient's, divided by 1 + qL like the dual step of a typical record of coupling q."""
        if not problem.private:
            return math.inf
        L = problem.loss.curvature if math.isfinite(problem.loss.curvature) else 1.0
        return joint.default_clip(problem) / (1.0 + self._coupling(problem) * joint.squares_bound(problem) / 3.0 * L)

    def _slow(self, problem: Problem) -> float:
        """Return the overlap at which all passes together just reach `joint.time_limit`; 0 without privacy.

        A pass with overlap σ' moves w as far as gradient steps whose γ sum to n/(r²σ'). r² = ‖x‖²/ΣB_j² is taken as 2/3: on
        two simulated problems, r² = 1/3 left up to 5 % more loss at ε = 1, and 4/3 left up to 3 % more at ε = 0.1.
        """
        if not problem.private or self.clip is not None:
            return 0.0
        return 1.5 * (self.passes or 1) * problem.n_records / joint.time_limit(problem, joint.default_clip(problem))

    def asks_norms(self, problem: Problem) -> bool:
        """Return True: the length of every dual step depends on the norm of the record."""
        return True

    def _coupling(self, problem: Problem) -> float:
        return (self.overlap or 1.0) / (problem.penalty.convexity * problem.n_records)

    def _dual_clip(self) -> Clip:
        return Clip(float(self.clip or math.inf), 1)

    def releases(self, problem: Problem) -> tuple[Charge, ...]:
        """Return the event of the label statistic, if released, and one event per step ('poisson') or per pass ('disjoint')."""
        if not problem.private:
            return ()
        drawn = self._batches(problem)
        event, count = drawn.charge(self._clip(problem))
        if self.release == "both":
            both = math.hypot(event.sensitivity, self._dual_clip().sensitivity) * (1.0 + 2.0**-50)
            event = replace(event, sensitivity=both)
        return self._start(problem).planned((event, count), cost=drawn.cost)

    def schedule(self, problem: Problem) -> Schedule:
        """In every step, draw the batch, release Σ ζ_i x_i, add it to v, and update Xw.

        Xw is never rebuilt, so that a resumed run can repeat every step of α from the released values.
        """
        clip, drawn = self._clip(problem), self._batches(problem)
        charges = self.releases(problem)
        event = charges[-1][0] if charges else None
        dual = self._dual_clip() if event is not None and self.release == "both" else None
        per_unit = 1.0 / (problem.penalty.convexity * problem.n_records)
        if not problem.private:
            yield from joint.mean_square(self.name, problem)  # refuse overflowing norms: they would make all steps 0
        w = np.zeros(problem.layout.n_coordinates)
        loss = problem.loss
        if self.label_share or counts.is_exact(problem):
            first, loss, _ = yield from self._start(problem).found(charges)
            # An exact run starts at 0, since no dual variable matches another starting model.
            w = first if self.label_share else w
        weighting = DualStep(loss, clip.cap, self._coupling(problem), dual.grid if dual else None)
        yield joint.record_norms(problem)
        if self.label_share:
            yield joint.forward(problem, w, "reset")
        mean = Average(self.iterate or "last", drawn.steps // 2)
        for t, (sample, fold) in enumerate(drawn.draws()):
            if sample is not None:
                yield sample
            if dual is not None and isinstance(event, Gaussian):
                yield Perturb(event, dual)
            try:
                released = yield joint.backward(problem, weighting, clip, event, fold)
            except BudgetExceeded:
                break
            delta = per_unit * np.concatenate(released)
            w = w + delta
            mean.add(w)
            if t + 1 < drawn.steps:
                yield joint.forward(problem, delta, "add")
        return mean.final(w)

    def messages(self, problem: Problem) -> int:
        """Return the number of messages: two per step, and one for the norms. Drawing a sample takes no message."""
        asked = (
            2 * bool(self.label_share)
            + counts.is_exact(problem)
            + (not problem.private and joint.asks_mean_square(problem))
        )
        return 2 * self._batches(problem).steps + asked

    def explain(self, problem: Problem) -> tuple[str, ...]:
        """Return one sentence for every option."""
        said = ("the intercept is penalised like any other coordinate, as the dual requires.",)
        intercept = said if problem.intercept.any() else ()
        return (
            self._batches(problem).describe(private=problem.private),
            f"clip C = {self.clip:.3g} on a record's dual step ζ_i x_i; overlap σ' = {self.overlap:.4g}.",
            f"iterate = {self.iterate}.",
            *explain_start(self.label_share or 0.0),
            *(("both α and v are noised, at √2 times the noise of v alone.",) if self.release == "both" else ()),
            *intercept,
        )


def _default_passes(problem: Problem) -> int:
    """Return the number of private passes, ρ/100 between 2 and 10. All noise adds up in v, and no averaging removes it."""
    return min(10, max(2, round(signal_to_noise(problem) / 100.0)))
