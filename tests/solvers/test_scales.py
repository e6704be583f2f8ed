"""Counts and amounts in any unit: models, predictions and exports follow the unit of the label, with noise and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import TweedieRegressor

import vfl

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
