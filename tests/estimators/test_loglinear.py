"""Regression of counts and amounts: scikit-learn's checks and solutions, exposures, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import GammaRegressor, PoissonRegressor, TweedieRegressor
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_sparse_data, parametrize_with_checks

import vfl
from tests.estimators.test_estimators import OF_WEIGHTS
from vfl.errors import DataError, SpecificationError

KINDS = (vfl.sklearn.VerticalPoissonRegressor, vfl.sklearn.VerticalGammaRegressor, vfl.sklearn.VerticalTweedieRegressor)
PEERS = dict(zip(KINDS, (PoissonRegressor, GammaRegressor, lambda **k: TweedieRegressor(power=1.5, **k)), strict=True))
N, LOW, HIGH = 500, 0.1, 1.0

pytestmark = pytest.mark.filterwarnings("ignore:bounds are not declared:vfl.launch.run.warnings.PrivacyWarning")


@pytest.fixture(scope="module")
def table():
    """Return X (n, 4), exposures (n,), and labels (n,) of every estimator with and without them."""
    rng = np.random.default_rng(0)
    X, exposure = rng.uniform(-1, 1, (N, 4)), rng.uniform(LOW, HIGH, N)
    mean = np.exp(X @ [0.8, -0.5, 0.3, 0.0] + 0.5)

    def drawn(mean):
        totals = np.array([rng.gamma(2.0, 0.5, count).sum() for count in rng.poisson(mean)])
        return dict(zip(KINDS, (rng.poisson(mean).astype(float), rng.gamma(2.0, mean / 2), totals), strict=True))

    return X, exposure, drawn(mean), drawn(mean * exposure)


@pytest.mark.filterwarnings(
    "ignore::vfl.launch.run.warnings.PrivacyWarning", "ignore::sklearn.exceptions.ConvergenceWarning"
)
@parametrize_with_checks(
    [vfl.sklearn.VerticalPoissonRegressor(epsilon=None), vfl.sklearn.VerticalGammaRegressor(noise=vfl.SeededNoise(0))],
    expected_failed_checks=lambda made: {} if made.epsilon is None else OF_WEIGHTS,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_weights_repeat_records_in_sparse_columns(kind):
    check_sample_weight_equivalence_on_sparse_data(kind.__name__, kind(epsilon=None))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_privacy_it_is_scikit_learns_solution(kind, alpha, intercept, table):
    X, _, labels, _ = table
    ours = kind(epsilon=None, alpha=alpha, fit_intercept=intercept, partition=2).fit(X, labels[kind])
    theirs = PEERS[kind](alpha=alpha, fit_intercept=intercept, tol=1e-10, max_iter=10_000).fit(X, labels[kind])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-6)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-5)
    assert ours.score(X, labels[kind]) == pytest.approx(theirs.score(X, labels[kind]), abs=1e-6)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "partition",
    [None, vfl.FeaturePartition({"bank": ["a", "y", "exposure"], "insurer": ["b"]}, ("insurer", "claims"))],
    ids=["one", "names taken"],
)
def test_exposures_weigh_rates(form, partition, table):
    """Counts with exposures have scikit-learn's solution for rates with the exposures as weights."""
    X, exposure, _, labels = table
    y = labels[vfl.sklearn.VerticalPoissonRegressor]
    ours = vfl.sklearn.VerticalPoissonRegressor(epsilon=None, alpha=0.1 * exposure.mean(), partition=partition)
    ours.fit(form(X), y, exposure=exposure)
    theirs = PoissonRegressor(alpha=0.1, tol=1e-10, max_iter=10_000).fit(X, y / exposure, sample_weight=exposure)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-5)
    weighed = {"sample_weight": exposure}
    assert ours.score(X, y / exposure, **weighed) == pytest.approx(theirs.score(X, y / exposure, **weighed), abs=1e-6)


