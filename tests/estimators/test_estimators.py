"""Estimators: scikit-learn's own checks, its solutions as peers, and the warnings and refusals of private runs."""

from __future__ import annotations

import math
import pickle
import time
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import vfl
from vfl.errors import (
    BudgetExceeded,
    DataError,
    LedgerError,
    PartitionError,
    PrivacyError,
    SpecificationError,
)
from vfl.launch.run import warnings as running
from vfl.privacy.ledger import Accounting, SqliteLedger
from vfl.privacy.ledger.composition import epsilon_of

REGRESSORS = (
    vfl.sklearn.VerticalLinearRegression,
    vfl.sklearn.VerticalRidge,
    vfl.sklearn.VerticalLasso,
    vfl.sklearn.VerticalElasticNet,
)
ALL = (vfl.sklearn.VerticalLogisticRegression, *REGRESSORS)

# Most tests use the default bounds; other tests check their warning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:bounds are not declared:vfl.launch.run.warnings.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore:classes='from data':vfl.launch.run.warnings.PrivacyWarning"),
]
counting = pytest.mark.filterwarnings("error:private run")

NOISY_CLASS = "asks for one class on ten records: noise may decide for the other"
TWO_FITS = "compares two fits on the same data to 1e-2 or better: honest noise differs between them"
EQUIVALENCE = tuple(f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse"))
OTHER_N = "compares fits of two numbers of records, which is public: noise and default δ differ"
ALL_ZERO = "asks for an error that one record's weight decides, which would reveal it"
OF_WEIGHTS = dict.fromkeys(EQUIVALENCE, OTHER_N) | {"check_all_zero_sample_weights_error": ALL_ZERO}
"""Checks of weights that a private fit does not pass, with the reasons."""
EXPECTED_FAILURES = dict.fromkeys(
    (
        "check_fit_idempotent",
        "check_supervised_y_2d",
        "check_classifier_data_not_an_array",
        "check_regressor_data_not_an_array",
        "check_regressors_int",
    ),
    TWO_FITS,
) | {"check_classifiers_one_label_sample_weights": NOISY_CLASS}


@pytest.fixture(autouse=True)
def total(monkeypatch):
    """Count the fits of one test instead of those of the session."""
    fresh = running.RunningTotal()
    monkeypatch.setattr(running, "of_this_process", fresh)
    return fresh


def features(n=400, p=4, seed=0):
    """Return X with about one value in ten outside [−1, 1]."""
    return np.random.default_rng(seed).normal(scale=0.6, size=(n, p))


def classes(X, names=(0, 1), seed=1):
    margins = 3.0 * X[:, 0] - 2.0 * X[:, 1] + 0.4
    return np.array(names)[(np.random.default_rng(seed).random(len(X)) < 1 / (1 + np.exp(-margins))).astype(int)]


def numbers(X, seed=1):
    """Return y with values outside [−2, 3]."""
    return 0.5 + 2.0 * X[:, 0] - X[:, 1] + np.random.default_rng(seed).normal(scale=0.5, size=len(X))


# scikit-learn's own checks


def expected_failures(estimator):
    two_fits = EXPECTED_FAILURES if estimator.epsilon is not None and estimator.noise is None else {}
    return two_fits if estimator.epsilon is None else two_fits | OF_WEIGHTS


@pytest.mark.filterwarnings(
    "ignore::vfl.launch.run.warnings.PrivacyWarning", "ignore::sklearn.exceptions.ConvergenceWarning"
)
@parametrize_with_checks(
    [  # every kind, and every kind of noise for the classifier and for a regressor: regressors share their code
        *(kind() for kind in ALL[:2] if kind is not vfl.sklearn.VerticalLogisticRegression),
        vfl.sklearn.VerticalLogisticRegression(classes="from data"),
        vfl.sklearn.VerticalLogisticRegression(classes="from data", noise=vfl.SeededNoise(0)),
        *(kind(noise=vfl.SeededNoise(0)) for kind in (vfl.sklearn.VerticalRidge, vfl.sklearn.VerticalLasso)),
        vfl.sklearn.VerticalLogisticRegression(epsilon=None),
        vfl.sklearn.VerticalElasticNet(epsilon=None),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("sparsely", [False, True])
def test_weights_repeat_records_of_least_squares(sparsely):
    """The check of scikit-learn has 30 coefficients of 15 records, so several best models; here there is one."""
    X, s = features(40), np.random.default_rng(2).integers(0, 4, 40)
    y, form = numbers(X), sparse.csr_array if sparsely else np.asarray
    weighted = vfl.sklearn.VerticalLinearRegression(epsilon=None).fit(form(X), y, sample_weight=s)
    repeated = vfl.sklearn.VerticalLinearRegression(epsilon=None).fit(form(X.repeat(s, axis=0)), y.repeat(s))
    np.testing.assert_allclose(weighted.predict(form(X)), repeated.predict(form(X)), rtol=1e-6, atol=1e-8)


def test_large_class_weights_hold_under_noise():
    X = np.random.default_rng(0).normal(size=(50, 2))
    y = np.arange(50) % 2
    options = {"classes": (0, 1), "bounds": (-4, 4), "class_weight": {0: 1000.0, 1: 0.0001}}
    model = vfl.sklearn.VerticalLogisticRegression(epsilon=1.0, noise=vfl.SeededNoise(0), **options).fit(X, y)
    assert np.mean(model.predict(X) == 0) > 0.87


# Peers


PEERS = [
    (vfl.sklearn.VerticalLogisticRegression, {"C": 0.3}, lambda: LogisticRegression(C=0.3, tol=1e-10, max_iter=1000)),
    (
        vfl.sklearn.VerticalLogisticRegression,
        {"C": 0.3, "l1_ratio": 0.4},
        lambda: LogisticRegression(C=0.3, l1_ratio=0.4, solver="saga", tol=1e-10, max_iter=20_000, random_state=0),
    ),
    (
        vfl.sklearn.VerticalLogisticRegression,
        {"C": math.inf},
        lambda: LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000),
    ),
    (vfl.sklearn.VerticalLinearRegression, {}, LinearRegression),
    (vfl.sklearn.VerticalRidge, {"alpha": 30.0}, lambda: Ridge(alpha=30.0)),
    (vfl.sklearn.VerticalLasso, {"alpha": 0.05}, lambda: Lasso(alpha=0.05, tol=1e-10)),
    (
        vfl.sklearn.VerticalElasticNet,
        {"alpha": 0.1, "l1_ratio": 0.3},
        lambda: ElasticNet(alpha=0.1, l1_ratio=0.3, tol=1e-10),
    ),
]


@pytest.mark.parametrize(("kind", "parameters", "peer"), PEERS, ids=[f"{k.__name__}-{p}" for k, p, _ in PEERS])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("form", ["as they are", "clamped", "sparse"])
def test_without_privacy_it_is_scikit_learns_solution(kind, parameters, peer, form, intercept):
    """On X and y unchanged in any units, and on X and y clamped to declared bounds."""
    X = features() * ([1.0] * 4 if form == "clamped" else [1.0, 5.0, 0.3, 1.0])
    regression = kind is not vfl.sklearn.VerticalLogisticRegression
    y = numbers(X) if regression else classes(X, ("no", "yes"))
    declared = {}
    if form == "clamped":
        declared = {"bounds": (-1, 1), **({"label_bounds": (-2, 3)} if regression else {})}
    ours = kind(epsilon=None, fit_intercept=intercept, **parameters, **declared)
    ours.fit(sparse.csr_matrix(X) if form == "sparse" else X, y)
    seen = np.clip(X, -1, 1) if declared else X
    theirs = peer().set_params(fit_intercept=intercept)
    theirs.fit(seen, np.clip(y, -2, 3) if regression and declared else y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    assert np.shape(ours.coef_) == np.shape(theirs.coef_)
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_) or not intercept
    np.testing.assert_allclose(ours.score(X, y), theirs.score(seen, y), atol=1e-5)
    if not regression:
        assert ours.classes_.tolist() == theirs.classes_.tolist()
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(seen), atol=1e-5)


@pytest.mark.parametrize(  # every pair of two of the three
    ("kind", "split", "make"),
    [
        ((vfl.sklearn.VerticalLogisticRegression, vfl.sklearn.VerticalRidge)[(k + m) % 2], split, make)
        for k, split in enumerate(["one", "two", "label party", "label apart"])
        for m, make in enumerate([sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
    ],
)
def test_sparse_columns_stay_sparse_at_every_owner(kind, split, make):
    """The fit equals that of the dense matrix at the same parties, with predictions from either form."""
    X = features() * (np.random.default_rng(5).random((400, 4)) < 0.3)
    partition = {
        "one": None,
        "two": 2,
        "label party": vfl.FeaturePartition({"bank": ["x2", "x0"], "telco": ["x3", "x1"]}, label=("telco", "y")),
        "label apart": vfl.FeaturePartition(
            {"bank": ["x2", "x0", "x3", "x1"], "registry": []}, label=("registry", "y")
        ),
    }[split]
    declared = {"label_bounds": (-2, 3)} if kind is vfl.sklearn.VerticalRidge else {}
    y = numbers(X) if declared else classes(X, ("no", "yes"))
    model = kind(epsilon=None, partition=partition, bounds=(-1, 1), **declared)
    thin, full = clone(model).fit(make(X), y), clone(model).fit(X, y)
    job = thin.result_.job
    assert job.partition.sparse == tuple(q for q in job.partition.parties if job.partition.columns(q))
    np.testing.assert_allclose(thin.coef_, full.coef_, atol=1e-6)
    for fitted in (thin, full):
        assert np.array_equal(fitted.predict(make(X)), fitted.predict(X))
    named = {} if declared else {"classes": ("no", "yes")}
    private = clone(model).set_params(epsilon=1.0, noise=vfl.SeededNoise(0), **named).fit(make(X), y)
    assert private.certificate_.epsilon <= 1.0
    assert np.array_equal(private.predict(make(X)), private.predict(X))


def test_sparse_bounds_must_contain_zero():
    X = sparse.csr_array(features())
    with pytest.raises(SpecificationError, match=r"'party0' has bounds \[1, 2\]"):
        vfl.sklearn.VerticalLogisticRegression(bounds=(1, 2)).fit(X, classes(X.toarray()))


def test_declared_bounds_scale_the_penalised_features():
    X = features() * [1.0, 5.0, 0.2, 40.0] + [0.0, 3.0, 7.0, -10.0]
    bounds = np.array([[-1, 1], [0, 8], [6.9, 7.2], [-50, 30]], dtype=float)
    ours = vfl.sklearn.VerticalRidge(epsilon=None, alpha=5.0, bounds=bounds, label_bounds=(-2, 3)).fit(
        X, numbers(X / 40)
    )
    middle, half = bounds.mean(axis=1), np.ptp(bounds, axis=1) / 2
    scaled = (np.clip(X, *bounds.T) - middle) / half
    theirs = Ridge(alpha=5.0).fit(scaled, np.clip(numbers(X / 40), -2, 3))
    np.testing.assert_allclose(ours.coef_, theirs.coef_ / half, atol=1e-6)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_ - theirs.coef_ @ (middle / half), atol=1e-5)


@pytest.mark.parametrize(
    "hurry", [{"solver": vfl.SkGD(passes=2)}, {"max_iter": 2}, {"max_iter": 2, "tol": 1e-5}], ids=str
)
def test_too_few_passes_without_privacy_are_reported(hurry):
    X = features()
    X[:, 1] = X[:, 0] + 0.05 * X[:, 1]
    hurried = vfl.sklearn.VerticalLinearRegression(epsilon=None, **hurry)
    with pytest.warns(ConvergenceWarning, match="max_iter") as caught:
        hurried.fit(X, numbers(X))
    assert caught[0].filename == __file__
    assert hurried.n_iter_ == 2


@pytest.mark.parametrize("kind", ALL)
def test_without_privacy_a_fit_stops_at_a_convergence(kind):
    X = features()
    y = classes(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        rough, fine, limited = (
            kind(epsilon=None, **options).fit(X, y) for options in ({"tol": 1e-3}, {}, {"max_iter": 250})
        )
    assert 1 <= rough.n_iter_ <= fine.n_iter_ < 100
    assert rough.n_iter_ < fine.n_iter_ or (fine.coef_ == 0).all()
    assert fine.n_iter_ == limited.n_iter_
    assert rough.coef_ == pytest.approx(fine.coef_, abs=0.02)


def test_a_private_fit_makes_its_given_passes_and_refuses_a_tolerance():
    X = features()
    constant = np.zeros_like(X)
    for data in (X, constant):
        assert (
            vfl.sklearn.VerticalRidge(max_iter=7, label_bounds=(-1, 1), noise=vfl.SeededNoise(0))
            .fit(data, X[:, 0])
            .n_iter_
            == 7
        )
    with pytest.raises(PrivacyError, match=r"tol makes.*depend on data"):
        vfl.sklearn.VerticalRidge(tol=1e-3, label_bounds=(-1, 1)).fit(X, X[:, 0])


# Privacy: guarantee, accounting and warnings


def mu_of(epsilon, delta):
    """Solve δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) for μ."""
    return brentq(lambda mu: profile(epsilon, mu) - delta, 1e-3, 50.0, xtol=1e-14)


def profile(epsilon, mu):
    return norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize("kind", ALL)
def test_the_certificate_states_the_guarantee_and_its_limits(kind):
    X = features(n=200)
    declared = {"classes": (0, 1)} if kind is vfl.sklearn.VerticalLogisticRegression else {"label_bounds": (-2, 3)}
    model = kind(epsilon=0.5, **declared).fit(X, classes(X))
    certificate = model.certificate_
    assert certificate.private
    assert 0.49 < certificate.epsilon <= 0.5
    assert certificate.delta == 1 / 200**2
    assert certificate.noise == "CryptographicNoise"
    assert any("before this fit" in flag for flag in certificate.flags)
    assert model.result_.certificate is certificate


def test_random_state_orders_blocks_and_never_seeds_noise():
    X = features()
    y = classes(X)
    seeded = [
        vfl.sklearn.VerticalLogisticRegression(random_state=s, noise=vfl.SeededNoise(0)).fit(X, y).coef_
        for s in (1, 1, 2)
    ]
    assert np.array_equal(seeded[0], seeded[1])
    assert not np.array_equal(seeded[0], seeded[2])
    first = vfl.sklearn.VerticalLogisticRegression(random_state=42).fit(X, y)
    with pytest.warns(vfl.PrivacyWarning):
        second = vfl.sklearn.VerticalLogisticRegression(random_state=42).fit(X, y)
    assert not np.array_equal(first.coef_, second.coef_)


def test_only_none_trains_without_privacy():
    X = features()
    model = vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(X, classes(X))
    assert not model.certificate_.private
    assert model.certificate_.epsilon == math.inf
    for epsilon in (math.inf, 0, -1, math.nan, False):
        with pytest.raises(SpecificationError, match="epsilon"):
            vfl.sklearn.VerticalLogisticRegression(epsilon=epsilon).fit(X, classes(X))
    seeded = vfl.sklearn.VerticalLogisticRegression(noise=vfl.SeededNoise(0)).fit(X, classes(X))
    assert not seeded.certificate_.private


def test_a_grid_search_warns_of_the_epsilon_of_all_its_fits():
    n = 200
    X = features(n)
    search = GridSearchCV(
        vfl.sklearn.VerticalLogisticRegression(bounds=(-1, 1), classes=(0, 1)), {"C": [0.01, 0.1, 1.0, 10.0]}, cv=5
    )
    with pytest.warns(vfl.PrivacyWarning) as caught:
        search.fit(X, classes(X))
    assert len(caught) == 4  # of 21 fits: at 2, 4, 8 and 16
    fold, δ = mu_of(1.0, 1 / 160**2), 1 / 160**2
    together = brentq(lambda e: profile(e, math.sqrt(16) * fold) - δ, 1.0, 50.0)
    assert "private run 16 " in str(caught[-1].message)
    assert f"(ε = {together:.4g}, δ = {δ:.3g})" in str(caught[-1].message)
    assert str(caught[-1].message).endswith("(next warning at run 32)")
    total = epsilon_of(Accounting.GDP, running.of_this_process._units, 1 / n**2)  # all 21 are counted
    whole = mu_of(1.0, 1 / n**2)
    all_of_them = brentq(lambda e: profile(e, math.sqrt(20 * fold**2 + whole**2)) - 1 / n**2, 1.0, 50.0)
    assert total == pytest.approx(all_of_them, rel=1e-6)


@pytest.mark.filterwarnings("ignore:private run")
def test_a_grid_search_over_penalties():
    X = features(200)
    model = vfl.sklearn.VerticalLogisticRegression(bounds=(-1, 1), classes=(0, 1))
    penalties = [
        vfl.L1(0.001),
        vfl.L2(0.01),
        vfl.ElasticNet(0.01, 0.5),
        vfl.penalties.Box(-1, 1),
        vfl.penalties.NoPenalty(),
    ]
    search = GridSearchCV(model, {"penalty": penalties}, cv=2).fit(X, classes(X))
    assert search.best_params_["penalty"] in penalties
    assert search.best_estimator_.result_.job.penalty == search.best_params_["penalty"]
    by_name = vfl.sklearn.VerticalRidge(alpha=20.0, epsilon=None).fit(X, numbers(X)).coef_
    assert np.array_equal(
        vfl.sklearn.VerticalRidge(penalty=vfl.L2(0.1), epsilon=None).fit(X, numbers(X)).coef_, by_name
    )
    with pytest.raises(SpecificationError, match="L2 needs strength"):
        clone(model).set_params(penalty="l2").fit(X, classes(X))


def test_the_warning_names_the_line_that_called_fit():
    X = features()
    vfl.sklearn.VerticalLogisticRegression().fit(X, classes(X))
    with pytest.warns(vfl.PrivacyWarning, match="ledger=") as caught:
        vfl.sklearn.VerticalLogisticRegression().fit(X, classes(X))
    assert caught[0].filename == __file__


@counting
def test_fits_without_privacy_do_not_count():
    X = features()
    for parameters in ({"epsilon": None}, {"noise": vfl.SeededNoise(0)}, {}):
        vfl.sklearn.VerticalLogisticRegression(**parameters).fit(X, classes(X))


@counting
def test_the_warning_as_an_error_comes_before_any_release(monkeypatch):
    X = features()
    vfl.sklearn.VerticalLogisticRegression().fit(X, classes(X))
    answered = []
    monkeypatch.setattr("parties.party.Party.answer", lambda *query: answered.append(query))
    for _ in range(2):  # a refused fit is not counted
        with pytest.raises(vfl.PrivacyWarning, match="private run 2 "):
            vfl.sklearn.VerticalLogisticRegression().fit(X, classes(X))
    assert answered == []


@counting
def test_a_ledger_bounds_all_fits_and_silences_the_warning(tmp_path, monkeypatch):
    X = features()
    path = tmp_path / "book.db"
    delta = 1 / len(X) ** 2
    SqliteLedger(path).set_cap("credit", epsilon=1.0, delta=delta)
    monkeypatch.chdir(tmp_path)
    model = vfl.sklearn.VerticalLogisticRegression(
        epsilon=0.4, delta=delta, ledger="book.db", dataset="credit", classes=(0, 1)
    )
    assert math.sqrt(5) < mu_of(1.0, delta) / mu_of(0.4, delta) < math.sqrt(6)  # room for five fits
    for _ in range(5):
        fitted = clone(model).fit(X, classes(X))
    assert fitted.certificate_.ledger["head"] == SqliteLedger(path).head().hash
    assert "credit" in fitted.certificate_.scope
    with pytest.raises(BudgetExceeded, match="credit"):
        clone(model).fit(X, classes(X))
    (balance,) = SqliteLedger(path).show()
    assert balance.spent <= 1.0


def test_a_missing_ledger_is_not_created(tmp_path):
    X = features()
    with pytest.raises(LedgerError, match="no ledger"):
        vfl.sklearn.VerticalLogisticRegression(ledger=str(tmp_path / "none.db"), dataset="d", classes=(0, 1)).fit(
            X, classes(X)
        )
    assert not list(tmp_path.iterdir())


# Declarations


def test_bounds_are_declared_and_never_taken_from_data():
    X = features()
    wild = X.copy()
    wild[X > 1] = 1e300
    wild[X < -1] = -5.0
    seeded = {"noise": vfl.SeededNoise(3)}
    tame = vfl.sklearn.VerticalLogisticRegression(**seeded).fit(np.clip(X, -1, 1), classes(X))
    loud = vfl.sklearn.VerticalLogisticRegression(**seeded).fit(wild, classes(X))
    assert np.array_equal(tame.coef_, loud.coef_)
    assert np.array_equal(tame.decision_function(np.clip(X, -1, 1)), loud.decision_function(wild))
    pair = vfl.sklearn.VerticalLogisticRegression(bounds=(-1, 1), **seeded).fit(X, classes(X))
    array = vfl.sklearn.VerticalLogisticRegression(bounds=np.tile([-1, 1], (4, 1)), **seeded).fit(X, classes(X))
    named = vfl.sklearn.VerticalLogisticRegression(bounds={f"x{j}": (-1, 1) for j in range(4)}, **seeded).fit(
        X, classes(X)
    )
    for same in (pair, array, named):
        assert np.array_equal(same.coef_, tame.coef_)


@pytest.mark.parametrize("kind", ALL)
def test_private_fits_require_bounds_whatever_the_data(kind):
    X = features()
    declared = {"classes": (0, 1)} if kind is vfl.sklearn.VerticalLogisticRegression else {"label_bounds": (0, 1)}
    for data in (X, np.clip(X, -0.5, 0.5)):  # a warning that depended on the data would reveal something of them
        with pytest.warns(vfl.PrivacyWarning, match="bounds are not declared") as caught:
            kind(noise=vfl.SeededNoise(0), **declared).fit(data, classes(X))
        assert [warning.filename for warning in caught] == [__file__]
    for silent in ({"bounds": (-1, 1)}, {"epsilon": None}, {"epsilon": None, "label_bounds": None}):
        if kind is vfl.sklearn.VerticalLogisticRegression:
            silent.pop("label_bounds", None)
        with warnings.catch_warnings():
            warnings.simplefilter("error", vfl.PrivacyWarning)
            kind(**{"noise": vfl.SeededNoise(0), **declared, **silent}).fit(X, classes(X))


def test_label_bounds_are_required_and_clamp():
    X = features()
    y = numbers(X)
    seeded = {"noise": vfl.SeededNoise(3)}
    with pytest.warns(vfl.PrivacyWarning, match="label_bounds") as caught:
        default = vfl.sklearn.VerticalRidge(**seeded).fit(X, y)
    assert caught[0].filename == __file__
    clamped = vfl.sklearn.VerticalRidge(label_bounds=[-1, 1], **seeded).fit(X, np.clip(y, -1, 1))
    assert np.array_equal(default.coef_, clamped.coef_)


@pytest.mark.parametrize("names", [("bad", "good"), (0, 1), (-1, 1), (3, 7), (1.0, 2.0), (False, True), ("1", "1.0")])
def test_classes_may_have_any_two_names(names):
    X = features()
    y = classes(X, names)
    model = vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(X, y)
    assert model.classes_.tolist() == list(names)
    assert model.score(X, y) > 0.75
    assert model.result_.predict(X).tolist() == model.predict(X).tolist()
    assert model.predict(X).dtype == y.dtype


def test_declared_classes_need_not_occur():
    X = features()
    one = np.full(len(X), "yes")
    model = vfl.sklearn.VerticalLogisticRegression(classes=("yes", "no")).fit(X, one)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.predict_proba(X).shape == (len(X), 2)
    with pytest.raises(DataError, match="only one class"):
        vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(X, one)
    with pytest.raises(DataError, match="not among the declared"):
        vfl.sklearn.VerticalLogisticRegression(classes=("no", "maybe")).fit(X, one)


def test_frames_keep_their_names():
    X = pd.DataFrame(features(), columns=["income", "age", "calls", "data"])
    y = classes(X.to_numpy())
    model = vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(X, y)
    assert model.feature_names_in_.tolist() == ["income", "age", "calls", "data"]
    assert model.result_.feature_names == ("income", "age", "calls", "data")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X.rename(columns={"age": "years"}))
    polars = vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(pl.from_pandas(X), y)
    assert np.array_equal(polars.coef_, model.coef_)
    nameless = vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(X.to_numpy(), y)
    assert nameless.result_.feature_names == ("x0", "x1", "x2", "x3")


def test_coefficients_keep_the_order_of_the_columns_at_every_partition():
    X = pd.DataFrame(features(), columns=["a", "b", "c", "y"])
    y = classes(X.to_numpy())
    alone = vfl.sklearn.VerticalLogisticRegression(epsilon=None).fit(X, y)
    partition = vfl.FeaturePartition({"bank": ["y", "b"], "telco": ["a"], "lab": ["c"]}, label=("lab", "default"))
    for split in (2, np.int64(4), partition):
        model = vfl.sklearn.VerticalLogisticRegression(epsilon=None, partition=split).fit(X, y)
        np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-6)
        np.testing.assert_allclose(model.decision_function(X), alone.decision_function(X), atol=1e-5)
        assert len(model.result_.job.partition.parties) == (3 if split is partition else split)
    ordered = X[["y", "b", "a", "c"]].to_numpy()
    by_position = vfl.sklearn.VerticalLogisticRegression(epsilon=None, partition=partition).fit(ordered, y)
    np.testing.assert_allclose(by_position.coef_, alone.coef_[:, [3, 1, 0, 2]], atol=1e-6)


PARTITION = vfl.FeaturePartition({"bank": ["a", "b"]}, label=("bank", "y"))
REFUSALS = [
    ({"partition": 5}, PartitionError, "cannot be split into 5"),
    ({"partition": 0}, PartitionError, "cannot be split into 0"),
    ({"partition": True}, PartitionError, "not True"),
    ({"partition": PARTITION}, PartitionError, "4 columns without names"),
    ({"bounds": (1, -1)}, SpecificationError, "reversed"),
    ({"bounds": (0, math.inf)}, SpecificationError, "not finite"),
    ({"bounds": [(0, 1), (0, 1)]}, SpecificationError, "pair for every column"),
    ({"bounds": "data"}, SpecificationError, "bounds are one pair"),
    ({"bounds": {"x0": (0, 1)}}, SpecificationError, "no bounds for column 'x1'"),
    ({"bounds": {"x0": (0, 1), "x9": (0, 1)}}, SpecificationError, "'x9'"),
    ({"at": "spark"}, SpecificationError, "unknown site"),
    ({"solver": vfl.SkGD}, SpecificationError, "vfl.SkGD"),
    ({"noise": 42}, PrivacyError, "random_state"),
    ({"delta": 2.0}, PrivacyError, "delta"),
    ({"C": 0.0}, SpecificationError, "C must be positive"),
    ({"max_iter": 0}, SpecificationError, "passes must be a whole number of at least 1"),
    ({"max_iter": 5, "solver": vfl.SkGD(passes=5)}, SpecificationError, "give only one"),
    ({"max_iter": 5, "solver": vfl.solvers.GCD()}, SpecificationError, "GCD makes no passes"),
    ({"tol": 1e-3, "solver": vfl.solvers.SGD()}, SpecificationError, "SGD has no stopping rule"),
    ({"tol": 2.0, "epsilon": None}, SpecificationError, "tol must be None or a number from 0 to 1"),
    ({"classes": (1, 1)}, SpecificationError, "two or more different labels"),
    ({"ledger": "book.db"}, SpecificationError, "go together"),
    ({"dataset": "credit"}, SpecificationError, "go together"),
    ({"epsilon": None, "ledger": "book.db"}, PrivacyError, "no ledger can count"),
]


@pytest.mark.parametrize(("parameters", "error", "said"), REFUSALS, ids=[str(p)[:50] for p, _, _ in REFUSALS])
def test_invalid_input_is_refused_with_a_remedy(parameters, error, said):
    X = features()
    with pytest.raises(error, match=said):
        vfl.sklearn.VerticalLogisticRegression(**parameters).fit(X, classes(X))


def test_owners_of_the_columns_as_a_mapping():
    X = features(100)
    named = {"telco": ["x1"], "bank": [f"x{j}" for j in range(X.shape[1]) if j != 1]}
    options = {"bounds": (-1, 1), "classes": (0, 1), "epsilon": None}
    found = vfl.sklearn.VerticalLogisticRegression(partition=named, **options).fit(
        pd.DataFrame(X).add_prefix("x"), classes(X)
    )
    partition = found.result_.job.partition
    assert (partition.parties, partition.label) == (("telco", "bank"), ("telco", "y"))
    alone = vfl.sklearn.VerticalLogisticRegression(**options).fit(X, classes(X))
    assert np.allclose(found.coef_, alone.coef_, atol=1e-4)
    with pytest.raises(PartitionError, match="no party owns column 'x1'"):
        vfl.sklearn.VerticalLogisticRegression(partition={"bank": named["bank"]}, **options).fit(
            pd.DataFrame(X).add_prefix("x"), classes(X)
        )
    with pytest.raises(PartitionError):
        vfl.sklearn.VerticalLogisticRegression(partition={}, **options).fit(X, classes(X))


@pytest.mark.parametrize("epsilon", [-1, 0, math.inf, math.nan])
def test_errors_name_the_estimators_own_parameter(epsilon):
    X = features(50)
    with pytest.raises(PrivacyError, match="epsilon=None trains without privacy"):
        vfl.sklearn.VerticalLogisticRegression(epsilon=epsilon, bounds=(-1, 1), classes=(0, 1)).fit(X, classes(X))


def test_a_frame_must_hold_exactly_the_partitions_columns():
    X = pd.DataFrame(features(), columns=["a", "b", "c", "d"])
    model = vfl.sklearn.VerticalLogisticRegression(partition=PARTITION)
    with pytest.raises(PartitionError, match="no party owns column 'c'"):
        model.fit(X, classes(X.to_numpy()))
    with pytest.raises(PartitionError, match="'b' of party 'bank' is not"):
        model.fit(X[["a", "d"]], classes(X.to_numpy()))


@pytest.mark.parametrize("kind", ALL)
def test_unknown_arguments_are_refused(kind):
    X = features()
    y = classes(X)
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        kind().fit(X, y, weights=np.ones(len(X)))


def test_numbers_are_no_classes():
    X = features()
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        vfl.sklearn.VerticalLogisticRegression().fit(X, X[:, 0])


# With other tools of scikit-learn


def test_pipelines_and_cross_validation():
    X = 5.0 + 3.0 * features(n=2000)
    y = classes((X - 5.0) / 3.0, ("no", "yes"))
    pipeline = make_pipeline(
        StandardScaler(), vfl.sklearn.VerticalLogisticRegression(epsilon=5.0, classes=("no", "yes"))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vfl.PrivacyWarning)
        assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.6
        pipeline.fit(X, y)
    assert any("pipeline" in flag for flag in pipeline[-1].certificate_.flags)
    with pytest.warns(vfl.PrivacyWarning, match="weight_bounds are not declared"):
        pipeline.fit(X, y, verticallogisticregression__sample_weight=np.ones(len(X)))


@pytest.mark.parametrize("kind", ALL)
def test_parameters_clones_and_pickles(kind, tmp_path):
    model = kind(partition=2, solver=vfl.SkGD(passes=3), noise=vfl.SeededNoise(1), random_state=5)
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert again.set_params(epsilon=3.0).epsilon == 3.0
    assert model.epsilon == 1.0
    X = features()
    if kind is not vfl.sklearn.VerticalLogisticRegression:
        model.set_params(label_bounds=(0, 1))
    model.fit(X, classes(X))
    assert model.n_iter_ == 3
    joblib.dump(model, tmp_path / "model.joblib")
    for loaded in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):  # noqa: S301
        assert np.array_equal(loaded.predict(X), model.predict(X))
        assert loaded.certificate_ == model.certificate_
        assert repr(loaded) == repr(model)


