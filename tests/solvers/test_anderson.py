"""Extrapolated runs without privacy: exact on linear iterations, fast on collinear columns, never higher in the objective."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression

import vfl
from coordinator.rounds import Round
from tests.solvers.setting import drive, job, log_of
from vfl.launch.train import train
from vfl.planning import plan
from vfl.solvers.iterates.anderson import WINDOW, accelerated, extrapolated

SMALL = vfl.SkGD(step_size=0.2)
"""Short steps, so that a run on easy data lasts long enough to be extrapolated."""


def collinear(n: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Six columns, of which two nearly repeat others, and a label."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 6))
    X[:, 4] = X[:, 0] + 0.01 * rng.normal(size=n)
    X[:, 5] = X[:, 1] - X[:, 2] + 0.01 * rng.normal(size=n)
    return X, X @ np.array([1.0, -1.0, 0.5, 0.0, 2.0, 0.0]) + rng.normal(size=n)


def test_the_limit_of_a_linear_iteration_is_exact() -> None:
    rng = np.random.default_rng(1)
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    T, limit = Q @ np.diag([0.999, 0.9, 0.5, 0.1]) @ Q.T, rng.normal(size=4)
    iterates = [rng.normal(size=4)]
    for _ in range(6):
        iterates.append(limit + T @ (iterates[-1] - limit))
    assert abs(iterates[-1] - limit).max() > 0.1
    np.testing.assert_allclose(extrapolated(np.array(iterates), np.ones(4)), limit, atol=1e-8)


@pytest.mark.parametrize("classifies", [False, True])
def test_nearly_collinear_columns_reach_the_optimum(classifies: bool) -> None:
    X, y = collinear()
    theirs: Any = LinearRegression().fit(X, y)
    ours: Any = vfl.sklearn.VerticalLinearRegression(epsilon=None)
    if classifies:
        y = y > 0
        theirs, ours = LogisticRegression(tol=1e-12, solver="newton-cholesky").fit(X, y), None
        ours = vfl.sklearn.VerticalLogisticRegression(epsilon=None)
    ours.fit(X, y)
    assert ours.n_iter_ < 150
    assert abs(ours.coef_ - theirs.coef_).max() < 1e-3 * abs(theirs.coef_).max()


def test_redundant_columns_reach_the_optimum() -> None:
    X, y = make_classification(5000, 10, n_informative=5, n_redundant=2, random_state=0)
    theirs = LogisticRegression(tol=1e-12, solver="newton-cholesky").fit(X, y)
    ours = vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(X, y)
    assert abs(ours.coef_ - theirs.coef_).max() < 1e-4
    assert ours.n_iter_ < 400


def test_a_fit_that_uses_up_its_passes_warns_though_its_next_move_is_small() -> None:
    """Along a direction of condition 10⁶ no step moves a coordinate by 10⁻⁵ of the largest, far from the optimum."""
    X, y = collinear()
    X[:, 4] = X[:, 0] + 1e-4 * X[:, 3]
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        fit = vfl.sklearn.VerticalLinearRegression(epsilon=None, max_iter=9).fit(X, y)
    assert fit.n_iter_ == 9


def test_no_extrapolation_raises_the_objective() -> None:
    X, y = collinear(300)
    seen: list[object] = []
    spec = vfl.Job(
        partition=vfl.FeaturePartition({"a": ["0", "1", "2"], "b": ["3", "4", "5"]}, label=("a", "y")),
        loss="squared",
        privacy=None,
        bounds={},
        scaling="none",
    )
    table = {str(j): X[:, j] for j in range(6)} | {"y": y}
    result = train(spec, table, at="inprocess", watch=seen.append)
    totals = [float(event.released[0][0]) for event in seen if isinstance(event, Round) and event.kind == "ExactTally"]
    assert len(totals) > 2
    assert totals == sorted(totals, reverse=True)
    residuals = X @ result.coef_ + result.intercept_ - y
    assert float(residuals @ residuals) / 2 == pytest.approx(totals[-1], rel=1e-6)


@pytest.mark.parametrize(
    "solver",
    [vfl.SkGD(), vfl.SkGD(passes=3), vfl.SkGD(passes=30, sampling="cyclic"), vfl.solvers.CD()],
    ids=["default", "few", "cyclic", "CD"],
)
def test_a_private_run_never_extrapolates(solver: Any) -> None:
    planned = plan(job(solver, epsilon=1.0), 300)
    assert not accelerated(planned.solver, planned.problem)
    made, _ = drive(job(solver, epsilon=1.0))
    assert not any(record.kind == "ExactTally" for record in made)
    assert len(made) == planned.messages


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(passes=2 * WINDOW),
        vfl.SkGD(details=vfl.solvers.Details(tol=1e-9), sampling="uniform"),
        vfl.SkGD(details=vfl.solvers.Details(tol=1e-9, iterate="average")),
        vfl.SkGD(details=vfl.solvers.Details(tol=1e-9), clip=2.0),
    ],
    ids=["given passes", "random passes", "averaged", "clipped"],
)
def test_runs_that_do_not_search_the_optimum_are_left_as_they_are(solver: Any) -> None:
    planned = plan(job(solver), 300)
    assert not accelerated(planned.solver, planned.problem)


def test_unusable_iterates_give_no_jump() -> None:
    same = np.ones((4, 3))
    np.testing.assert_array_equal(extrapolated(same, np.ones(3)), np.ones(3))
    assert not math.isnan(extrapolated(np.array([[0.0], [1.0], [2.0]]), np.ones(1))[0])


def test_a_run_that_is_cut_off_continues_with_the_same_model() -> None:
    """Before, between and after the queries of an extrapolation; accepted and rejected ones rebuild Xw."""
    spec = job(SMALL)
    made, outcome = drive(spec)
    rebuilt = [number for number, record in enumerate(made) if record.kind == "ExactTally"]
    assert len(rebuilt) >= 2
    for length in {1, rebuilt[0], rebuilt[0] + 1, rebuilt[0] + 2, rebuilt[1] + 1, len(made) - 1}:
        assert drive(spec, log_of(made, length))[1].w.tobytes() == outcome.w.tobytes()
