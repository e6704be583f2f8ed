"""Bounds on claims: accuracies that they allow, Clopper–Pearson bounds, and planned numbers of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from vfl.apps.auditing.bounds import Claim, needed, runs_for, shown
from vfl.base.types import Adjacency
from vfl.privacy.events import BoundedRange, Gaussian, PoissonSubsampledGaussian
from vfl.privacy.gaussian_dp import delta_of, epsilon_of

ONE = Adjacency.REPLACE_ONE


def gaussian(mu: float, count: int = 1) -> Claim:
    return Claim(((Gaussian(ONE, mu, 1.0, 1), count),), 1e-5)


def test_a_gaussian_claim_adds_up_and_states_its_epsilon() -> None:
    claim = gaussian(0.5, 4)
    assert claim.mu == pytest.approx(1.0)
    assert claim.epsilon == pytest.approx(epsilon_of(1.0, 1e-5))
    assert claim.accuracy(3) == pytest.approx(ndtr(1.5))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_accuracy_of_a_gaussian_claim_is_its_total_variation(mu: float) -> None:
    """Φ(μ/2) = (1 + δ(0))/2: the optimal guess of a fair coin."""
    assert gaussian(mu).accuracy(1) == pytest.approx(0.5 * (1.0 + delta_of(0.0, mu)), rel=1e-9)


def test_other_claims_allow_their_largest_total_variation() -> None:
    ε = 0.8
    selection = Claim(((BoundedRange(ONE, ε), 1),), 1e-5)
    # Randomised response of range ε: the sharpest pair of that range.
    assert selection.accuracy(1) == pytest.approx(0.5 * (1.0 + math.tanh(ε / 4.0)), rel=1e-3)
    assert selection.accuracy(2) == pytest.approx(0.5 * (1.0 + math.tanh(ε / 2.0)), rel=1e-3)
    sampled = Claim(((PoissonSubsampledGaussian(ONE, 2.0, 1.0, 0.25), 1),), 1e-5)
    # (1 − q) N(0) + q N(±1): a half-line at 0 tells most.
    assert sampled.accuracy(1) == pytest.approx(0.5 + 0.25 * (ndtr(1.0) - 0.5), rel=1e-3)


def test_a_claim_implies_itself() -> None:
    claim = gaussian(0.7)
    epsilon, mu = claim.implied(claim.accuracy(3), 3)
    assert mu == pytest.approx(0.7)
    assert epsilon == pytest.approx(claim.epsilon)
    assert claim.implied(0.4, 3) == (0.0, 0.0)
    mixed = Claim(((BoundedRange(ONE, 0.8), 1),), 1e-5)
    assert mixed.implied(mixed.accuracy(1), 1)[0] <= 0.8


def test_a_shown_accuracy_errs_as_often_as_its_level() -> None:
    runs, level, truth = 157, 0.05, 0.9
    rights = np.arange(runs + 1)
    above = np.array([shown(int(c), runs, level) > truth for c in rights])
    assert binom.pmf(rights[above], runs, truth).sum() <= level
    assert shown(0, 10, level) == 0.0


@pytest.mark.parametrize(("level", "reach", "expected"), [(0.05, 1.0, 168), (0.05, 0.9, 340), (1e-4, 1.0, 460)])
def test_planned_runs_find_too_little_noise(level: float, reach: float, expected: int) -> None:
    most = float(ndtr(2.75 / 2.0))
    runs = runs_for(most, reach, level)
    assert runs is not None
    assert runs == pytest.approx(expected, rel=0.05)
    truth = float(ndtr(math.sqrt(2.0) * reach * 2.75 / 2.0))
    least = int(binom.isf(level, runs, most)) + 1
    assert shown(least, runs, level) > most >= shown(least - 1, runs, level)
    assert needed(most, truth, runs, level) >= 0.95


def test_a_weak_canary_finds_nothing_in_any_number_of_runs() -> None:
    assert runs_for(0.9, 0.7, 0.05) is None
