"""Counts and amounts in any unit: models, predictions and exports follow the unit of the label, with noise and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import TweedieRegressor

import vfl
from vfl.base.losses import Gamma
from vfl.launch.run.warnings import ConvergenceWarning
from vfl.solvers.releases.labels import Magnitudes

N = 3_000
POWERS = {"poisson": 1.0, "gamma": 2.0, "tweedie": 1.5}
FEATURES = ["a", "b", "c"]


def table_of(loss: str, scale: float, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b, c = rng.uniform(-1, 1, N), rng.normal(size=N).clip(-3, 3), (rng.random(N) < 0.1).astype(float)
    mean = scale * np.exp(0.6 * a - 0.3 * b + 0.8 * c - 0.2)
    if loss == "poisson":
        y = rng.poisson(mean).astype(float)
    elif loss == "gamma":
        y = rng.gamma(2.0, mean / 2.0)
    else:
        y = mean * np.array([rng.gamma(2.0, 0.5, k).sum() for k in rng.poisson(1.5, N)]) / 1.5
    return {"a": a, "b": b, "c": c, "y": y}


def job(loss: Any, highest: float, epsilon: float | None = None, **options: Any) -> vfl.Job:
    given: dict[str, Any] = {
        "partition": vfl.FeaturePartition({"p": ["a"], "q": ["b", "c"]}, label=("p", "y")),
        "bounds": {"a": (-1, 1), "b": (-3, 3), "c": (0, 1), "y": (0, highest)},
        "loss": loss,
        "privacy": None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-6, noise=vfl.SeededNoise(1)),
    }
    return vfl.Job(**given | options)


def reference(loss: str, table: dict[str, np.ndarray]) -> TweedieRegressor:
    X = np.column_stack([table[name] for name in FEATURES])
    return TweedieRegressor(power=POWERS[loss], link="log", alpha=0.0, solver="newton-cholesky", max_iter=1000).fit(
        X, table["y"]
    )


def d2(loss: str, y: np.ndarray, mean: np.ndarray) -> float:
    from sklearn.metrics import d2_tweedie_score

    return float(d2_tweedie_score(y, mean, power=POWERS[loss]))


EACH = pytest.mark.parametrize(
    ("loss", "scale"),
    [(loss, scale) for loss in POWERS for scale in (1e-3, 1.0, 1e3, 1e6) if (loss, scale) != ("poisson", 1e-3)],
)


@EACH
@pytest.mark.parametrize("wide", [1.2, 100.0])
def test_without_noise_predictions_are_scikit_learns_in_every_unit(loss: str, scale: float, wide: float) -> None:
    table = table_of(loss, scale)
    found = vfl.train(job(loss, wide * table["y"].max()), table, at="inprocess")
    want = reference(loss, table).predict(np.column_stack([table[name] for name in FEATURES]))
    assert found.predict(table) == pytest.approx(want, rel=1e-3)


@EACH
@pytest.mark.parametrize("wide", [1.2, 100.0])
def test_with_noise_predictions_follow_the_unit(loss: str, scale: float, wide: float) -> None:
    table = table_of(loss, scale)
    found = vfl.train(job(loss, wide * table["y"].max(), 4.0), table, at="inprocess").predict(table)
    assert found.mean() == pytest.approx(table["y"].mean(), rel=0.05)
    exact = reference(loss, table).predict(np.column_stack([table[name] for name in FEATURES]))
    assert d2(loss, table["y"], found) > d2(loss, table["y"], exact) - 0.01


def test_rates_follow_the_unit_of_the_exposure() -> None:
    table, rng = table_of("poisson", 1.0), np.random.default_rng(1)
    days = rng.uniform(1e3, 1e5, N)
    rate = 0.02 * np.exp(0.6 * table["a"] - 0.3 * table["b"])
    table |= {"days": days, "y": rng.poisson(rate * days).astype(float)}
    for epsilon in (None, 4.0):
        spec = job(
            "poisson",
            1.5 * table["y"].max(),
            epsilon,
            partition=vfl.FeaturePartition({"p": ["a"], "q": ["b", "c"]}, label=("p", "y"), exposure="days"),
            bounds={"*": (-3, 3), "y": (0, 1.5 * table["y"].max()), "days": (1e3, 1e5)},
        )
        found = vfl.train(spec, table, at="inprocess").predict(table)
        assert (found * days).sum() == pytest.approx(table["y"].sum(), rel=0.03)
        assert d2("poisson", rate, found) > 0.95


def test_exports_predict_means_of_a_thousand() -> None:
    import duckdb
    import pandas as pd

    table = table_of("gamma", 1e3)
    found = vfl.train(job("gamma", 2.0 * table["y"].max()), table, at="inprocess")
    frame = pd.DataFrame(table)
    want = found.predict(frame)
    assert want.max() > 1e3
    assert found.to_sklearn().predict(frame[FEATURES]) == pytest.approx(want, rel=1e-9)
    scored = duckdb.sql(found.to_sql(table="frame")).df().sort_values("y")  # SQL promises no order
    assert scored["prediction"].to_numpy() == pytest.approx(want[np.argsort(table["y"])], rel=1e-9)


@pytest.mark.parametrize(("mean", "epsilon"), [(0.01, 1.0), (0.003, 4.0)])
def test_private_means_of_rare_counts_stay_near_the_counts(mean: float, epsilon: float) -> None:
    """Full steps ended between 0.2 and 2,000 times the mean."""
    rng = np.random.default_rng(2)
    table = {name: rng.uniform(-1, 1, 20_000) for name in FEATURES}
    table["y"] = rng.poisson(mean * np.exp(0.5 * table["a"])).astype(float)
    found = vfl.train(job("poisson", 100.0, epsilon), table, at="inprocess").predict(table)
    assert 0.5 * table["y"].mean() < found.mean() < 2.0 * table["y"].mean()


@pytest.mark.parametrize("solver", [vfl.solvers.GD(), vfl.solvers.SGD(seed=1)], ids=lambda solver: solver.name)
@pytest.mark.parametrize(("loss", "scale"), [("poisson", 1e3), ("gamma", 1e-2), ("gamma", 1e3)])
def test_joint_steps_follow_the_unit(solver: Any, loss: str, scale: float) -> None:
    table = table_of(loss, scale)
    found = vfl.train(job(loss, 1.2 * table["y"].max(), 4.0, solver=solver), table, at="inprocess").predict(table)
    assert found.mean() == pytest.approx(table["y"].mean(), rel=0.25)
    assert d2(loss, table["y"], found) > 0.1


def test_gcd_without_noise_follows_the_unit() -> None:
    table = table_of("poisson", 1e3)
    found = vfl.train(job("poisson", 1.2 * table["y"].max(), solver=vfl.solvers.GCD()), table, at="inprocess").predict(
        table
    )
    assert found.mean() == pytest.approx(table["y"].mean(), rel=1e-3)


def skewed() -> dict[str, np.ndarray]:
    table, rng = table_of("gamma", 1.0), np.random.default_rng(3)
    return table | {"y": 800.0 * np.exp(0.5 * table["a"] - 0.3 * table["b"] + 0.8 * rng.normal(size=N))}


@pytest.mark.parametrize("highest", [1e4, 1e5, 1e7])
@pytest.mark.parametrize("epsilon", [None, 0.5, 4.0])
def test_huber_loss_finds_skewed_labels_within_any_bounds(highest: float, epsilon: float | None) -> None:
    table = skewed()
    found = vfl.train(job("huber", highest, epsilon), table, at="inprocess").predict(table)
    constant = np.abs(table["y"] - np.median(table["y"])).mean()
    assert np.abs(table["y"] - found).mean() < 0.97 * constant


def test_one_record_moves_the_magnitudes_by_its_two_bins() -> None:
    statistic, y = Magnitudes(0.0, 1e7), np.linspace(-10.0, 1e7, 40)
    whole = statistic(y, y) * statistic.grid
    assert whole.sum() == y.size
    for odd in (-np.inf, 0.0, 1e-30, 1e7, np.inf, np.nan):
        assert np.linalg.norm(statistic(y, np.append(y[1:], odd)) * statistic.grid - whole) <= statistic.sensitivity


def test_a_run_that_made_all_passes_says_that_it_has_not_converged() -> None:
    table = table_of("gamma", 1.0)
    with pytest.warns(ConvergenceWarning, match="has not converged in 1,000 passes"):
        vfl.train(job("gamma", 2.0 * table["y"].max(), solver=vfl.solvers.GD()), table, at="inprocess")


def test_a_model_at_its_limit_says_so() -> None:
    table = table_of("gamma", 1e3)
    with pytest.warns(ConvergenceWarning, match="predicts its limit, a mean of 20"):
        vfl.train(job(Gamma(low=0.0, high=np.log(20.0)), 2e4), table, at="inprocess")