def test_a_private_fit_takes_nothing_from_the_records(table):
    """Its job is the same for other labels and other exposures, and its certificate says what it covers."""
    X, exposure, _, labels = table
    y = labels[vfl.sklearn.VerticalPoissonRegressor]
    model = vfl.sklearn.VerticalPoissonRegressor(
        epsilon=2.0, label_bounds=(0, 12), exposure_bounds=(LOW, HIGH), noise=vfl.SeededNoise(0), max_iter=2
    )
    fitted, other = clone(model).fit(X, y, exposure=exposure), clone(model).fit(X, 40 * y[::-1], exposure=9 * exposure)
    assert fitted.result_.job == other.result_.job
    assert fitted.certificate_.epsilon == other.certificate_.epsilon <= 2.0
    assert (fitted.predict(X) > 0).all()


def test_a_private_fit_explains_deviance(table):
    X, _, labels, _ = table
    y = labels[vfl.sklearn.VerticalPoissonRegressor]
    model = vfl.sklearn.VerticalPoissonRegressor(
        alpha=0.0, epsilon=20.0, label_bounds=(0, 12), bounds=(-1, 1), noise=vfl.SeededNoise(0)
    )
    assert model.fit(X, y).score(X, y) > 0.15  # without privacy 0.24


@pytest.mark.filterwarnings("ignore::vfl.launch.run.warnings.PrivacyWarning")
@pytest.mark.parametrize(
    ("options", "given", "error", "sentence"),
    [
        ({}, {"exposure": 1}, SpecificationError, r"declare exposure_bounds=\(lo, hi\)"),
        ({"exposure_bounds": (0, 1)}, {"exposure": 1}, SpecificationError, "above 0"),
        ({"exposure_bounds": (1, 0)}, {"exposure": 1}, SpecificationError, "are reversed"),
        ({"label_bounds": (-1, 1)}, {}, SpecificationError, "from 0 on"),
        ({"mean_bounds": (0, 1)}, {}, SpecificationError, "mean_bounds are two numbers above 0"),
        ({"epsilon": None}, {"exposure": 0}, DataError, "exposure holds numbers that are not above 0"),
        ({"epsilon": None}, {"y": -1}, DataError, "y holds numbers below 0"),
        ({"weight_bounds": (-1, 1)}, {"sample_weight": 1}, SpecificationError, "needs public limits, from 0 on"),
        ({"epsilon": None}, {"sample_weight": -1}, DataError, "sample_weight holds numbers below 0"),
        ({}, {"exposures": 1}, TypeError, "unexpected keyword"),
    ],
    ids=str,
)
def test_refusals(options, given, error, sentence, table):
    arrays = {name: np.full(N, float(value)) for name, value in given.items()}
    with pytest.raises(error, match=sentence):
        vfl.sklearn.VerticalPoissonRegressor(**options).fit(table[0], **({"y": np.ones(N)} | arrays))


def test_refusals_of_shapes_and_powers(table):
    X, exposure, labels, _ = table
    y = labels[vfl.sklearn.VerticalTweedieRegressor]
    with pytest.raises(ValueError, match="X has 500 records and exposure has 3"):
        vfl.sklearn.VerticalPoissonRegressor(epsilon=None).fit(X, y, exposure=exposure[:3])
    with pytest.raises(SpecificationError, match="power lies between 1"):
        vfl.sklearn.VerticalTweedieRegressor(epsilon=None, power=2.0).fit(X, y)
    named = vfl.FeaturePartition({"bank": ["a", "b", "c", "d"]}, ("bank", "y"), exposure="years")
    with pytest.raises(SpecificationError, match=r"'years': give it, fit\(X, y, exposure="):
        vfl.sklearn.VerticalPoissonRegressor(epsilon=None, partition=named).fit(X, y)
    fitted = vfl.sklearn.VerticalPoissonRegressor(epsilon=None, partition=named).fit(X, y, exposure=exposure)
    assert fitted.result_.job.partition.exposure == "years"


def test_labels_without_bounds_are_clamped_with_a_warning(table):
    with pytest.warns(vfl.PrivacyWarning, match=r"y is clamped to \(0\.0, 10\.0\)"):
        vfl.sklearn.VerticalPoissonRegressor(max_iter=1, noise=vfl.SeededNoise(0)).fit(table[0], np.ones(N))
