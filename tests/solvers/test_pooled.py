"""Noisy moments shrunk to their common mean: as far as noise explains their spread, and not where columns differ."""

from __future__ import annotations

import numpy as np
import pytest

from vfl.solvers.bought.smoothness import pooled


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
