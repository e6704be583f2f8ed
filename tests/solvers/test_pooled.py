"""Noisy moments shrunk to their common mean: as far as noise explains their spread, and not where columns differ."""

from __future__ import annotations

import numpy as np
import pytest

import vfl
from vfl.planning import problem_of
from vfl.solvers.releases.smoothness import curvature, features, moments_event, pooled


def test_columns_dominated_by_noise_share_their_mean() -> None:
    rng = np.random.default_rng(0)
    true, noise = np.full(1_000, 0.03), np.full(1_000, 0.5)
    drawn, off = pooled(true + noise * rng.standard_normal(1_000), noise)
    assert np.sqrt(np.mean((drawn - true) ** 2)) < 0.1
    assert np.all(off < 0.15)


def test_columns_that_differ_keep_their_values() -> None:
    found, noise = np.array([0.01, 0.2, 0.5, 0.9]), np.full(4, 1e-3)
    drawn, off = pooled(found, noise)
    np.testing.assert_allclose(drawn, found, atol=1e-5)
    np.testing.assert_allclose(off, noise, rtol=1e-3)


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
def test_it_is_no_worse_than_either_extreme(spread: float) -> None:
    rng = np.random.default_rng(1)
    errors = []
    for _ in range(50):
        true, noise = 0.3 + spread * rng.standard_normal(60), rng.uniform(0.05, 0.2, 60)
        found = true + noise * rng.standard_normal(60)
        mean = np.full(60, np.average(found, weights=noise**-2))
        errors.append([np.sum((guess - true) ** 2) for guess in (pooled(found, noise)[0], found, mean)])
    ours, none, whole = np.mean(errors, axis=0)
    assert ours < min(none, whole) + 0.1 * none


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_pool(count: int) -> None:
    found, noise = np.full(count, 0.2), np.full(count, 0.1)
    drawn, off = pooled(found, noise)
    np.testing.assert_array_equal(drawn, found)
    np.testing.assert_array_equal(off, noise)


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_steps_fit_columns_whose_centres_are_noisy(spread: float) -> None:
    """M_j is on average at least the mean square about the centre: released means as centres would make it too small."""
    columns = [f"x{j}" for j in range(60)]
    job = vfl.Job(
        partition=vfl.FeaturePartition({"a": columns[:30], "b": columns[30:]}, label=("b", "y")),
        bounds=dict.fromkeys(columns, (-1.0, 1.0)),
        privacy=vfl.Privacy(epsilon=0.3),
    )
    problem = problem_of(job, 1000)
    event, n, rng = moments_event(problem), problem.n_records, np.random.default_rng(2)
    assert event is not None
    variance = 1.0 / 16.0
    assert event.sigma / n > 2.0 * variance
    true, allowed = [], []
    for _ in range(40):
        m = spread * rng.uniform(-1.0, 1.0, 60)
        sums = n * np.concatenate([m / 2.0, variance + m**2]).reshape(2, 2, 30).swapaxes(0, 1).reshape(2, 60)
        asking = curvature(problem, moments_event(problem))
        next(asking)
        with pytest.raises(StopIteration) as end:
            asking.send(tuple(sums + event.sigma * rng.standard_normal((2, 60))))
        known, feature = end.value.value, features(problem)
        true.append(variance + np.mean((known.centre[feature] - m) ** 2))
        allowed.append(np.mean(known.smoothness[feature]) / problem.loss.curvature)
    assert np.mean(true) < 1.1 * np.mean(allowed)
    assert np.mean(true) < 2.0 * variance + spread**2 / 3.0
