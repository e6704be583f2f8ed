"""Warnings of a process: the total ε of its private runs, and a δ that protects nobody."""

from __future__ import annotations

import json
import math
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.optimize import brentq

import vfl
from vfl.errors import SpecificationError
from vfl.launch.metrics import Metrics
from vfl.launch.run import warnings as running
from vfl.privacy.gaussian_dp import delta_of, mu_of
from vfl.privacy.ledger import SqliteLedger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N = 100
DELTA = 1 / N**2
PARTITION = vfl.FeaturePartition({"bank": ["x0"], "telco": ["x1"]}, label=("bank", "y"))
JOB = vfl.Job(partition=PARTITION, bounds={"*": (-1, 1)}, privacy=vfl.Privacy(epsilon=1.0), solver=vfl.SkGD(passes=2))
DRAFT = vfl.Job(partition=PARTITION, privacy=None, scaling="none")
COUNTED = pytest.mark.filterwarnings("error:private run")


def table(n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x0": rng.uniform(-1, 1, n), "x1": rng.uniform(-1, 1, n), "y": np.arange(n) % 2}


def train(job: vfl.Job = JOB, **options: Any) -> vfl.Result:
    return vfl.train(job, table(), at="inprocess", **options)


def fit() -> None:
    data = table()
    X = np.column_stack([data["x0"], data["x1"]])
    vfl.sklearn.VerticalLogisticRegression(bounds=(-1, 1), classes=(0, 1)).fit(X, data["y"])


RUNS: dict[str, Callable[[], object]] = {
    "train": train,
    "an estimator": fit,
    "bounds": lambda: vfl.releases.private_bounds(DRAFT, table(), epsilon=1.0, at="inprocess"),
}


@pytest.fixture(autouse=True)
def total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "of_this_process", running.RunningTotal())


