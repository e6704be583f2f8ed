"""Gamma and Tweedie regression: scikit-learn's model without noise, and private runs that start at the mean amount."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import GammaRegressor, TweedieRegressor

import vfl
from vfl.base.losses import REACH, Gamma, Poisson, Tweedie
from vfl.errors import PrivacyError, SpecificationError
from vfl.planning import plan
from vfl.solvers.releases.counts import BINS, STEPS, CountHistogram, spread_of

N = 2_000
SKLEARN = {
    "gamma": GammaRegressor(alpha=0.0, tol=1e-13, max_iter=5000),
    "tweedie": TweedieRegressor(power=1.5, link="log", alpha=0.0, tol=1e-13, max_iter=5000),
}
LOSSES = {"gamma": Gamma(low=-1.6, high=1.8), "tweedie": Tweedie(low=-1.6, high=1.8)}


def job(loss: Any, **options: Any) -> vfl.Job:
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition({"a": ["x0", "x1"], "b": ["x2"]}, label=("b", "y")),
        "privacy": None,
        "loss": loss,
        "bounds": {"*": (-1, 1), "y": (0.0, 30.0)},
    }
    return vfl.Job(**given | options)


def table_of(loss: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N, 3))
    mean = np.exp(X @ [0.5, -0.4, 0.3] + 0.2)
    claims = np.ones(N, int) if loss == "gamma" else rng.poisson(mean / 2)
    y = rng.gamma(2.0, mean / 2) if loss == "gamma" else np.array([rng.gamma(2.0, 1.0, k).sum() for k in claims])
    return {f"x{j}": X[:, j] for j in range(3)} | {"y": np.minimum(y, 30.0)}


@pytest.mark.parametrize("loss", LOSSES)
def test_without_noise_the_model_is_scikit_learns_and_with_noise_it_is_near(loss: str) -> None:
    table = table_of(loss)
    X = np.column_stack([table[f"x{j}"] for j in range(3)])
    reference = SKLEARN[loss].fit(X, table["y"])
    exact = vfl.train(job(LOSSES[loss]), table, at="inprocess")
    assert exact.coef_ == pytest.approx(reference.coef_, abs=1e-6)
    assert exact.intercept_ == pytest.approx(reference.intercept_, abs=1e-6)
    spec = job(loss, privacy=vfl.Privacy(epsilon=5.0, noise=vfl.SeededNoise(1)))
    assert plan(spec, N).epsilon <= 5.0
    private = vfl.train(spec, table, at="inprocess")
    assert private.coef_ == pytest.approx(exact.coef_, abs=0.15)
    assert private.intercept_ == pytest.approx(exact.intercept_, abs=0.15)


@pytest.mark.parametrize("loss", LOSSES)
def test_amounts_over_exposures_solve_the_likelihoods_equations(loss: str) -> None:
    table = table_of(loss)
    years = np.random.default_rng(1).uniform(0.2, 1.0, N)
    limits = {"*": (-1, 1), "y": (0.0, 30.0), "years": (0.1, 1.0)}
    partition = job(loss).partition.changed(exposure="years")
    kind = replace(LOSSES[loss], low=-2.0)
    found = vfl.train(job(kind, partition=partition, bounds=limits), table | {"years": years}, at="inprocess")
    X = np.column_stack([table[f"x{j}"] for j in range(3)])
    r = replace(kind, largest=30.0).derivative(X @ found.coef_ + found.intercept_ + np.log(years), table["y"])
    assert np.abs(np.column_stack([X, np.ones(N)]).T @ r / N).max() < 1e-6


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e7])
def test_the_mean_of_amounts_is_found_in_any_unit(scale: float) -> None:
    y = table_of("gamma")["y"] * scale
    statistic = CountHistogram(STEPS, unit=60.0 * scale / STEPS)
    noisy = statistic(np.zeros(N), y)[:BINS] * statistic.grid
    found = spread_of(noisy, statistic, N, 1e-3)
    assert found.mean * statistic.unit == pytest.approx(y.mean(), rel=0.1)
    assert found.deviation * statistic.unit == pytest.approx(y.std(), rel=0.2)


def test_the_trust_region_stays_within_the_declared_means() -> None:
    assert Gamma(-9.0, 9.0, 5.0).near(1.0, 1.0) == Gamma(1.0 - REACH, 1.0 + REACH, 5.0)
    assert Gamma(0.5, 2.0, 5.0).near(1.0, 1.0) == Gamma(0.5, 2.0, 5.0)
    assert Tweedie(-9.0, 9.0, 5.0).near(1.0, -3.0) == Tweedie(-3.0 - REACH, 1.0 + REACH, 5.0)
    for start in (-30.0, 30.0):  # a mean far outside of what is declared
        found = Gamma(-1.0, 1.0, 5.0).near(start, start)
        assert -1.0 <= found.low < found.high <= 1.0
    assert Poisson(3.0).near(0.0, 0.0) == Poisson(REACH)


class TestRefused:
    def test_no_largest_label(self) -> None:
        with pytest.raises(SpecificationError, match=r"gamma loss.*declare"):
            job("gamma", bounds={"*": (-1, 1)})

    def test_amounts_below_zero(self) -> None:
        with pytest.raises(SpecificationError, match="amounts above 0"):
            job("tweedie", bounds={"*": (-1, 1), "y": (-5, 0)})

    def test_shares(self) -> None:
        with pytest.raises((SpecificationError, PrivacyError), match="trust='secure' offers logistic loss"):
            job("gamma", trust="secure", privacy=vfl.Privacy(epsilon=1.0))
