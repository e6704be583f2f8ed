"""Weights of records: training, shards, sparse columns, exposure, measures, sensitivity and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor

import vfl
from coordinator.states.linear_predictors import LinearPredictors
from tests.coordinator.test_transports import in_process
from vfl.base.losses import Huber, Poisson, loss_of
from vfl.base.problem import Block, Targets
from vfl.errors import DataError, PartitionError, SpecificationError
from vfl.kernels.geometry import record_limits
from vfl.planning.public_problem import problem_of
from vfl.privacy.geometry import Clip
from vfl.queries import Backward, RecordCap
from vfl.queries.protocol import Derivative
from vfl.solvers import SOLVERS
from vfl.solvers.rules.recommend import recommendation

N = 300
HIGH = 4.0
BOUNDS = {"*": (-1, 1), "y": (-8, 8), "s": (0.0, HIGH)}
PARTITION = vfl.FeaturePartition({"bank": ["a", "b"], "telco": ["c"]}, label=("telco", "y"), weight="s")


def job(**options: Any) -> vfl.Job:
    given: dict[str, Any] = {"partition": PARTITION, "privacy": None, "loss": "squared", "bounds": BOUNDS}
    return vfl.Job(**given | options)


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (N, 3))
    s = rng.choice([0.0, 0.5, 1.0, 3.0, HIGH], N)
    y = X @ [0.8, -0.5, 0.3] + s * X[:, 0] + 0.5 * rng.normal(size=N)
    return dict(zip("abc", X.T, strict=True)) | {"y": y, "s": s}


def columns(table: dict[str, np.ndarray]) -> np.ndarray:
    return np.column_stack([table[name] for name in "abc"])


def fitted(spec: vfl.Job, data: Any, **options: Any) -> vfl.Result:
    return vfl.train(spec, data, **options)


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(),
        vfl.SkGD(details=vfl.solvers.Details(message="block"), block_size=2),
        vfl.solvers.CD(),
        vfl.solvers.GD(),
        vfl.SkGD(details=vfl.solvers.Details(parallel=2)),
    ],
    ids=["SkGD", "blocks", "CD", "GD", "parallel"],
)
def test_least_squares_equal_scikit_learns(solver: Any, table: dict[str, np.ndarray]) -> None:
    reference = LinearRegression().fit(columns(table), table["y"], sample_weight=table["s"])
    found = fitted(job(solver=solver), table)
    assert found.coef_ == pytest.approx(reference.coef_, abs=2e-6)
    assert found.intercept_ == pytest.approx(reference.intercept_, abs=2e-6)
    unweighted = LinearRegression().fit(columns(table), table["y"])
    assert abs(unweighted.coef_ - reference.coef_).max() > 0.1


def test_logistic_regression_equals_scikit_learns(table: dict[str, np.ndarray]) -> None:
    """A record counts s/s_max times, so C is 1/(n·s_max·strength)."""
    classes = table | {"y": (table["y"] > 0).astype(float)}
    spec = job(loss="logistic", bounds={"*": (-1, 1), "s": (0.0, HIGH)}, penalty=vfl.L2(0.01), scaling="none")
    reference = LogisticRegression(C=1.0 / (N * HIGH * 0.01), tol=1e-12, max_iter=1000)
    reference.fit(columns(classes), classes["y"], sample_weight=classes["s"])
    found = fitted(spec, classes)
    assert found.coef_ == pytest.approx(reference.coef_[0], abs=1e-5)
    assert found.intercept_ == pytest.approx(reference.intercept_[0], abs=1e-5)


def test_weights_and_exposures_together(table: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    years = rng.uniform(0.1, 1.0, N)
    counts = table | {"y": rng.poisson(years * np.exp(columns(table)[:, 0])).astype(float), "years": years}
    bounds = {"*": (-1, 1), "y": (0, 20), "s": (0.0, HIGH), "years": (0.05, 1.0)}
    spec = job(partition=PARTITION.changed(exposure="years"), loss=Poisson(margin=3.0), bounds=bounds)
    assert spec.partition.factor_columns == ("years", "s")
    reference = PoissonRegressor(alpha=0.0, tol=1e-12, max_iter=1000)
    reference.fit(columns(counts), counts["y"] / years, sample_weight=years * counts["s"])
    assert fitted(spec, counts).coef_ == pytest.approx(reference.coef_, abs=1e-5)


@pytest.mark.parametrize(
    ("solver", "within"),
    [(vfl.solvers.SGD(passes=200), 0.03), (vfl.solvers.SVRG(passes=100), 1e-3)],
    ids=["SGD", "SVRG"],
)
def test_stochastic_solvers_reach_the_minimum(solver: Any, within: float, table: dict[str, np.ndarray]) -> None:
    X, y, s = columns(table), table["y"], table["s"] / HIGH
    loss = Huber(width=1.35)
    spec = job(loss=loss, solver=solver, penalty=vfl.L2(0.05), scaling="none", intercept=False)

    def objective(w: np.ndarray) -> float:
        return float((s * loss.value(X @ w, y)).mean() + 0.025 * w @ w)

    assert fitted(spec, table).coef_ == pytest.approx(minimize(objective, np.zeros(3), tol=1e-12).x, abs=within)


@pytest.mark.parametrize(
    ("loss", "classes"), [("squared", None), ("logistic", None), ("huber", None), ("multinomial", ("0", "1", "2"))]
)
@pytest.mark.parametrize(
    "solver",
    [vfl.SkGD(passes=4), vfl.SkGD(passes=4, clip="coordinate"), vfl.solvers.GD(passes=4)],
    ids=lambda s: repr(s)[:24],
)
def test_every_part_gives_the_same_bits(loss: str, classes: Any, solver: Any, table: dict[str, np.ndarray]) -> None:
    """Shards; messages of several steps against single steps, in which the margins apply the weights."""
    if loss == "multinomial" and getattr(solver, "clip", None) == "coordinate":
        solver = replace(solver, clip=1.0)
    labels = {"multinomial": np.digitize(table["y"], [-0.5, 0.5]), "logistic": table["y"] > 0}.get(loss, table["y"])
    data = table | {"y": labels.astype(float)}
    bounds = BOUNDS if loss in ("squared", "huber") else {"*": (-1, 1), "s": (0.0, HIGH)}
    options: dict[str, Any] = {} if classes is None else {"classes": classes}
    privacy = vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(2))
    spec = job(
        loss=loss, bounds=bounds, solver=solver, privacy=privacy, evaluation=vfl.Evaluation(holdout=0.2), **options
    )
    whole = fitted(spec, data)
    assert np.array_equal(fitted(spec, data, at=vfl.InProcess(shards=3)).coef_, whole.coef_)
    (_, visits), (_, single) = in_process(spec, data), in_process(spec, data, expand=True)
    assert visits.w.tobytes() == single.w.tobytes() == whole.w.tobytes()
    same = fitted(spec, data | {"s": np.full(N, HIGH)})
    assert not np.array_equal(same.coef_, whole.coef_)


def test_sparse_columns_and_alignment_give_the_same_model(table: dict[str, np.ndarray]) -> None:
    whole = fitted(job(), table)
    parts = {
        "bank": sparse.csc_matrix(np.column_stack([table["a"], table["b"]])),
        "telco": {name: table[name] for name in ("c", "y", "s")},
    }
    assert fitted(job(partition=PARTITION.changed(sparse=["bank"])), parts).coef_ == pytest.approx(
        whole.coef_, abs=1e-7
    )
    order, ids = np.random.default_rng(0).permutation(N), np.arange(N)
    bank = {"id": ids, "a": table["a"], "b": table["b"]}
    telco = {"id": ids, **{name: table[name] for name in ("c", "y", "s")}}
    moved = {name: column[order] for name, column in telco.items()}
    aligned = fitted(replace(job(), id="id"), {"bank": bank, "telco": moved})
    assert aligned.coef_ == pytest.approx(whole.coef_, abs=1e-7)


def test_a_record_of_weight_0_changes_nothing(table: dict[str, np.ndarray]) -> None:
    """Its label and features are of no account, with seeded noise to the bit; columns are scaled by their bounds."""
    none = np.flatnonzero(table["s"] == 0.0)[0]
    other = {name: column.copy() for name, column in table.items()}
    other["y"][none] = -4.0
    privacy = vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(2), smoothness="bounds")
    spec = job(privacy=privacy, solver=vfl.SkGD(passes=3, details=vfl.solvers.Details(label_share=0.0)))
    assert np.array_equal(fitted(spec, other).coef_, fitted(spec, table).coef_)


def test_measures_count_every_record_once(table: dict[str, np.ndarray]) -> None:
    spec = job(evaluation=vfl.Evaluation(holdout=0.3, public=True))
    found = fitted(spec, table)
    apart = spec.split.held_out(N)  # type: ignore[union-attr]
    held = {name: column[apart] for name, column in table.items()}
    error = np.abs(found.decision_function({name: held[name] for name in "abc"}) - held["y"])
    unweighted = {name: cells for name, cells in held.items() if name != "s"}
    by_party = {"bank": {name: held[name] for name in "ab"}, "telco": {name: held[name] for name in "cy"}}
    again = (vfl.evaluate(found, data, at="inprocess") for data in (held, unweighted, by_party))
    for measured in (found.findings["held out"], *again):
        assert measured.measures["mae"].value == pytest.approx(error.mean(), abs=1e-4)


@pytest.mark.parametrize("kernel", ["squared", "logistic", "huber"])
def test_no_record_contributes_more_than_its_cap(kernel: str) -> None:
    """Linear predictors, labels and weights at their extremes, NaN and infinite margins among them."""
    cap = 0.7
    v = np.array([0.0, 1e300, -1e300, np.inf, -np.inf, np.nan, 3.0, -3.0])
    norms = np.array([1.0, 4.0, 1e-300, 2.0, np.inf, 1.0, 1e300, 0.25])
    for sign in (1.0, -1.0):
        for weight in (0.0, 5e-324, 0.3, 1.0):
            given = np.concatenate([np.full(v.size, sign), np.full(v.size, weight)])
            margins = LinearPredictors(given, targets=Targets(weights=True))
            margins.absorb("norms", [norms])
            margins.absorb("add", [v])
            block = Block(0, "bank", 0, 1, 0)
            rows = {"bank": (block, np.zeros(1), np.ones(1))}
            clip = Clip(cap, 1)
            query = Backward(
                Derivative(loss_of(kernel)),
                (block,),
                (np.zeros(1),),
                (np.ones(1),),
                clip,
                None,
                capped=RecordCap(cap, rows),
            )
            r = margins.records(query).weights
            assert r is not None
            assert np.isfinite(r).all()
            with np.errstate(all="ignore"):
                assert (np.abs(r) <= np.nextafter(weight * record_limits(norms, cap), np.inf)).all()


@pytest.mark.parametrize(("cell", "clamped"), [(-3.0, 0.0), (np.inf, HIGH), (7.0, HIGH), (-np.inf, 0.0)])
def test_weights_beyond_the_limits_are_clamped(cell: float, clamped: float, table: dict[str, np.ndarray]) -> None:
    """Without privacy, a wrong sign is an error instead (tests/parties/test_schema_of_types.py)."""
    spec = job(solver=vfl.SkGD(passes=3), privacy=vfl.Privacy(epsilon=4.0, noise=vfl.SeededNoise(0)))
    first, second = ({name: column.copy() for name, column in table.items()} for _ in range(2))
    first["s"][5], second["s"][5] = cell, clamped
    assert np.array_equal(fitted(spec, first).coef_, fitted(spec, second).coef_)


def test_a_missing_weight_is_found_by_its_owner(table: dict[str, np.ndarray]) -> None:
    weights = table["s"].copy()
    weights[7] = np.nan
    with pytest.raises(DataError, match=r"'s' has missing values.*left out"):
        fitted(job(), table | {"s": weights})


class TestRefused:
    @pytest.mark.parametrize("limits", [{}, {"s": (-1.0, 1.0)}, {"s": (-2.0, 0.0)}])
    def test_limits(self, limits: dict[str, Any]) -> None:
        with pytest.raises(SpecificationError, match="'s' needs public limits"):
            job(bounds={"*": (-1, 1), "y": (0, 10)} | limits)

    def test_shares(self) -> None:
        with pytest.raises(SpecificationError, match="trust='secure' offers"):
            job(trust="secure", privacy=vfl.Privacy(epsilon=1.0))

    @pytest.mark.parametrize("solver", [vfl.solvers.SCD(), vfl.solvers.NoisyGram()], ids=["SCD", "NoisyGram"])
    def test_solvers(self, solver: Any) -> None:
        with pytest.raises(SpecificationError, match=f"{solver.name}.*use SkGD, CD or GD"):
            job(solver=solver, penalty=vfl.L2(0.1))

    @pytest.mark.parametrize("column", ["c", "y"])
    def test_another_use_of_the_column(self, column: str) -> None:
        with pytest.raises(PartitionError, match=f"column '{column}' is .* and also weight"):
            vfl.FeaturePartition({"bank": ["a"], "telco": ["c"]}, label=("telco", "y"), weight=column)

    def test_a_dropped_weight(self) -> None:
        with pytest.raises(PartitionError, match="'s' is the weight"):
            PARTITION.without(["s"])


@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_the_recommended_solver_weighs_records(loss: str) -> None:
    spec = job(loss=loss, penalty=vfl.L2(0.1), privacy=vfl.Privacy(epsilon=1.0))
    assert SOLVERS[recommendation(problem_of(spec, 10_000)).solver].weighs


def test_the_job_file_names_it() -> None:
    from vfl.job.file import decode

    spec = job()
    assert 'weight = "s"' in spec.to_toml()
    assert decode(spec.to_dict()) == spec
    assert decode(spec.to_dict()).partition.weight == "s"
    assert "s_i·squared" in vfl.plan(spec, N).problem.describe()


def test_the_certificate_says_who_sees_the_weights(table: dict[str, np.ndarray]) -> None:
    privacy = vfl.Privacy(epsilon=1.0)
    seen = fitted(job(privacy=privacy, solver=vfl.SkGD(passes=1)), table).certificate.who_sees_what
    assert "the weight of every record" in seen["party"]
    assert "the weight of every record" in seen["coordinator"]
    assert "weight" not in seen["outsider"]
