"""Batches of records, one per step: secret Poisson samples or disjoint public batches, and the privacy cost of both.

Guarantee under replace-one, for steps in which one record's contribution has norm at most Δ/2:

- 'poisson': every step draws a new secret batch, in which each record is included independently with probability q. Sums are
        divided by the *expected* batch size qn, never by the realised one. A step is then a Poisson-subsampled Gaussian
        release. The number of steps is fixed beforehand, and all steps are accounted together by their privacy loss
        distribution (vfl.privacy.pld; extra `accounting`). The amplified ε holds for readers of the model and of the releases.
        This ε does not hold for the participants: the coordinator draws the batch, and parties see weights of 0 outside the
        batch.
- 'disjoint': a pass splits the records into disjoint public batches, in a new public order each time. Each record is part of
  one release per pass, so a pass is μ-GDP with μ = Δ/σ (parallel composition). This guarantee also holds for the
  participants.

Random batches of fixed size and shuffled batches are *not* Poisson samples. vfl claims no amplification for such batches and
does not offer them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from vfl.base.arguments import option, whole
from vfl.base.types import Adjacency
from vfl.errors import SpecificationError
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian
from vfl.queries import Fold, Sample
from vfl.solvers.joint import JointSolver, default_passes
from vfl.solvers.releases.start import share_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.base.problem import Problem
    from vfl.privacy.calibration import Charge
    from vfl.privacy.geometry import Clip

SAMPLINGS = ("poisson", "disjoint")
UNSUPPORTED = {
    "shuffled": "batches of a shuffled pass are not Poisson samples, and no accountant supports their amplification",
    "fixed": "batches of a fixed size drawn at random are not Poisson samples: under replace-one their members depend on "
    "each other",
}
RATE_BITS = 40


def accounted(argument: str, sampling: str) -> str:
    """Return the sampling scheme. Raise SpecificationError, which gives the reason, for one without a valid accounting."""
    if sampling in SAMPLINGS:
        return sampling
    reason = UNSUPPORTED.get(sampling, "it is not known")
    raise SpecificationError(f"{argument}={sampling!r} is refused: {reason}; use 'poisson' or 'disjoint'")


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of all steps of a run.

    sampling : 'poisson' or 'disjoint'. batch_size : expected number of records per batch.
    passes : expected number of times that a record is used. seed : public seed for the order of disjoint batches.
    """

    n_records: int
    sampling: str
    batch_size: int
    passes: int
    seed: int

    @property
    def steps_a_pass(self) -> int:
        """Return the number of batches per pass."""
        return max(1, round(self.n_records / min(self.batch_size, self.n_records)))

    @property
    def steps(self) -> int:
        """Return T, the number of steps of the run."""
        return self.passes * self.steps_a_pass

    @property
    def rate(self) -> float:
        """Return the sampling rate q, rounded to a multiple of 2⁻⁴⁰, so that the comparison with random words is exact."""
        return ((1 << RATE_BITS) // self.steps_a_pass) / (1 << RATE_BITS)

    @property
    def divisor(self) -> float:
        """Return qn, the expected batch size, by which sums over a batch are divided."""
        return self.rate * self.n_records

    @property
    def cost(self) -> float:
        """Return μ² of all steps at σ = Δ. A disjoint pass costs 1. A step that samples at a small rate q costs q²."""
        return float(self.passes) if self.sampling == "disjoint" else self.steps * self.rate**2

    def charge(self, clip: Clip) -> Charge:
        """Return the charge of all steps as (event, count), with noise σ = Δ."""
        Δ = clip.sensitivity
        if self.sampling == "poisson":
            return PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, Δ, Δ, self.rate), self.steps
        return Gaussian(Adjacency.REPLACE_ONE, Δ, Δ, clip.dimension), self.passes

    def draws(self) -> Iterator[tuple[Sample | None, Fold | None]]:
        """Yield for each step: (query that draws the secret batch, None), or (None, public batch)."""
        for number in range(self.passes):
            for k in range(self.steps_a_pass):
                if self.sampling == "poisson":
                    yield Sample(self.rate), None
                else:
                    yield None, Fold(k, self.steps_a_pass, (self.seed, number))

    def describe(self, *, private: bool) -> str:
        """Return a sentence about the batches for the plan."""
        said = f"{self.steps} steps over batches of about {self.divisor:.4g} records"
        if not private:
            return f"{said}."
        if self.sampling == "poisson":
            return (
                f"{said}, sampled secretly: ε relies on that secrecy, so it holds for readers of the model, not for the "
                "participants, who see the batches; it covers this one fit and its fixed plan."
            )
        return f"{said}, disjoint and public: a pass costs one release, for everybody."


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSolver(JointSolver):
    """Base class of the solvers that take one step per batch of records."""

    batch_size: int | None = option(whole(), None)
    sampling: str | None = option(accounted, None)
    seed: int = 0

    def _batches(self, problem: Problem) -> Batches:
        return Batches(
            problem.n_records, self.sampling or "disjoint", self.batch_size or 1, self.passes or 1, self.seed
        )

    def _with_batches(self, problem: Problem, public_passes: int) -> Self:
        """Return a copy of the solver, with the batches, the passes and the share of the label statistics decided.

        A batch has n/20 records, but at least 64. Under privacy, noise depends on the number of steps and hardly on the batch
        size. Private runs sample batches, because amplification lowers the noise.

        public_passes : default number of passes without privacy.
        """
        size = self.batch_size or min(problem.n_records, max(64, problem.n_records // 20))
        passes = default_passes(problem, size) if problem.private else public_passes
        return replace(
            self,
            batch_size=size,
            sampling=self.sampling or ("poisson" if problem.private else "disjoint"),
            passes=self.passes or passes,
            label_share=share_of(self.name, problem, self.label_share, self.clip),
        )
