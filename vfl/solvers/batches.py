"""Which records a step works on, and what that costs: secret Poisson samples, or disjoint public batches.

Guarantee, for steps whose one record's contribution has norm at most Δ/2, under replace-one:

- 'poisson': every step draws its batch secretly and afresh, each record with probability q by itself, and divides by
  the *expected* size qn, never by the realised one. A step is then a Poisson-subsampled Gaussian pair, and all steps,
  committed to beforehand, are accounted by their privacy loss distribution (vfl.privacy.pld; extra `accounting`). It
  holds for whoever sees the model and what was released. The coordinator draws the batch and the parties are shown
  weights that are 0 outside it, so for them the release is what it is without sampling.
- 'disjoint': a pass walks through disjoint batches that are public, in a new public order each time. A record takes
  part in one release of a pass, so a pass is μ-GDP with μ = Δ/σ (parallel composition), for everybody.

Batches of fixed size drawn at random, and shuffled ones, are *not* Poisson samples: no amplification is claimed for
them, and there is no option for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vfl.errors import SpecificationError
from vfl.messages import Fold, Sample
from vfl.privacy.events import Gaussian, PoissonSubsampledGaussian
from vfl.types import Adjacency

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfl.privacy.calibration import Charge
    from vfl.privacy.geometry import Clip
    from vfl.problem import Problem

SAMPLINGS = ("poisson", "disjoint")
UNVOUCHED = {
    "shuffled": "batches of a shuffled pass are not Poisson samples, and no accountant here vouches for their "
    "amplification",
    "fixed": "batches of a fixed size drawn at random are not Poisson samples: under replace-one their members depend on "
    "each other",
}
RATE_BITS = 40


def require_sampling(solver: str, sampling: str | None) -> None:
    """Raise SpecificationError for a sampling that nobody can vouch for, with the reason."""
    if sampling is None or sampling in SAMPLINGS:
        return
    reason = UNVOUCHED.get(sampling, "it is not known")
    raise SpecificationError(f"{solver}: sampling={sampling!r} is refused: {reason}; use 'poisson' or 'disjoint'")


def default_sampling(problem: Problem) -> str:
    """Return 'poisson' with privacy: amplification divides the noise. Else 'disjoint': an ordinary pass."""
    return "poisson" if problem.private else "disjoint"


def default_batch_size(problem: Problem) -> int:
    """Return a twentieth of the records, at least 64: noise depends on the steps' number, not on the rate."""
    return min(problem.n_records, max(64, problem.n_records // 20))


@dataclass(frozen=True, slots=True)
class Batches:
    """The steps of a run.

    batch_size : expected number of records in a batch. passes : expected number of times a record is used.
    seed : orders disjoint batches; public.
    """

    n_records: int
    sampling: str
    batch_size: int
    passes: int
    seed: int

    @property
    def steps_a_pass(self) -> int:
        """Return how many batches make a pass."""
        return max(1, round(self.n_records / min(self.batch_size, self.n_records)))

    @property
    def steps(self) -> int:
        """Return T."""
        return self.passes * self.steps_a_pass

    @property
    def rate(self) -> float:
        """Return q, a multiple of 2⁻⁴⁰ that words can be compared with exactly."""
        return ((1 << RATE_BITS) // self.steps_a_pass) / (1 << RATE_BITS)

    @property
    def divisor(self) -> float:
        """Return qn, by which sums over a batch are divided."""
        return self.rate * self.n_records

    @property
    def queries_a_step(self) -> int:
        """Return 1 where a batch has to be drawn before a step; the coordinator does it alone."""
        return int(self.sampling == "poisson")

    def charge(self, clip: Clip, noise_multiplier: float = 1.0) -> Charge:
        """Return what all steps are charged as: (event, count), with σ = zΔ."""
        Δ = clip.sensitivity
        if self.sampling == "poisson":
            return PoissonSubsampledGaussian(Adjacency.REPLACE_ONE, Δ, noise_multiplier * Δ, self.rate), self.steps
        return Gaussian(Adjacency.REPLACE_ONE, Δ, noise_multiplier * Δ, clip.dimension), self.passes

    def draws(self) -> Iterator[tuple[Sample | None, Fold | None]]:
        """Yield, for every step, the query that draws its batch, or the public fold that it works on."""
        for number in range(self.passes):
            for k in range(self.steps_a_pass):
                if self.sampling == "poisson":
                    yield Sample(self.rate), None
                else:
                    yield None, Fold(k, self.steps_a_pass, (self.seed, number))

    def describe(self, *, private: bool) -> str:
        """Return a sentence for whoever reads a plan."""
        said = f"{self.steps} steps over batches of about {self.divisor:.4g} records"
        if not private:
            return f"{said}."
        if self.sampling == "poisson":
            return (
                f"{said}, sampled secretly: ε counts that secrecy, so it holds for whoever sees the model, not for the "
                "participants, who see the batches; it covers this one fit and a plan committed to beforehand."
            )
        return f"{said}, disjoint and public: a pass costs what one release does, for everybody."
