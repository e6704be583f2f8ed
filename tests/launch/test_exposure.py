"""Exposure of Poisson regression: training, shards, sparse columns, alignment, measures, predictions and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.optimize import minimize
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_tweedie_score, mean_poisson_deviance

import vfl
from parties.prediction import NewRows
from vfl.base.losses import Poisson
from vfl.errors import DataError, PartitionError, PrivacyError, SpecificationError
from vfl.planning import plan
from vfl.queries.statistics import GroupCells, LabelRate, Residuals

N = 400
LOSS = Poisson(margin=1.5)
BOUNDS = {"*": (-1, 1), "y": (0, 10), "years": (0.05, 1.0)}
PARTITION = vfl.FeaturePartition({"bank": ["a", "b"], "insurer": ["c"]}, label=("insurer", "y"), exposure="years")


def job(**options: Any) -> vfl.Job:
    given: dict[str, Any] = {"partition": PARTITION, "privacy": None, "loss": LOSS, "bounds": BOUNDS}
    return vfl.Job(**given | options)


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    X, years = rng.uniform(-1, 1, (N, 3)), rng.uniform(0.1, 1.0, N)
    y = rng.poisson(years * np.exp(X @ [0.8, -0.5, 0.3] - 0.2)).astype(float)
    return dict(zip("abc", X.T, strict=True)) | {"y": y, "years": years}


@pytest.fixture(scope="module")
def reference(table: dict[str, np.ndarray]) -> PoissonRegressor:
    """Rates as scikit-learn fits them: y/e with weights e has the same gradient."""
    X = np.column_stack([table[name] for name in "abc"])
    rates, years = table["y"] / table["years"], table["years"]
    return PoissonRegressor(alpha=0.0, tol=1e-12, max_iter=1000).fit(X, rates, sample_weight=years)


def fitted(spec: vfl.Job, data: Any, **options: Any) -> vfl.Result:
    return vfl.train(spec, data, **options)


@pytest.mark.parametrize(
    "solver", [vfl.SkGD(), vfl.solvers.CD(), vfl.solvers.GD(passes=1000)], ids=lambda solver: str(solver.name)
)
def test_a_fit_without_noise_equals_scikit_learns_rates(
    solver: Any, table: dict[str, np.ndarray], reference: PoissonRegressor
) -> None:
    found = fitted(job(solver=solver), table)
    assert found.coef_ == pytest.approx(reference.coef_, abs=2e-6)
    assert found.intercept_ == pytest.approx(reference.intercept_, abs=2e-6)


@pytest.mark.parametrize(
    ("solver", "within"),
    [(vfl.solvers.SGD(passes=100), 0.01), (vfl.solvers.SVRG(passes=100), 1e-4), (vfl.solvers.SCD(passes=100), 1e-3)],
    ids=["SGD", "SVRG", "SCD"],
)
def test_stochastic_solvers_reach_the_minimum_with_offsets(
    solver: Any, within: float, table: dict[str, np.ndarray]
) -> None:
    """The reference minimises the penalised loss at margins Xw + log(exposure). Without offsets it is 0.2 away or more."""
    X, offsets = np.column_stack([table[name] for name in "abc"]), np.log(table["years"])

    def minimum(offsets: np.ndarray | float) -> np.ndarray:
        def objective(w: np.ndarray) -> float:
            return float(LOSS.value(X @ w + offsets, table["y"]).mean() + 0.025 * w @ w)

        return np.asarray(minimize(objective, np.zeros(3), tol=1e-12).x)

    found = fitted(job(solver=solver, penalty=vfl.L2(0.05), scaling="none", intercept=False), table)
    assert found.coef_ == pytest.approx(minimum(offsets), abs=within)
    assert abs(minimum(offsets) - minimum(0.0)).max() > 0.2


def test_predictions_and_the_export_are_rates(table: dict[str, np.ndarray], reference: PoissonRegressor) -> None:
    """New records need no exposure: the prediction is the mean for an exposure of 1."""
    found = fitted(job(), table)
    features = {name: table[name][:20] for name in "abc"}
    X = np.column_stack(list(features.values()))
    assert found.predict(features) == pytest.approx(reference.predict(X), abs=1e-6)
    assert found.to_sklearn().predict(pd.DataFrame(features)) == pytest.approx(reference.predict(X), abs=1e-6)


def test_shards_sparse_columns_and_alignment_give_the_same_model(table: dict[str, np.ndarray]) -> None:
    noised = job(privacy=vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(2)), evaluation=vfl.Evaluation(holdout=0.2))
    assert np.array_equal(fitted(noised, table, at=vfl.InProcess(shards=3)).coef_, fitted(noised, table).coef_)
    spec = job(partition=PARTITION.changed(sparse=["bank"]))
    whole = fitted(spec, table)
    parts = {
        "bank": sparse.csc_matrix(np.column_stack([table["a"], table["b"]])),
        "insurer": {name: table[name] for name in ("c", "y", "years")},
    }
    assert fitted(spec, parts).coef_ == pytest.approx(whole.coef_, abs=1e-8)
    order, ids = np.random.default_rng(0).permutation(N), np.arange(N)
    bank = {"id": ids, "a": table["a"], "b": table["b"]}
    insurer = {"id": ids, **{name: table[name] for name in ("c", "y", "years")}}
    moved = {name: column[order] for name, column in insurer.items()}
    aligned = fitted(replace(spec, id="id"), {"bank": bank, "insurer": moved})
    assert aligned.coef_ == pytest.approx(whole.coef_, abs=1e-7)


def test_the_label_party_may_hold_a_sparse_matrix(table: dict[str, np.ndarray]) -> None:
    """Its last columns are the label and the exposure."""
    spec = job(partition=PARTITION.changed(sparse=["bank", "insurer"]))
    insurer = sparse.csr_matrix(np.column_stack([table["c"], table["y"], table["years"]]))
    parts = {"bank": {"a": table["a"], "b": table["b"]}, "insurer": insurer}
    assert fitted(spec, parts).coef_ == pytest.approx(fitted(job(), table).coef_, abs=1e-7)


def test_measures_count_the_exposure(table: dict[str, np.ndarray]) -> None:
    spec = job(evaluation=vfl.Evaluation(holdout=0.3, public=True))
    found = fitted(spec, table)
    apart = spec.split.held_out(N)  # type: ignore[union-attr]
    held = {name: column[apart] for name, column in table.items()}
    features = {name: held[name] for name in "abc"}
    mae = np.abs(held["years"] * np.exp(found.decision_function(features)) - held["y"]).mean()
    deviance = mean_poisson_deviance(held["y"], held["years"] * np.exp(found.decision_function(features)))
    each = [found.findings["held out"]]
    each += [vfl.evaluate(found, held, at=vfl.InProcess(shards=shards)) for shards in (1, 3)]
    for measured in each:
        assert measured.measures["mae"].value == pytest.approx(mae, abs=1e-5)
        assert measured.measures["deviance"].value == pytest.approx(deviance, abs=1e-5)
        assert {"deviance", "d2"} <= set(measured.measures)


def test_a_shard_of_new_records_adds_its_offsets(table: dict[str, np.ndarray]) -> None:
    found = fitted(job(), table)
    part = found.part("insurer")
    rows = NewRows(part, labelled=True)
    rows.load({name: table[name] for name in ("c", "y", "years")}, None, None)
    rows.keep(rows.scores())
    v = rows.total(rows.scores()) + np.log(table["years"])
    t = np.clip(np.abs(LOSS.response(v) - table["y"]) / 10.0, 0.0, 1.0)
    found_sums = rows.sum_of(Residuals(LOSS, 10.0, (1 << 20, 1)))
    assert found_sums[0] == pytest.approx(t.sum() * (1 << 20), abs=N)


def test_the_objective_has_offsets_too(table: dict[str, np.ndarray]) -> None:
    found = fitted(job(evaluation=vfl.Evaluation(holdout=None, diagnostics=True)), table)
    v = found.decision_function({name: table[name] for name in "abc"}) + np.log(table["years"])
    loss = LOSS.value(v, table["y"]).mean()
    assert found.findings["diagnostics"].measures["loss"].value == pytest.approx(loss, abs=1e-9)


def test_a_private_run_starts_at_the_rate(table: dict[str, np.ndarray]) -> None:
    """Its first release has the sum of the exposures, and the plan stays within ε."""
    many = {name: np.tile(column, 20) for name, column in table.items()}
    spec = job(privacy=vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(2)), loss="poisson")
    made = plan(spec, 20 * N)
    assert made.epsilon <= 4.0
    assert "histogram of the labels for " in made.solver.explain(made.problem)[2]
    private, exact = fitted(spec, many), fitted(replace(spec, privacy=None), many)
    assert private.intercept_ == pytest.approx(exact.intercept_, abs=0.1)
    assert private.coef_ == pytest.approx(exact.coef_, abs=0.2)


@pytest.mark.parametrize(("cell", "clamped"), [(0.0, 0.05), (-3.0, 0.05), (np.inf, 1.0), (7.0, 1.0), (-np.inf, 0.05)])
def test_exposures_beyond_the_limits_are_clamped(cell: float, clamped: float, table: dict[str, np.ndarray]) -> None:
    """Without privacy, a wrong sign is an error instead (tests/parties/test_schema_of_types.py)."""
    spec = job(solver=vfl.SkGD(passes=3), privacy=vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(0)))
    first, second = ({name: column.copy() for name, column in table.items()} for _ in range(2))
    first["years"][5], second["years"][5] = cell, clamped
    assert np.array_equal(fitted(spec, first).coef_, fitted(spec, second).coef_)


def test_a_missing_exposure_is_found_by_its_owner(table: dict[str, np.ndarray]) -> None:
    years = table["years"].copy()
    years[7] = np.nan
    with pytest.raises(DataError, match="exposure 'years' has missing values"):
        fitted(job(), table | {"years": years})


class TestRefused:
    @pytest.mark.parametrize("limits", [{}, {"years": (0.0, 1.0)}, {"years": (-1.0, 1.0)}])
    def test_limits(self, limits: dict[str, Any]) -> None:
        with pytest.raises(SpecificationError, match="'years' needs public limits"):
            job(bounds={"*": (-1, 1), "y": (0, 10)} | limits)

    def test_a_loss_without_a_logarithm(self) -> None:
        with pytest.raises(SpecificationError, match="squared loss"):
            job(loss="squared")

    def test_shares(self) -> None:
        with pytest.raises(SpecificationError, match="trust='secure' offers"):
            job(trust="secure", privacy=vfl.Privacy(epsilon=1.0))

    @pytest.mark.parametrize("column", ["c", "y"])
    def test_another_use_of_the_column(self, column: str) -> None:
        with pytest.raises(PartitionError, match=f"column '{column}' is .* and also exposure"):
            vfl.FeaturePartition({"bank": ["a"], "insurer": ["c"]}, label=("insurer", "y"), exposure=column)

    def test_an_id(self) -> None:
        with pytest.raises(SpecificationError, match="also a feature or the label"):
            job(id="years")


def test_the_job_file_names_it() -> None:
    spec = job()
    text = spec.to_toml()
    assert 'exposure = "years"' in text
    from vfl.job.file import decode

    assert decode(spec.to_dict()) == spec
    assert decode(spec.to_dict()).partition.exposure == "years"


def _signalless(loss: str) -> tuple[vfl.Job, pd.DataFrame, float]:
    """Return a job, labels whose rates depend on no column, and the power of the loss."""
    rng, n = np.random.default_rng(0), 6000
    e = rng.uniform(0.05, 5, n)
    counts = {
        "poisson": rng.poisson(e),
        "gamma": rng.gamma(2.0, e / 2),
        "tweedie": rng.gamma(2.0, e) * (rng.random(n) < 0.5),
    }
    table = pd.DataFrame({"a": rng.uniform(-1, 1, n), "b": rng.uniform(-1, 1, n), "y": counts[loss] + 0.0, "e": e})
    table["y"] = table["y"].clip(1e-3 if loss == "gamma" else 0.0, 40.0)
    partition = vfl.FeaturePartition({"one": ["a"], "two": ["b"]}, ("one", "y"), exposure="e")
    bounds = {"*": (-1, 1), "y": (0, 40), "e": (0.05, 5)}
    spec = vfl.Job(partition=partition, bounds=bounds, loss=loss, privacy=None, penalty=vfl.L2(1e-4))
    return spec, table, {"poisson": 1.0, "tweedie": 1.5, "gamma": 2.0}[loss]


@pytest.mark.parametrize("loss", ["poisson", "tweedie", "gamma"])
def test_a_constant_rate_explains_what_the_exposure_explains(loss: str) -> None:
    """D² is scikit-learn's for rates; R² of a model without signal is 0. A mean without exposures gives 0.15 to 0.4."""
    spec, table, power = _signalless(loss)
    found = vfl.train(spec, table)
    rates, weights = table.y / table.e, table.e ** (2.0 - power)
    d2 = d2_tweedie_score(rates, found.predict(table), sample_weight=weights, power=power)
    held = replace(spec, evaluation=vfl.Evaluation(holdout=0.5, public=True))
    public = vfl.train(held, table).findings["held out"]
    for measures in [vfl.evaluate(found, table, at=vfl.InProcess(shards=k)).measures for k in (1, 3)]:
        assert measures["d2"].value == pytest.approx(d2, abs=1e-4)
        assert measures["r2"].value == pytest.approx(0.0, abs=0.01)
        assert measures["mae"].baseline == pytest.approx(measures["mae"].value, rel=0.02)
    assert abs(public.measures["d2"].value) < 0.01


