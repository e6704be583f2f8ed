"""Audit: an attacker who knows all records but one tries to tell two runs apart.

The claim is the μ of Gaussian differential privacy in the run's own statement. The canary saturates the clip in every
release. Its replacement does so with the opposite sign, and moves the moments of the columns as far as a pair of
records can. All other records are zero, so they add nothing.

The attacker projects all released values (moments, then every block) on the canary's effect, weighing each release by
Δ/σ of the event charged for it. No test between two Gaussians is more powerful.

A threshold that is fixed beforehand gives two error rates. Their Clopper–Pearson bounds give a lower bound on μ that
assumes nothing about the statistic (Nasr et al. 2023, "Tight auditing", §4.2, for μ instead of ε).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import beta

import parties.party
import vfl
from coordinator.coordinator import Coordinator
from coordinator.rounds import Round
from parties.party import Party
from parties.storage.dense import Columns
from vfl.launch.engines.inprocess import InProcessTransport
from vfl.privacy import sensitivity
from vfl.privacy.gaussian_dp import mu_of
from vfl.privacy.geometry import Clip
from vfl.privacy.noise import SeededNoise
from vfl.solvers import smoothness

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITION = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"))
WIDTHS = {party: len(PARTITION.columns(party)) for party in PARTITION.parties}
BOUNDS = dict.fromkeys(PARTITION.features, (-1.0, 1.0))
DELTA = 1e-5
N = 3
RUNS = 250  # per arm
FAILURE = 0.01  # per confidence bound of an arm
CANARY, REPLACEMENT = 1.0, -0.1  # squares 1 and 0.01, and opposite signs

SOLVERS = {
    "sweeps of single coordinates": {"block_size": 1, "passes": 2},
    "blocks of a whole party": {"block_size": 3, "passes": 2, "sweep": "block"},
    "all blocks at once": {"block_size": 2, "passes": 2, "sampling": "full"},
}


def job(*, share: float = 0.2, **solver: Any) -> vfl.Job:
    """A run of μ about 3. Tiny steps keep the margins near 0, where |r| = ½ exceeds any clip as small as this one."""
    privacy = vfl.Privacy(epsilon=16.0, delta=DELTA, noise=SeededNoise(0), smoothness_share=share)
    return vfl.Job(
        partition=PARTITION,
        intercept=False,  # the other records then add exactly nothing
        bounds=BOUNDS,
        privacy=privacy,
        solver=vfl.SkGD(clip=1e-3, step_size=1e-4, **solver),
    )


def run(spec: vfl.Job, x: float, seed: int) -> tuple[float, float]:
    """Return the attacker's statistic of one run, scaled to variance 1, and the ε that the run states."""
    y = np.ones(N)
    actors = {}
    for party, width in WIDTHS.items():
        X = np.zeros((N, width), order="F")
        X[0] = x
        actors[party] = Party(party, Columns(X, PARTITION.columns(party)), SeededNoise(seed), y)
    *events, outcome = Coordinator(InProcessTransport(actors)).stream(spec)
    score = power = 0.0
    for record in (event for event in events if isinstance(event, Round)):
        # One event per release, except for the moments, which are one joint release of all parties.
        joint = record.kind == "Moments"
        charged = record.events * len(record.released) if joint else record.events
        for u, event in zip(record.released, charged, strict=True):
            size = event.dimension if joint else u.size
            sign = 1.0 if joint else -1.0  # r < 0 where y = 1
            score += sign * u.sum() / math.sqrt(size) * event.sensitivity / event.sigma**2
        power += sum((event.sensitivity / event.sigma) ** 2 for event in record.events)
    return score / math.sqrt(power), outcome.statement.epsilon


