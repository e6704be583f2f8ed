"""Declared weights of classes: scikit-learn's model without privacy, and the same guarantee with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import vfl
from vfl.base.losses import ClassWeighted
from vfl.errors import SpecificationError

N = 200
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 3))
Y = np.where(X[:, 0] + 0.5 * RNG.normal(size=N) > 0.6, "rare", "common")


def model(**options: Any) -> Any:
    return vfl.sklearn.VerticalLogisticRegression(
        **{"bounds": (-1, 1), "epsilon": None, "tol": 1e-12, "max_iter": 5000} | options
    )


@pytest.mark.parametrize("weights", ["balanced", {"rare": 5.0}, {"rare": 3, "common": 0.5}])
def test_it_is_scikit_learns_model_without_privacy(weights: Any) -> None:
    ours = model(class_weight=weights).fit(X, Y)
    theirs = LogisticRegression(class_weight=weights, tol=1e-12, max_iter=5000).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    assert clone(ours).class_weight == weights


def test_equal_weights_are_none() -> None:
    assert model(class_weight={"rare": 1.0}).fit(X, Y).result_.job.loss == "logistic"


def test_a_private_fit_keeps_its_guarantee() -> None:
    fit = model(epsilon=1.0, tol=None, max_iter=None, classes=("common", "rare"), class_weight={"rare": 5.0}).fit(X, Y)
    assert fit.result_.job.loss == ClassWeighted(negative=1.0, positive=5.0)
    assert fit.certificate_.private
    assert fit.certificate_.epsilon <= 1.0


SEVERAL = np.digitize(X[:, 0] + 0.5 * X[:, 1], [-0.5, 0.6])


@pytest.mark.parametrize("weights", ["balanced", {0: 5.0, 2: 0.5}])
@pytest.mark.parametrize("counted", [False, True])
def test_weights_of_several_classes_multiply_those_of_records(weights: Any, counted: bool) -> None:
    s = RNG.integers(0, 4, N).astype(float) if counted else None
    ours = model(class_weight=weights).fit(X, SEVERAL, sample_weight=s)
    theirs = LogisticRegression(class_weight=weights, tol=1e-12, max_iter=5000).fit(X, SEVERAL, sample_weight=s)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)


def test_a_private_fit_of_several_classes_counts_no_record_more_than_once() -> None:
    """The public limit is hi times the largest weight, for every label; it is all that the sensitivity rests on."""
    options: dict[str, Any] = {"classes": (0, 1, 2), "weight_bounds": (0, 2), "tol": None, "max_iter": None}
    fit = model(epsilon=1.0, class_weight={0: 5.0}, **options).fit(X, SEVERAL, sample_weight=np.full(N, 9.0))
    job = fit.result_.job
    assert job.bounds[job.partition.weight] == (0.0, 10.0)
    assert fit.certificate_.private
    assert fit.certificate_.epsilon <= 1.0


@pytest.mark.parametrize(
    ("weights", "epsilon", "said"),
    [
        ("balanced", 1.0, "'balanced' weights are computed from the number of labels per class"),
        ("even", None, "class_weight is {label: weight}, 'balanced' without privacy, or None, not 'even'"),
        (3.0, None, "class_weight is {label: weight}"),
        ({"rar": 2.0}, None, "class_weight names 'rar', which is not one of the classes"),
        ({"rare": -1.0}, None, "class_weight of 'rare' must be positive, not -1.0"),
        ({"rare": "2"}, None, "class_weight of 'rare' must be a number, 2, not '2'"),
    ],
)
def test_mistakes(weights: Any, epsilon: float | None, said: str) -> None:
    with pytest.raises(SpecificationError) as caught:
        model(class_weight=weights, epsilon=epsilon, tol=None, max_iter=None, classes=("common", "rare")).fit(X, Y)
    assert said in str(caught.value)