def test_a_fit_takes_a_fraction_of_a_second():
    X = features(n=10_000, p=10)
    y = classes(X)
    model = vfl.sklearn.VerticalLogisticRegression(noise=vfl.SeededNoise(0)).fit(X, y)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        model.fit(X, y)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1.0


@pytest.mark.slow
def test_joblib_workers_fit_with_a_shared_ledger(tmp_path):
    X = features()
    path = tmp_path / "book.db"
    SqliteLedger(path).set_cap("credit", epsilon=20.0, delta=1e-6)
    model = vfl.sklearn.VerticalLogisticRegression(ledger=str(path), dataset="credit", classes=("no", "yes"))
    scores = cross_val_score(model, X, classes(X, ("no", "yes")), cv=4, n_jobs=2)
    assert np.isfinite(scores).all()
    (balance,) = SqliteLedger(path).show()
    assert [run.status for run in balance.runs] == ["settled"] * 4


@pytest.mark.slow
def test_training_on_ray_gives_the_same_model(local_ray):
    X = features()
    model = vfl.sklearn.VerticalRidge(partition=2, label_bounds=(-2, 3), noise=vfl.SeededNoise(1))
    here = clone(model).fit(X, numbers(X))
    there = clone(model).set_params(at="ray").fit(X, numbers(X))
    assert np.array_equal(here.coef_, there.coef_)
    assert here.intercept_ == there.intercept_
