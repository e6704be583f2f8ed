"""Guesses between two data sets D1 and D0: the exact log-likelihood ratio of a run, and bounds on right guesses.

No test between two data sets is more powerful than a threshold on this ratio (Neyman & Pearson 1933). Each release of a run has
a known density given the earlier releases, so the ratio of the whole run is a sum over its releases. With the released value
u and the exact values s1 on D1 and s0 on D0, each release adds

    Gaussian     (‖u − s0‖² − ‖u − s1‖²)/2σ²
    sampled      log[(1 − q) N(u; s, σ²) + q N(u; s1, σ²)] − log[(1 − q) N(u; s, σ²) + q N(u; s0, σ²)],  s without the canary
    selection    log softmax(scores on D1)_winner − log softmax(scores on D0)_winner

Let a fair coin choose D1 or D0, and let an opponent guess the choice from all releases. If the releases are μ-GDP for the
pair (D1, D0), a guess is right with probability at most Φ(μ/2): a guess with error rates a and b has Φ⁻¹(1 − a) − Φ⁻¹(b) ≤ μ
(Dong, Roth, Su 2022, §2), and 1 − (a + b)/2 is then largest at a = b. Under any other claim the probability is at most
(1 + δ(0))/2, since δ(0) is the largest total variation distance between the releases on D1 and on D0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vfl.errors import PrivacyError
from vfl.privacy.accountants import GaussianAccountant, PldAccountant, ZCdpAccountant
from vfl.privacy.events import BoundedRange, Event, Gaussian, PoissonSubsampledGaussian
from vfl.privacy.gaussian_dp import epsilon_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vfl.apps.auditing.rehearsal import Release
    from vfl.base.types import Vector

CERTAIN = 1e6
"""Log-likelihood ratio of a value that only one of the two data sets can release."""


def log_ratio(releases: Iterable[Release]) -> float:
    """Return the logarithm of (likelihood of the releases on D1) / (likelihood on D0)."""
    return sum(_ratio(release) for release in releases)


def _ratio(release: Release) -> float:
    from scipy.special import logsumexp

    s0, s1 = release.exact
    u, event = release.value, release.event
    if release.selection:
        winner = int(u[0])
        if event is None:
            return CERTAIN * (float(s1[winner] == s1.max()) - float(s0[winner] == s0.max()))
        return float((s1[winner] - logsumexp(s1)) - (s0[winner] - logsumexp(s0)))
    if isinstance(event, PoissonSubsampledGaussian) and release.absent is not None:
        before = _mixed(u, release.absent, s0, event)
        return _mixed(u, release.absent, s1, event) - before
    if event is None:
        return CERTAIN * (float(np.array_equal(u, s1)) - float(np.array_equal(u, s0)))
    return float((s1 - s0) @ (2.0 * u - s0 - s1)) / (2.0 * _gaussian(event).sigma ** 2)


def _mixed(u: Vector, absent: Vector, present: Vector, event: PoissonSubsampledGaussian) -> float:
    """Return log[(1 − q) + q N(u; present)/N(u; absent)], q the sampling rate."""
    log_drawn = float((present - absent) @ (2.0 * u - absent - present)) / (2.0 * event.sigma**2)
    if event.rate == 1.0:
        return log_drawn
    return float(np.logaddexp(math.log1p(-event.rate), math.log(event.rate) + log_drawn))


def moved(release: Release) -> float:
    """Return how far a release moves from D0 to D1: ‖s1 − s0‖/σ; for a selection, half the range of its privacy loss.

    Return inf for a release that moves without noise.
    """
    s0, s1 = release.exact
    if release.selection:
        difference = s1 - s0
        return float(difference.max() - difference.min()) / 2.0 if release.event is not None else math.inf
    shift = float(np.linalg.norm(s1 - s0))
    if release.event is None:
        return math.inf if shift else 0.0
    return shift / _gaussian(release.event).sigma


def allowed(event: Event) -> float:
    """Return the largest move, as `moved` measures it, that one record may cause under this event: Δ/σ or ε/2."""
    return (
        event.epsilon / 2.0
        if isinstance(event, BoundedRange)
        else _gaussian(event).sensitivity / _gaussian(event).sigma
    )


def _gaussian(event: Event) -> Gaussian | PoissonSubsampledGaussian:
    if isinstance(event, Gaussian | PoissonSubsampledGaussian):
        return event
    raise PrivacyError(
        f"an audit cannot check a {type(event).__name__} event: it audits Gaussian releases and selections"
    )


FOUND = 0.95
"""Probability with which the planned number of runs detects noise of σ/√2 instead of σ."""
MOST_RUNS = 1000
"""Largest planned number of runs; the caller may request more."""


@dataclass(frozen=True)
class Claim:
    """Guarantee that the charges give to one training record, or to one held-out record.

    events : ((event, count), ...). delta : δ at which ε is stated.
    """

    events: tuple[tuple[Event, int], ...]
    delta: float

    @property
    def gaussian(self) -> bool:
        """True if all releases are Gaussian, so that the claim is μ-GDP."""
        return all(isinstance(event, Gaussian) for event, _ in self.events)

    @property
    def sampled(self) -> bool:
        """True if the claim relies on secret samples of the records."""
        return any(isinstance(event, PoissonSubsampledGaussian) for event, _ in self.events)

    @cached_property
    def mu(self) -> float:
        """√Σ (Δ/σ)² over all releases; a selection adds (ε/2)² instead. If every release is Gaussian, the run is μ-GDP."""
        return math.sqrt(sum(count * allowed(event) ** 2 for event, count in self.events))

    @cached_property
    def epsilon(self) -> float:
        """ε at δ, by the tightest accounting that is valid for a plan fixed beforehand."""
        accountant = GaussianAccountant() if self.gaussian else PldAccountant() if self.sampled else ZCdpAccountant()
        return accountant.compose_all(self.events).epsilon(self.delta)

    def accuracy(self, size: int) -> float:
        """Return the largest share of right guesses, under the claim, about a group of k records."""
        from scipy.special import ndtr

        if self.gaussian:
            return float(ndtr(size * self.mu / 2.0))
        group = [(_times(event, size), count) for event, count in self.events]
        try:
            return 0.5 * (1.0 + PldAccountant().compose_all(group).delta(0.0))
        except PrivacyError:
            if self.sampled:
                raise
        # ρ-zCDP bounds the Kullback–Leibler divergence by ρ, hence total variation (Pinsker; Bretagnolle & Huber).
        ρ = ZCdpAccountant().compose_all(group).rho
        return 0.5 * (1.0 + min(math.sqrt(ρ / 2.0), math.sqrt(-math.expm1(-ρ))))

    def implied(self, accuracy: float, size: int) -> tuple[float, float | None]:
        """Return lower bounds (ε, μ) if guesses about k records are right with probability `accuracy`; μ only if Gaussian.

        For k > 1 records the ε of a Gaussian claim assumes that the run is μ-GDP. For other claims, ε follows from (ε, δ) by
        group privacy alone: δ_k = δ(e^kε − 1)/(e^ε − 1), and accuracy ≤ (e^kε + δ_k)/(1 + e^kε).
        """
        from scipy.special import ndtri

        if accuracy <= 0.5:
            return 0.0, 0.0 if self.gaussian else None
        if self.gaussian:
            mu = 2.0 * float(ndtri(accuracy)) / size
            return epsilon_of(mu, self.delta), mu
        low, high = 0.0, 128.0
        for _ in range(70):
            middle = (low + high) / 2.0
            low, high = (middle, high) if _group_accuracy(middle, self.delta, size) < accuracy else (low, middle)
        return low, None


def _group_accuracy(epsilon: float, delta: float, size: int) -> float:
    whole = math.exp(min(700.0, size * epsilon))
    group = delta * (size if epsilon < 1e-9 else (whole - 1.0) / math.expm1(min(700.0, epsilon)))
    return min(1.0, (whole + group) / (1.0 + whole))


def _times(event: Event, size: int) -> Event:
    """Return the event that describes the same release for a group of k records."""
    if isinstance(event, BoundedRange):
        return replace(event, epsilon=size * event.epsilon)
    return replace(event, sensitivity=size * event.sensitivity)  # type: ignore[attr-defined, call-arg]


def shown(right: int, runs: int, level: float) -> float:
    """Return a lower bound on the probability of a right guess, which errs with probability `level` (Clopper–Pearson)."""
    from scipy.stats import beta

    return 0.0 if right == 0 else float(beta.ppf(level, right, runs - right + 1))


def needed(most: float, truth: float, runs: int, level: float) -> float:
    """Return the probability that `runs` runs prove an accuracy above `most`, if the true accuracy is `truth`."""
    from scipy.stats import binom

    # The bound exceeds `most` if and only if a guesser of accuracy `most` has probability below `level` of so many hits.
    least = int(binom.isf(level, runs, most)) + 1
    return float(binom.sf(least - 1, runs, truth))


def runs_for(most: float, reach: float, level: float) -> int | None:
    """Return the number of runs that detects noise of σ/√2 instead of σ with probability FOUND; None if no number does.

    most : largest accuracy that the claim allows. reach : share of the claimed μ that the canary attains.
    """
    from scipy.special import ndtr, ndtri

    truth = float(ndtr(math.sqrt(2.0) * reach * float(ndtri(min(most, 1.0 - 1e-15)))))
    if truth <= most + 1e-9:
        return None
    high = 16
    while needed(most, truth, high, level) < FOUND:
        high *= 2
        if high > 1 << 24:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if needed(most, truth, middle, level) >= FOUND else (middle, high)
    return high