@pytest.mark.parametrize("second", RUNS)
@pytest.mark.parametrize("first", ["train", "bounds"])
def test_the_second_private_run_warns_of_the_total(first: str, second: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", vfl.PrivacyWarning)
        RUNS[first]()
    with pytest.warns(vfl.PrivacyWarning, match="private run 2 ") as caught:
        RUNS[second]()
    assert [warning.filename for warning in caught] == [__file__]  # once, at the calling line
    # Both of ε = 1, so μ grows by √2; a plan may fall short of its budget by its last digits, classes by a hundredth.
    together = brentq(lambda e: delta_of(e, math.sqrt(2) * mu_of(1.0, DELTA)) - DELTA, 1.0, 9.0)
    said = float(str(caught[0].message).partition("(ε = ")[2].partition(",")[0])
    assert said == pytest.approx(together, rel=1e-2)


@COUNTED
def test_runs_that_are_counted_elsewhere_or_not_private_do_not_warn(tmp_path: Path) -> None:
    SqliteLedger(tmp_path / "book.db").set_cap("credit", epsilon=3.0, delta=DELTA)
    train(replace(JOB, dataset="credit"), ledger=tmp_path / "book.db")
    train(replace(JOB, privacy=None))
    train(replace(JOB, privacy=vfl.Privacy(epsilon=1.0, noise=vfl.SeededNoise(0))))
    train()


@COUNTED
def test_a_refused_run_is_not_counted(tmp_path: Path) -> None:
    train()
    for _ in range(2):
        with pytest.raises(vfl.PrivacyWarning, match="private run 2 "):
            train(output=tmp_path / "run")
        assert not (tmp_path / "run").exists()


LOOSE = replace(JOB, privacy=vfl.Privacy(epsilon=1.0, delta=0.05, noise=vfl.SeededNoise(0)))


def test_a_weak_delta_is_warned_of_once_where_no_plan_is_shown() -> None:
    with pytest.warns(vfl.PrivacyWarning, match="is not below 1/n = 0.01") as caught:
        train(LOOSE)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown: list[Any] = []
        train(LOOSE, watch=shown.append)
        train()
    assert any("is not below 1/n" in str(event) for event in shown if isinstance(event, vfl.Plan))


def test_estimators_warn_of_a_weak_delta() -> None:
    data = table()
    with pytest.warns(vfl.PrivacyWarning, match="is not below 1/n"):
        vfl.sklearn.VerticalLogisticRegression(
            bounds=(-1, 1), classes=(0, 1), delta=0.05, noise=vfl.SeededNoise(0)
        ).fit(np.column_stack([data["x0"], data["x1"]]), table()["y"])


def test_warnings_come_at_doublings_and_count_the_runs_between() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", vfl.PrivacyWarning)
        for _ in range(5):
            train()
    assert [str(w.message).split(" of this process")[0] for w in caught] == ["private run 2", "private run 4"]
    assert str(caught[1].message).endswith("(next warning at run 8)")


def test_an_epsilon_that_protects_nothing_is_warned_of() -> None:
    huge = replace(JOB, privacy=vfl.Privacy(epsilon=500.0, delta=1e-6, noise=vfl.SeededNoise(0)))
    with pytest.warns(vfl.PrivacyWarning, match="ε = 500 protects next to nothing"):
        train(huge)
    assert vfl.plan(JOB, N).warnings == ()


def test_a_run_that_can_learn_nothing_says_so_at_its_end(tmp_path: Path, call: Callable[..., Any]) -> None:
    """40 records at ε = .1 are trained, with a warning; 4,000 records are trained without one."""
    job = replace(JOB, privacy=vfl.Privacy(epsilon=0.1))
    for n, hopeless in ((40, True), (4000, False)):
        data = table(n)
        rows = zip(*data.values(), strict=True)
        text = "\n".join([",".join(data), *(",".join(map(str, row)) for row in rows)])
        (tmp_path / f"{n}.csv").write_text(text)
        (tmp_path / "job.toml").write_text(job.to_toml() + f'\n[simulation]\ntable = "{n}.csv"\n')
        run = ("run", str(tmp_path / "job.toml"), "--at", "inprocess", "--output")
        said = call(*run, str(tmp_path / str(n)))
        assert said.code == 0, said.err
        assert ("warning: NOISE: 40 records are too few" in said.err) is hopeless
        shown = json.loads(call(*run, str(tmp_path / f"{n}-json"), "--json").out)
        assert any("NOISE" in warning for warning in shown["warnings"]) is hopeless


def test_a_model_that_measures_worse_than_a_constant_is_named() -> None:
    """Labels that turn in the held-out records make the ranking worse than a coin."""
    job = replace(JOB, privacy=None, evaluation=vfl.Evaluation(holdout=0.3))
    assert job.split is not None
    data = table(2000)
    y = data["x0"] > 0
    turned = np.where(job.split.held_out(2000), ~y, y).astype(int)
    for labels, bad in ((turned, True), (y.astype(int), False)):
        result = vfl.train(job, data | {"y": labels}, at="inprocess")
        assert any("worse than a constant" in said for said in running.doubts(result)) is bad


@pytest.mark.parametrize(
    ("module", "extra", "needs"),
    [
        ("pandas", "frames", lambda result: result.to_sklearn()),
        ("onnx", "onnx", lambda result: result.to_onnx()),
        ("matplotlib.figure", "plot", lambda result: result.curves().plot()),
        ("pandas", "frames", lambda result: result.curves().frame()),
        ("prometheus_client", "federation", lambda _: Metrics("127.0.0.1:0", {}, {})),
    ],
)
def test_an_error_of_a_missing_package_names_its_extra(
    module: str, extra: str, needs: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    curved = replace(JOB, privacy=None, columns={"x0": vfl.Curve(bounds=(-1, 1))}, bounds={"x1": (-1, 1)})
    result = train(curved)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecificationError, match=rf"pip install 'vfl\[{extra}\]'"):
        needs(result)


def test_a_release_about_columns_keeps_the_flag_of_declarations_that_were_read() -> None:
    privacy = vfl.Privacy(epsilon=1.0, delta=DELTA, read_from_data="the names of the classes")
    found = vfl.releases.private_quantiles(replace(JOB, privacy=privacy), table(), epsilon=1.0, at="inprocess")
    assert "rests on the names of the classes, read from the records" in found.scope
