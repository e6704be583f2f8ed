"""sample_weight of the estimators: scikit-learn's solutions without privacy, declared limits with it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn import linear_model

import vfl
from vfl.errors import DataError, SpecificationError

N = 200
PAIRS = [
    (vfl.sklearn.VerticalLinearRegression, linear_model.LinearRegression, {}),
    (vfl.sklearn.VerticalRidge, linear_model.Ridge, {"alpha": 3.0}),
    (vfl.sklearn.VerticalLasso, linear_model.Lasso, {"alpha": 0.1}),
    (vfl.sklearn.VerticalElasticNet, linear_model.ElasticNet, {"alpha": 0.1}),
    (vfl.sklearn.VerticalLogisticRegression, linear_model.LogisticRegression, {"C": 0.5}),
    (vfl.sklearn.VerticalPoissonRegressor, linear_model.PoissonRegressor, {"alpha": 0.1}),
]


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N, 3))
    s = rng.choice([0.0, 0.5, 1.0, 3.0], N)
    return X, rng.poisson(np.exp(X[:, 0] + s * X[:, 1])).astype(float), s


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=lambda kind: getattr(kind, "__name__", ""))
@pytest.mark.parametrize("form", [np.asarray, sparse.csc_array], ids=["dense", "sparse"])
def test_without_privacy_they_are_scikit_learns_solutions(ours, theirs, options, form, table):
    X, y, s = table
    y = (y > 1).astype(int) if ours is vfl.sklearn.VerticalLogisticRegression else y
    exact = {} if theirs in (linear_model.LinearRegression, linear_model.Ridge) else {"tol": 1e-12, "max_iter": 10_000}
    expected = theirs(**options | exact).fit(X, y, sample_weight=s)
    found = ours(epsilon=None, partition=2, **options).fit(form(X), y, sample_weight=s)
    np.testing.assert_allclose(found.coef_, expected.coef_, atol=1e-5)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=1e-5)
    assert abs(theirs(**options | exact).fit(X, y).coef_ - expected.coef_).max() > 0.05


def test_a_private_fit_clamps_weights_to_their_limits(table):
    X, y, s = table
    options = {"epsilon": 3.0, "bounds": (-1, 1), "label_bounds": (0, 10), "noise": vfl.SeededNoise(0)}
    model = vfl.sklearn.VerticalRidge(**options, weight_bounds=(0, 1)).fit(X, y, sample_weight=s)
    clamped = vfl.sklearn.VerticalRidge(**options, weight_bounds=(0, 1)).fit(X, y, sample_weight=np.minimum(s, 1.0))
    assert np.array_equal(model.coef_, clamped.coef_)
    with pytest.warns(vfl.PrivacyWarning, match=r"weight_bounds are not.*clamped to \(0"):
        undeclared = vfl.sklearn.VerticalRidge(**options).fit(X, y, sample_weight=s)
    assert np.array_equal(model.coef_, undeclared.coef_)
    assert model.result_.job.partition.weight == "weight"


def test_the_largest_weight_states_the_same_objective(table):
    """All weights are the upper limit: a fit without weights, to the noise's bit, but for the order of float operations."""
    X, y, _ = table
    options = {"epsilon": None, "bounds": (-1, 1), "alpha": 2.0}
    plain = vfl.sklearn.VerticalRidge(**options).fit(X, y)
    same = vfl.sklearn.VerticalRidge(**options, weight_bounds=(0, 1)).fit(X, y, sample_weight=np.ones(N))
    np.testing.assert_allclose(same.coef_, plain.coef_, atol=1e-8)


@pytest.mark.parametrize("bounds", [(0, 1), (0.5, 1)])
@pytest.mark.parametrize("kind", [vfl.sklearn.VerticalRidge, vfl.sklearn.VerticalLogisticRegression])
def test_no_record_decides_whether_a_private_model_exists(kind, bounds):
    """Weights that are all 0 are refused without privacy only: one record would tell them from others."""
    X = np.random.default_rng(0).uniform(-1, 1, (60, 2))
    y = (X[:, 0] > 0).astype(int)
    options = {"classes": (0, 1)} if kind is vfl.sklearn.VerticalLogisticRegression else {"label_bounds": (0, 1)}
    one = np.eye(60)[0]
    for weights in (one, one - one, -np.ones(60), 1e300 * one):
        kind(epsilon=1.0, bounds=(-1, 1), weight_bounds=bounds, **options).fit(X, y, sample_weight=weights)
    with pytest.raises(DataError, match="only zeros"):
        kind(epsilon=None, **options).fit(X, y, sample_weight=np.zeros(60))


@pytest.mark.parametrize("cell", ["HIV+", 10**400, None, 1j], ids=["text", "integer", "none", "complex"])
def test_a_cell_that_is_no_number_is_not_shown(cell, table):
    X, y, _ = table
    for name in ("sample_weight", "exposure"):
        with pytest.raises(DataError, match=f"{name} (holds cells|contains NaN)") as caught:
            vfl.sklearn.VerticalPoissonRegressor(epsilon=None).fit(X, y, **{name: [1.0] * (N - 1) + [cell]})
        assert "HIV" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_refusals(table):
    X, y, s = table
    named = vfl.FeaturePartition({"bank": ["x0", "x1", "x2"]}, ("bank", "y"), weight="s")
    with pytest.raises(SpecificationError, match=r"'s': give it, fit\(X, y, sample_weight="):
        vfl.sklearn.VerticalRidge(epsilon=None, partition=named).fit(X, y)
    with pytest.raises(SpecificationError, match="SCD does not support weights"):
        vfl.sklearn.VerticalRidge(epsilon=None, solver=vfl.solvers.SCD()).fit(X, y, sample_weight=s)
    with pytest.raises(ValueError, match="NaN"):
        vfl.sklearn.VerticalRidge(epsilon=None).fit(X, y, sample_weight=np.full(N, np.nan))
