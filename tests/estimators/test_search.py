"""VerticalGridSearch: scikit-learn's checks, GridSearchCV's interface, and one ε for the whole search."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import ParameterGrid
from sklearn.utils.estimator_checks import parametrize_with_checks

import vfl
from tests.estimators.test_estimators import OF_WEIGHTS
from vfl.errors import PrivacyError, SpecificationError
from vfl.launch.run import warnings as running
from vfl.privacy.events import Selection, bare

pytestmark = [
    pytest.mark.filterwarnings("ignore:bounds are not declared:vfl.launch.run.warnings.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:classes='from data':vfl.launch.run.warnings.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:label_bounds are not declared:vfl.launch.run.warnings.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:private run:vfl.launch.run.warnings.PrivacyWarning"),
]
GRID = {"C": [0.1, 10.0]}


@pytest.fixture(autouse=True)
def total(monkeypatch):
    fresh = running.RunningTotal()
    monkeypatch.setattr(running, "of_this_process", fresh)
    return fresh


def data(n=600):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (n, 3))
    return X, (3.0 * X[:, 0] + rng.logistic(size=n) > 0).astype(int)


def search(**options):
    estimator = vfl.sklearn.VerticalLogisticRegression(epsilon=20.0, classes=(0, 1), bounds=(-1, 1), max_iter=5)
    return vfl.sklearn.VerticalGridSearch(estimator, **{"param_grid": GRID} | options)


NOISY_CLASS = "asks for one class on ten records: noise may decide for the other"
TWO_FITS = "compares two fits on the same data: noise and the secret draw differ between them"
EXPECTED = (
    dict.fromkeys(
        (
            "check_fit_idempotent",
            "check_supervised_y_2d",
            "check_classifier_data_not_an_array",
            "check_regressor_data_not_an_array",
            "check_regressors_int",
        ),
        TWO_FITS,
    )
    | {"check_classifiers_one_label_sample_weights": NOISY_CLASS}
    | OF_WEIGHTS
)


@pytest.mark.filterwarnings("ignore:weight_bounds are not declared:vfl.launch.run.warnings.PrivacyWarning")
@parametrize_with_checks(
    [
        # One δ for all numbers of records, so that one calibration of the selection serves all checks.
        vfl.sklearn.VerticalGridSearch(
            vfl.sklearn.VerticalLogisticRegression(delta=1e-6, max_iter=2, classes="from data"),
            {"C": [1.0, 10.0]},
            holdout=0.5,
        ),
        vfl.sklearn.VerticalGridSearch(
            vfl.sklearn.VerticalRidge(delta=1e-6, max_iter=2), {"alpha": [1.0, 10.0]}, holdout=0.5
        ),
    ],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_it_has_the_interface_of_a_grid_search():
    X, y = data()
    found = search().fit(X, y)
    assert found.best_params_ in list(ParameterGrid(GRID))
    assert list(ParameterGrid(GRID))[found.best_index_] == found.best_params_
    assert found.best_estimator_.get_params()["C"] == found.best_params_["C"]
    assert found.best_score_ == pytest.approx(-0.45, abs=0.3)
    assert found.cv_results_ == {"params": list(ParameterGrid(GRID))}
    assert found.classes_.tolist() == [0, 1]
    assert found.n_features_in_ == 3
    assert found.score(X, y) > 0.7
    assert np.array_equal(found.predict(X), found.best_estimator_.predict(X))
    assert found.predict_proba(X).shape == (600, 2)
    assert found.decision_function(X).shape == (600,)
    assert is_classifier(found)
    assert is_regressor(vfl.sklearn.VerticalGridSearch(vfl.sklearn.VerticalRidge(), {"alpha": [1.0, 2.0]}))
    assert clone(found).get_params()["estimator__epsilon"] == 20.0


def test_the_whole_search_spends_one_epsilon():
    X, y = data()
    estimator = vfl.sklearn.VerticalLogisticRegression(
        epsilon=1.0, delta=1e-6, classes=(0, 1), bounds=(-1, 1), max_iter=1
    )
    found = vfl.sklearn.VerticalGridSearch(estimator, {"C": [0.1, 1.0, 10.0]}).fit(X, y)
    certificate = found.certificate_
    assert certificate.private
    assert certificate.epsilon <= 1.0
    assert {(bare(event).candidates, bare(event).concentration) for event, _ in certificate.events} == {(3, 4)}
    assert all(isinstance(bare(event), Selection) for event, _ in certificate.events)
    assert any("steps before this fit" in flag for flag in certificate.flags)


def test_names_and_owners_of_columns_are_kept():
    X, y = data()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    found = search()
    found.set_params(estimator__partition=2).fit(frame, y)
    assert found.feature_names_in_.tolist() == ["a", "b", "c"]
    assert found.predict(frame).shape == (600,)


@pytest.mark.parametrize("scoring", ["neg_mean_squared_error", "mae", None])
def test_regression_is_scored_by_errors(scoring):
    X, _ = data()
    y = X[:, 0]
    estimator = vfl.sklearn.VerticalRidge(epsilon=50.0, label_bounds=(-1, 1), bounds=(-1, 1), max_iter=3)
    found = vfl.sklearn.VerticalGridSearch(estimator, {"alpha": [0.1, 100.0]}, scoring=scoring).fit(X, y)
    assert found.best_score_ < 0.05
    assert found.best_score_error_ > 0.0


def test_counts_are_scored_by_their_deviance():
    X, _ = data()
    y = np.round(np.exp(X[:, 0]))
    estimator = vfl.sklearn.VerticalPoissonRegressor(epsilon=50.0, label_bounds=(0, 4), bounds=(-1, 1), max_iter=3)
    grid = {"alpha": [0.1, 100.0]}
    found = vfl.sklearn.VerticalGridSearch(estimator, grid, scoring="neg_mean_poisson_deviance").fit(X, y)
    assert set(found.result_.findings["score"].measures) == {"deviance"}
    assert found.best_score_ == -found.result_.findings["score"].measures["deviance"].value
    with pytest.raises(SpecificationError, match="gamma_deviance' is not a deviance"):
        vfl.sklearn.VerticalGridSearch(estimator, grid, scoring="neg_mean_gamma_deviance").fit(X, y)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"param_grid": {"C": [1.0]}}, SpecificationError, "at least two candidates"),
        ({"param_grid": {"epsilon": [1.0, 2.0]}}, SpecificationError, "differs from the first in privacy.epsilon"),
        ({"param_grid": {"bounds": [(-1, 1), (-2, 2)]}}, SpecificationError, "differs from the first in bounds"),
        ({"param_grid": {"C": [1.0, 1.0]}}, SpecificationError, "are the same job"),
        ({"scoring": "roc_auc"}, SpecificationError, "unknown scoring 'roc_auc'"),
        ({"scoring": "mae"}, SpecificationError, "does not fit logistic loss"),
        ({"inclusion": 0}, SpecificationError, "inclusion is a whole number"),
        ({"holdout": 1.5}, SpecificationError, "holdout is a fraction"),
        ({"param_grid": {"gamma": [1, 2]}}, ValueError, "Invalid parameter"),
    ],
)
def test_a_bad_search_is_refused(options, error, said):
    X, y = data(60)
    with pytest.raises(error, match=said):
        search(**options).fit(X, y)


def test_no_privacy_is_refused_with_the_remedy():
    X, y = data(60)
    with pytest.raises(PrivacyError, match="use GridSearchCV"):
        vfl.sklearn.VerticalGridSearch(vfl.sklearn.VerticalRidge(epsilon=None), {"alpha": [1.0, 2.0]}).fit(X, y)
    with pytest.raises(SpecificationError, match="vertical estimator"):
        vfl.sklearn.VerticalGridSearch(object(), {"alpha": [1.0, 2.0]}).fit(X, y)


def test_an_unfitted_search_says_so():
    X, _ = data(60)
    with pytest.raises(NotFittedError):
        search().predict(X)
    with pytest.raises(AttributeError):
        _ = vfl.sklearn.VerticalGridSearch(vfl.sklearn.VerticalRidge(), {"alpha": [1.0, 2.0]}).predict_proba
