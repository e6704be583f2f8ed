"""Private Poisson regression: the histogram of counts, and a run that starts at their mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vfl
from vfl.base.losses import REACH, Poisson
from vfl.planning import plan
from vfl.queries import Descend, Tally
from vfl.solvers.releases.counts import BINS, CountHistogram, spread_of

N, P = 5_000, 6
NAMES = [f"x{j}" for j in range(P)]


def job(high: float = 10.0, *, epsilon: float = 5.0, seed: int = 0, **options: object) -> vfl.Job:
    return vfl.Job(
        partition=vfl.FeaturePartition({"a": NAMES[:3], "b": NAMES[3:]}, label=("b", "y")),
        bounds=dict.fromkeys(NAMES, (-3.0, 3.0)) | {"y": (0.0, high)},
        loss="poisson",
        privacy=vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(seed)),
        **options,
    )


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    """Counts of mean 0.3, of which few are above 5."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, P)).clip(-3, 3)
    y = rng.poisson(np.exp(X @ np.array([0.6, -0.5, 0.3, 0.3, 0.0, 0.0]) - 1.6))
    return {c: X[:, j] for j, c in enumerate(NAMES)} | {"y": y.astype(float)}


def explained(result: vfl.Result, table: dict[str, np.ndarray]) -> float:
    """D², the share of the deviance that the model explains; 0 for the constant model."""
    y, v = table["y"], np.column_stack([table[c] for c in NAMES]) @ result.coef_ + result.intercept_

    def deviance(v: np.ndarray) -> float:
        return float((np.exp(v) - y * v).sum() + np.where(y > 0, y * np.log(np.maximum(y, 1.0)) - y, 0.0).sum())

    return 1.0 - deviance(v) / deviance(np.full(N, np.log(y.mean())))


@pytest.mark.parametrize("high", [0.5, 1.0, 7.0, 31.0, 32.0, 1000.0, 10.0**8])
def test_bins_hold_every_allowed_count_once(high: float) -> None:
    statistic = CountHistogram(high)
    edges = np.array(statistic.edges)
    assert edges.size == BINS + 1
    assert (np.diff(edges) >= 1).all()
    assert (np.diff(np.diff(edges)) >= 0).all()
    assert edges[-1] > high
    y = np.array([0.0, high, 1.0, -3.0, 10.0**12, np.inf])
    assert (statistic(y, y) * statistic.grid).sum() == y.size


def test_one_record_moves_the_histogram_by_its_two_bins() -> None:
    statistic, y = CountHistogram(20.0), np.arange(30.0)
    whole = statistic(y, y) * statistic.grid
    for odd in (-np.inf, 0.0, 0.5, 20.0, np.inf, np.nan):
        moved = statistic(y, np.append(y[1:], odd)) * statistic.grid - whole
        assert np.linalg.norm(moved) <= statistic.sensitivity


@pytest.mark.parametrize("mean", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("generous", [1, 5])
def test_mean_and_deviation_are_those_of_the_counts(mean: float, generous: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.negative_binomial(2, 2 / (2 + mean), 20_000).astype(float)
    statistic = CountHistogram(generous * float(y.max()))
    for sigma in (0.1, 100.0):
        noisy = statistic(y, y) * statistic.grid + sigma * rng.normal(size=BINS)
        found = spread_of(noisy, statistic, y.size, sigma)
        assert found.mean == pytest.approx(y.mean(), rel=0.2)
        assert found.deviation == pytest.approx(y.std(), rel=0.3)


@pytest.mark.parametrize("noisy", [np.zeros(BINS), np.full(BINS, -5.0), np.full(BINS, 1e9)])
def test_any_noise_gives_a_positive_mean(noisy: np.ndarray) -> None:
    found = spread_of(noisy, CountHistogram(50.0), 100, 1.0)
    assert 0.0 < found.mean <= 50.0
    assert 0.0 < found.deviation < np.inf


def test_the_plan_charges_the_histogram_and_the_loss_stays_near_the_mean() -> None:
    made = plan(job(), N)
    assert made.solver.clip == "record"
    assert made.epsilon <= 5.0
    schedule = made.schedule()
    query = next(schedule)
    while not isinstance(query, Descend):
        released = tuple(np.zeros(size) for size in query.sizes())
        if isinstance(query, Tally):
            assert query.event == made.releases[1][0]
            released = (np.array([0.8 * N, 0.2 * N] + [0.0] * (BINS - 2)),)
        query = schedule.send(released)
    assert query.weighting.loss == Poisson(np.log(0.2) + REACH)


def test_a_declared_margin_is_never_raised() -> None:
    assert Poisson(0.5).near(1.0, 1.0) == Poisson(0.5)


@pytest.mark.parametrize("high", [5.0, 10.0, 40.0])
def test_most_of_what_can_be_explained_is(table: dict[str, np.ndarray], high: float) -> None:
    """Steps for the curvature at the declared margin left D² at 0 here."""
    clamped = table | {"y": np.minimum(table["y"], high)}
    exact = vfl.train(replace(job(high), privacy=None), clamped, at="inprocess")
    private = [vfl.train(job(high, seed=seed), clamped, at="inprocess") for seed in (1, 2)]
    assert explained(exact, table) > 0.2
    assert min(explained(result, table) for result in private) > 0.9 * explained(exact, table)