def arms(spec: vfl.Job, runs: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the statistic of many runs with the canary and as many with its replacement, and the claimed μ."""
    with_canary, without = (
        np.array([run(spec, x, 2 * seed + arm)[0] for seed in range(runs)])
        for arm, x in enumerate((CANARY, REPLACEMENT))
    )
    return with_canary, without, mu_of(run(spec, CANARY, 0)[1], DELTA)


def lower_bound(canary: np.ndarray, replacement: np.ndarray, threshold: float) -> float:
    """Return a lower bound on the true μ that fails with probability 2·FAILURE at most, for any distributions.

    Any test of a μ-GDP run has Φ⁻¹(1 − false positives) − Φ⁻¹(false negatives) ≤ μ (Dong, Roth, Su 2022, §2).
    """
    errors = [int((replacement > threshold).sum()), int((canary <= threshold).sum())]
    rates = [beta.ppf(1 - FAILURE, wrong + 1, canary.size - wrong) for wrong in errors]
    return float(-ndtri(rates[0]) - ndtri(rates[1]))


def estimate(canary: np.ndarray, replacement: np.ndarray) -> float:
    """Return the difference of means in standard deviations, which is the audit's estimate of μ."""
    return float((canary.mean() - replacement.mean()) / math.sqrt((canary.var(ddof=1) + replacement.var(ddof=1)) / 2))


def threshold_of(spec: vfl.Job) -> float:
    """Return the middle between the arms' means, from separate runs that the bound does not use."""
    return float(np.mean([run(spec, x, 10**6 + seed)[0] for seed in range(30) for x in (CANARY, REPLACEMENT)]))


def weaker_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw noise of σ/√2, as after a confusion of adjacencies."""
    true_release = parties.party.release

    def release(sums: Any, grid: float, event: Any, noise: Any, key: Any, *rest: Any) -> Any:
        return true_release(sums, grid, replace(event, sigma=event.sigma / math.sqrt(2.0)), noise, key, *rest)

    monkeypatch.setattr(parties.party, "release", release)


def half_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sensitivity C where replace-one needs 2C."""
    true = Clip.sensitivity.fget
    monkeypatch.setattr(Clip, "sensitivity", property(lambda clip: true(clip) / 2.0))


def forgotten_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block clip of κ√|S| whose noise forgets the √|S|."""
    true = Clip.sensitivity.fget
    monkeypatch.setattr(Clip, "sensitivity", property(lambda clip: true(clip) / math.sqrt(clip.dimension)))


def moments_of_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments of all columns, with noise for the sensitivity of one."""
    true = smoothness.moments_sensitivity
    for module in (smoothness, parties.party, sensitivity):  # with the same error in all checks of it
        monkeypatch.setattr(module, "moments_sensitivity", lambda columns, *, means: true(1, means=means))


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_claim_holds_and_is_tight(solver: str) -> None:
    spec = job(**SOLVERS[solver])
    canary, replacement, claimed = arms(spec, RUNS)
    assert 2.0 <= claimed <= 4.0
    assert lower_bound(canary, replacement, threshold_of(spec)) <= claimed
    # The audit is sharp: a violation would show.
    deviation = math.sqrt(2.0 / RUNS + claimed**2 / (4 * RUNS))
    assert abs(estimate(canary, replacement) - claimed) < 3.0 * deviation


MISTAKES: dict[str, tuple[str, float, Callable[[pytest.MonkeyPatch], None]]] = {
    "σ/√2": ("sweeps of single coordinates", 0.2, weaker_noise),
    "C instead of 2C": ("sweeps of single coordinates", 0.2, half_the_sensitivity),
    "√|S| forgotten": ("blocks of a whole party", 0.05, forgotten_dimension),
    "moments of one column": ("blocks of a whole party", 0.9, moments_of_one_column),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_factor_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the noise or its sensitivity changes; the claim stays the same."""
    solver, share, make = MISTAKES[mistake]
    spec = job(share=share, **SOLVERS[solver])
    make(monkeypatch)
    canary, replacement, claimed = arms(spec, RUNS)
    assert 2.0 <= claimed <= 4.0
    assert lower_bound(canary, replacement, threshold_of(spec)) > claimed


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_thousand_runs_per_arm(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job(**SOLVERS[solver])
    threshold = threshold_of(spec)
    canary, replacement, claimed = arms(spec, 1000)
    bound = lower_bound(canary, replacement, threshold)
    # Error rates of Φ(−μ/2) put the bound of 1,000 runs at 0.88 μ ± 0.03 μ: three deviations below that.
    assert 0.8 * claimed < bound <= claimed
    assert estimate(canary, replacement) == pytest.approx(claimed, rel=0.1)
    weaker_noise(monkeypatch)
    canary, replacement, claimed = arms(spec, 1000)
    assert lower_bound(canary, replacement, threshold) > 1.1 * claimed