@pytest.mark.parametrize("loss", ["poisson", "tweedie", "gamma"])
def test_noisy_r2_and_d2_of_a_model_without_signal_cover_zero(loss: str) -> None:
    """A constant without exposures puts the whole interval of Poisson's D² above 0.25."""
    spec, table, _ = _signalless(loss)
    for seed in range(3):
        privacy = vfl.Privacy(epsilon=5.0, noise=vfl.SeededNoise(seed))
        spec = replace(spec, privacy=privacy, solver=vfl.SkGD(passes=2), evaluation=vfl.Evaluation(holdout=0.4))
        for name, measure in vfl.train(spec, table, at="inprocess").findings["held out"].measures.items():
            if name in ("r2", "d2"):
                assert measure.interval[0] <= 0.02
                assert measure.interval[1] >= -0.02


def test_new_records_refuse_a_statistic_that_asks_for_what_they_lack(table: dict[str, np.ndarray]) -> None:
    rows = NewRows(fitted(job(), table).part("insurer"), labelled=True)
    rows.load({name: table[name] for name in ("c", "y", "years")}, None, None)
    rows.keep(rows.scores())
    for asked in (GroupCells((2,), 1.0), GroupCells((2,), None)):
        with pytest.raises(PrivacyError, match="do not have"):
            rows.sum_of(asked)
    for lie in ((10.0, 0.0, 1.0), (10.0, 2.0, 1.0), (10.0, 0.1, np.inf), (10.0, np.nan, 1.0), (0.0, 0.1, 1.0)):
        with pytest.raises(ValueError, match="bounds above 0"):
            LabelRate(*lie, power=1.0)
