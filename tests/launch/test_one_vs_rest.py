"""Several classes: binary models under one budget, their labels, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.linear_model as peers
from sklearn.datasets import load_iris

import vfl
from vfl.crypto.alignment import Aligned
from vfl.errors import BudgetExceeded, DataError, SpecificationError
from vfl.launch.one_vs_rest import jobs_of, united
from vfl.planning import plan
from vfl.privacy.gaussian_dp import mu_of
from vfl.privacy.ledger import SqliteLedger

IRIS = load_iris()
CLASSES = tuple(str(name) for name in IRIS.target_names)
COLUMNS = ("a", "b", "c", "d")
TABLE = {c: IRIS.data[:, j] / 8.0 for j, c in enumerate(COLUMNS)} | {
    "kind": np.array([CLASSES[k] for k in IRIS.target])
}
N = 150
BOUNDS = dict.fromkeys(COLUMNS, (-1.0, 1.0))
PARTITION = vfl.FeaturePartition({"field": ["a", "b"], "lab": ["c", "d"]}, label=("lab", "kind"))


def job(**options: object) -> vfl.Job:
    given = {"penalty": vfl.L2(0.01), "privacy": None, "bounds": BOUNDS, "solver": vfl.SkGD(passes=400)}
    return vfl.Job(partition=PARTITION, **(given | options))


def test_models_and_predictions_are_the_peers() -> None:
    X = np.column_stack([TABLE[c] for c in COLUMNS])
    found = vfl.train_one_vs_rest(job(), TABLE, classes=CLASSES, n_records=N, at="inprocess")
    margins = []
    for name, result in zip(CLASSES, found.results, strict=True):
        peer = peers.LogisticRegression(C=1 / (0.01 * N), tol=1e-12, solver="newton-cholesky").fit(
            X, TABLE["kind"] == name
        )
        np.testing.assert_allclose(result.coef_, peer.coef_[0], atol=1e-6)
        margins.append(peer.decision_function(X))
        np.testing.assert_array_equal(result.predict(TABLE), result.decision_function(TABLE) > 0)
    np.testing.assert_array_equal(found.predict(TABLE), np.array(CLASSES)[np.argmax(margins, axis=0)])
    assert found.epsilon == math.inf


def test_the_budget_is_composed_exactly() -> None:
    privacy = vfl.Privacy(epsilon=2.0, delta=1e-6)
    jobs, epsilon = jobs_of(job(privacy=privacy, solver=vfl.SkGD(passes=5)), CLASSES, N)
    assert epsilon == pytest.approx(2.0, rel=1e-9)
    assert epsilon <= 2.0
    parts = [mu_of(each.privacy.epsilon, 1e-6) for each in jobs]
    assert math.hypot(*parts) == pytest.approx(mu_of(2.0, 1e-6))
    assert max(each.privacy.epsilon for each in jobs) > 2.0 / 3.0, "better than dividing ε"
    assert all(plan(each, N).epsilon <= each.privacy.epsilon for each in jobs)


def test_selections_are_composed_by_a_suitable_accountant() -> None:
    spec = job(privacy=vfl.Privacy(epsilon=2.0, delta=1e-6), solver=vfl.GCD(rounds=3))
    assert 1.0 < jobs_of(spec, CLASSES, N)[1] <= 2.0


def test_the_classes_hold_out_different_splits() -> None:
    """Each class may align the records anew, so one class may train on a record that another holds out."""
    spec = job(privacy=vfl.Privacy(epsilon=2.0, delta=1e-6), solver=vfl.SkGD(passes=2), holdout=0.5)
    plans = [plan(each, N) for each in jobs_of(spec, CLASSES, N)[0]]
    releases = united(plans)
    assert len({event.split for event, _ in releases}) == len(CLASSES)


def test_seeded_noise_differs_between_classes() -> None:
    privacy = vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(3))
    jobs, _ = jobs_of(job(privacy=privacy, solver=vfl.SkGD(passes=2)), CLASSES, N)
    assert len({each.privacy.noise for each in jobs}) == 3


def test_a_ledger_bounds_all_classes_together(tmp_path: object) -> None:
    path = str(tmp_path / "book.sqlite")  # type: ignore[operator]
    SqliteLedger(path).set_cap("iris", epsilon=1.0, delta=1e-6)
    spec = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-6), solver=vfl.SkGD(passes=2), dataset="iris")
    vfl.train_one_vs_rest(spec, TABLE, classes=CLASSES, n_records=N, at="inprocess", ledger=path)
    (balance,) = SqliteLedger(path).show()
    assert len(balance.runs) == 3
    with pytest.raises(BudgetExceeded, match="3 classes together ask for ε = 1"):
        vfl.train_one_vs_rest(spec, TABLE, classes=CLASSES, n_records=N, at="inprocess", ledger=path)


def test_data_that_differ_from_the_plan_are_refused() -> None:
    spec = job(privacy=vfl.Privacy(epsilon=1.0, delta=1e-6), solver=vfl.SkGD(passes=2))
    with pytest.raises(DataError, match="n_records"):
        vfl.train_one_vs_rest(spec, TABLE, classes=CLASSES, n_records=N + 1, at="inprocess")


def test_an_undeclared_label_is_an_error_at_its_owner() -> None:
    with pytest.raises(DataError, match="two declared classes"):
        vfl.train_one_vs_rest(job(), TABLE, classes=("setosa", "versicolor", "rose"), n_records=N, at="inprocess")


def test_job_files_keep_the_jobs_of_each_class(tmp_path: object) -> None:
    path = tmp_path / "job.toml"  # type: ignore[operator]
    (first, *_), _ = jobs_of(job(), CLASSES, N)
    path.write_text(first.to_toml(), encoding="utf-8")
    assert vfl.Job.from_toml(str(path))[0] == first


@pytest.mark.parametrize(
    ("classes", "options", "said"),
    [
        (("a", "b"), {}, "at least three different classes"),
        (("a", "b", "a"), {}, "at least three different classes"),
        (CLASSES, {"loss": "squared"}, "needs a classification loss"),
        (CLASSES, {"classes": ("a", "b")}, "and no classes in the job"),
    ],
)
def test_refusals(classes: tuple[str, ...], options: dict[str, object], said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        jobs_of(job(**options), classes, N)


def test_records_are_aligned_once_for_all_classes(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VFL_INDEX", str(tmp_path))
    ids = [f"i{k}" for k in range(N)]
    field = {c: TABLE[c] for c in "ab"} | {"id": ids}
    lab = {c: TABLE[c][::-1] for c in ("c", "d", "kind")} | {"id": ids[::-1]}
    spec, seen = job(id="id", solver=vfl.SkGD(passes=2)), []
    found = vfl.train_one_vs_rest(
        spec, {"field": field, "lab": lab}, classes=CLASSES, n_records=N, at=vfl.InProcess(cores=1), watch=seen.append
    )
    aligned = [event for event in seen if isinstance(event, Aligned)]
    assert [event.reused for event in aligned] == [False, True, True]
    assert len({event.alignment for event in aligned}) == 1
    assert not list(tmp_path.glob("*")), "the index is removed in the end"
    assert len(found.results) == 3
