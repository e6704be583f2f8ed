"""Noise of several parties: its variance for every coalition, and the lemma on sums of rounded Gaussians."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from vfl.errors import PrivacyError
from vfl.privacy.events import ReleaseKey
from vfl.privacy.gaussian_dp import delta_of
from vfl.privacy.noise import SeededNoise
from vfl.secure import noise


def tau(least: float, contributors: int) -> float:
    """Return τ of the lemma (docs/mathematics.md, "Noise of several parties")."""
    theta = sum(math.exp(-2 * math.pi**2 * i * i * least**2 / contributors) for i in range(1, 50))
    return (1 + 2 * theta) ** (contributors - 1) - 1


@given(st.integers(2, 7), st.data())
@settings(max_examples=100, deadline=None)
def test_every_coalition_leaves_the_variance_that_is_charged(m, data):
    k = data.draw(st.integers(1, m - 1))
    sigma, step = data.draw(st.floats(1e-3, 1e3)), 2.0 ** data.draw(st.integers(-50, -20))
    try:
        found = noise.deviations(sigma, step, m, k)
    except PrivacyError:
        return
    needed = (Fraction(sigma) / Fraction(step)) ** 2
    party, dealer = Fraction(found.party) ** 2, Fraction(found.dealer) ** 2
    for coalition in itertools.chain.from_iterable(itertools.combinations(range(m), size) for size in range(k + 1)):
        assert (m - len(coalition)) * party + dealer >= needed
    assert m * party >= needed, "the dealer alone"
    total = float((m * party + dealer) / needed)
    assert total == pytest.approx(1 + k / m, rel=1e-12)
    assert (m - k - 1) * party + dealer < needed, "one party more than the run allows"


def test_deviations_outside_the_lemma_or_the_generator_are_refused():
    assert noise.deviations(64 * math.sqrt(6) * 1.001, 1.0, 2, 1)
    with pytest.raises(PrivacyError, match="plan other bits"):
        noise.deviations(64 * math.sqrt(6) * 0.999, 1.0, 2, 1)
    with pytest.raises(PrivacyError, match="plan other bits"):
        noise.deviations(2.0**49, 1.0, 2, 1)


def law(s: float, reach: int = 40) -> np.ndarray:
    """Return the probabilities of rint N(0, s²) on −reach, ..., reach."""
    at = np.arange(-reach, reach + 1)
    return norm.cdf((at + 0.5) / s) - norm.cdf((at - 0.5) / s)


def processed(s: float, contributors: int, reach: int) -> np.ndarray:
    """Return the law of the lemma's post-processing of N(0, Hs²): fractions of all but one contributor uniform."""
    # Given the fractions θ, X + Σ(roundings) = k exactly where rint(X − Σθ) = k − Σ(rint θ) with rint θ = 0.
    θ = (np.arange(400) + 0.5) / 400 - 0.5
    sums = np.array([0.0])
    for _ in range(contributors - 1):
        sums = (np.add.outer(sums, θ)).ravel()
        if len(sums) > 4000:
            sums = np.quantile(sums, (np.arange(4000) + 0.5) / 4000)
    at = np.arange(-reach, reach + 1)
    S = s * math.sqrt(contributors)
    edges = np.add.outer(at, sums)
    return (norm.cdf((edges + 0.5) / S) - norm.cdf((edges - 0.5) / S)).mean(axis=1)


@pytest.mark.parametrize("s", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
@pytest.mark.parametrize("contributors", [2, 3])
def test_the_sum_of_rounded_gaussians_is_within_half_tau_of_the_post_processing(s, contributors):
    summed = law(s)
    for _ in range(contributors - 1):
        summed = np.convolve(summed, law(s))
    ideal = processed(s, contributors, len(summed) // 2)
    assert ideal.sum() == pytest.approx(1.0, abs=1e-9)
    distance = 0.5 * abs(summed - ideal).sum()
    assert distance <= tau(s, contributors) / 2


@pytest.mark.parametrize("s", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
def test_the_wrapped_law_of_two_contributors_needs_the_factor_of_their_number(s):
    """Given X, x_1 is N(X/2, s²/2). Its wrapped law is within τ/2 of uniform, and not within τ for a variance of s²."""
    at = (np.arange(2000) + 0.5) / 2000
    density = norm.pdf(np.add.outer(at, np.arange(-20, 21)), scale=s / math.sqrt(2)).sum(axis=1)
    distance = 0.5 * abs(density - 1).mean()
    assert distance <= tau(s, 2) / 2
    assert distance > tau(s * math.sqrt(2), 2) / 2
    assert distance >= 0.5 * tau(s, 2) / 2, "the bound is no more than twice the distance"


def test_the_least_eigenvalue_of_the_conditional_covariance_is_at_least_the_lemmas():
    rng = np.random.default_rng(0)
    for _ in range(200):
        s = rng.uniform(0.1, 3.0, size=rng.integers(2, 8))
        v = s**2
        covariance = np.diag(v[:-1]) - np.outer(v[:-1], v[:-1]) / v.sum()
        assert np.linalg.eigvalsh(covariance)[0] >= v.min() / len(s) * (1 - 1e-12)
        assert abs(covariance - (np.diag(v) - np.outer(v, v) / v.sum())[:-1, :-1]).max() < 1e-12


@pytest.mark.parametrize("s", [0.5, 0.7, 1.0])
def test_delta_of_a_sum_of_two_is_within_what_the_lemma_adds(s):
    """Two contributors, sums that differ by 1 (in steps): the true δ is at most δ of the Gaussian plus (1 + e^ε)τ."""
    summed = np.convolve(law(s), law(s))
    p, q = np.append(summed, 0.0), np.insert(summed, 0, 0.0)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        true = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
        gaussian = delta_of(epsilon, 1 / (s * math.sqrt(2)))
        assert true <= gaussian + (1 + math.exp(epsilon)) * tau(s, 2) / 2


def test_contributors_of_one_seed_draw_different_noise():
    source, key = SeededNoise(1), ReleaseKey(1)
    draws = {who: noise.drawn(source, key, who, 1000.0, 8).tolist() for who in ("a", "b", "dealer")}
    assert len({tuple(draw) for draw in draws.values()}) == 3
    assert draws["a"] == noise.drawn(source, key, "a", 1000.0, 8).tolist()
