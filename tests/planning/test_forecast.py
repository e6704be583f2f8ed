"""Forecasts: limits, directions, refusals, and agreement with runs on simulated data."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import vfl
from vfl import examples
from vfl.errors import SpecificationError
from vfl.job import file as jobfile
from vfl.planning.forecast import expected, forecast
from vfl.planning.quality import FLOORS, gain_of

NAMES = [f"x{j}" for j in range(8)]
PARTITION = vfl.FeaturePartition({"a": NAMES[:4], "b": NAMES[4:]}, label=("a", "y"))


def job(**options: Any) -> vfl.Job:
    given = {"bounds": {"*": (-1, 1)}, "privacy": vfl.Privacy(epsilon=1.0), "penalty": vfl.L2(1e-4)} | options
    return vfl.Job(partition=PARTITION, **given)


SQUARED = {"loss": "squared", "bounds": {"*": (-1, 1), "y": (0, 100)}}


def test_few_records_are_noise_and_many_reach_the_best_model() -> None:
    few, many = forecast(job(), 5), forecast(job(), 10**7)
    name = "auc"
    assert few.noise
    assert str(few).splitlines()[1].startswith("  NOISE: 5 records are too few at ε = 1")
    assert not many.noise
    assert many.measures[name].high == pytest.approx(many.signal[1] + FLOORS[name])
    assert few.measures[name].low <= few.measures[name].constant


def test_five_hundred_records_of_many_columns_are_noise_unless_their_signal_is_strong() -> None:
    names = [f"x{j}" for j in range(30)]
    partition = vfl.FeaturePartition({"a": names}, label=("a", "y"))
    wide = replace(job(), partition=partition, bounds=dict.fromkeys(names, (-1, 1)))
    assert forecast(wide, 500, signal=0.85).noise
    assert not forecast(wide, 500, signal=0.99).noise
    few = replace(wide, privacy=vfl.Privacy(epsilon=0.3))
    assert forecast(few, 500).noise
    assert "NOISE: 500 records" in str(vfl.plan(few, 500))


def test_the_bundled_example_is_not_told_to_be_noise() -> None:
    """Runs of it reach an AUC of 0.97 to 1.0."""
    example, _ = jobfile.read(examples.job_file("breast_cancer"))
    guessed = forecast(example, 569, signal=0.99)
    assert not forecast(example, 569).noise
    assert guessed.measures["auc"].low > 0.8
    assert guessed.measures["auc"].high > 0.99


def test_noise_along_correlated_columns_can_point_to_or_against_the_labels() -> None:
    faint = expected(job(privacy=vfl.Privacy(epsilon=0.1)), 30, 0.99, 0.5)["auc"]
    assert faint.low < 0.3
    assert faint.high > 0.9


def test_each_signal_has_ranges_of_its_own() -> None:
    found = forecast(job(), 3000, signal=(0.6, 0.9))
    assert list(found.by_signal) == [0.9, 0.6]
    weak, strong = found.by_signal[0.6]["auc"], found.by_signal[0.9]["auc"]
    assert (found.measures["auc"].low, found.measures["auc"].high) == (weak.low, strong.high)
    assert f"AUC {weak}, loss" in str(found)
    assert found.to_dict()["by_signal"][1]["measures"]["auc"]["low"] == weak.low


def test_an_area_grows_with_records_and_with_epsilon() -> None:
    by_records = [expected(job(), n, 0.75, 0.3)["auc"] for n in (100, 1000, 10**4, 10**5)]
    by_epsilon = [
        expected(job(privacy=vfl.Privacy(epsilon=epsilon)), 2000, 0.75, 0.3)["auc"] for epsilon in (0.1, 1.0, 10.0)
    ]
    for drawn in (by_records, by_epsilon):
        lows, highs = [r.low for r in drawn], [r.high for r in drawn]
        assert lows == sorted(lows)
        assert highs == sorted(highs)
        assert all(r.low <= r.high <= r.best + FLOORS["auc"] for r in drawn)


def test_records_needed_are_enough_and_no_fewer_are() -> None:
    strong, weak = forecast(job(), 1000, signal=(0.6, 0.9)).needed
    assert strong < weak
    assert forecast(job(), weak, signal=0.6).missed[0] <= 0.1
    assert forecast(job(), int(0.9 * weak), signal=0.6).missed[0] > 0.1
    assert forecast(job(privacy=None), 1000).needed[0] < forecast(job(), 1000).needed[0]


def test_a_rare_class_needs_more_records() -> None:
    half, rare = (forecast(job(), 1000, positives=q, signal=0.75) for q in (0.5, 0.02))
    assert half.needed[0] < rare.needed[0]
    assert half.missed[0] < rare.missed[0]


def test_the_gain_is_that_of_normal_scores() -> None:
    rng = np.random.default_rng(0)
    for auc, share in ((0.75, 0.5), (0.9, 0.1)):
        y = (rng.random(400_000) < share).astype(int)
        d = math.sqrt(2.0) * norm.ppf(auc)
        x = rng.normal(size=y.size) + d * y
        margins = d * (x - d / 2) + math.log(share / (1 - share))
        entropy, gain = gain_of(auc, share)
        assert roc_auc_score(y, margins) == pytest.approx(auc, abs=3e-3)
        assert log_loss(y, expit(margins)) == pytest.approx(entropy - gain, abs=3e-3)


def test_held_out_records_are_not_counted() -> None:
    whole, split = forecast(job(), 1000), forecast(job(evaluation=vfl.Evaluation(holdout=0.2)), 1000)
    assert split.n_records < whole.n_records == 1000
    assert split.missed[0] > whole.missed[0]


COUNTS = {"loss": "poisson", "bounds": {"*": (-1, 1), "y": (0, 20)}}


@pytest.mark.parametrize("options", [{"loss": "smoothed_hinge"}, SQUARED, COUNTS], ids=["hinge", "squared", "counts"])
def test_losses_without_a_range_that_holds_promise_no_quality(options: dict[str, Any]) -> None:
    """Of Poisson runs of 1,000 records at ε = 1, told to learn 94 %, none learnt more than 72 % of D²."""
    found = forecast(job(**options), 1000)
    assert (found.measures, found.missed, found.needed, found.signal, found.guessed) == ({}, (), (), None, ())
    made = vfl.plan(job(**options), 1000)
    for said in (str(found), str(made), made.outline(found)):
        assert "no quality is forecast for this loss" in said
        assert "%" not in said.split("expect")[-1].split("cost")[0]
        assert "learn" not in said


@pytest.mark.parametrize("solver", [vfl.solvers.GD(), vfl.solvers.GCD(), vfl.solvers.OutputPerturbation()])
def test_solvers_that_were_not_measured_promise_no_quality_and_still_warn_of_noise(solver: Any) -> None:
    spec = job(solver=solver, penalty=vfl.L2(0.1))
    many, few = forecast(spec, 10_000), forecast(spec, 30)
    assert (many.measures, many.needed, many.noise, few.noise) == ({}, (), False, True)
    assert str(many).splitlines()[1].strip().startswith("no quality is forecast")
    assert few.lines[0].startswith("NOISE: ")
    assert "learn" not in str(many)


def test_no_signal_is_guessed_for_a_loss_without_forecast() -> None:
    with pytest.raises(SpecificationError, match="hinge loss"):
        forecast(job(loss="hinge"), 3000, signal=0.8)


@pytest.mark.parametrize(
    ("guess", "message"),
    [
        ({"positives": 0.0}, "a share between 0 and 1, not 0.0"),
        ({"positives": "many"}, "positives must be a number"),
        ({"signal": 0.4}, "the AUC of the best model, above 0.5 and below 1"),
        ({"signal": (0.9, 0.6)}, "a pair of a weak and a strong one"),
        ({"signal": (0.6, 0.7, 0.8)}, "a pair of a weak and a strong one"),
        ({"signal": "strong"}, "signal must be a number"),
    ],
)
def test_guesses_that_are_refused(guess: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecificationError, match=message):
        forecast(job(), 1000, **guess)


def test_positives_need_classes() -> None:
    with pytest.raises(SpecificationError, match="squared loss has no classes"):
        forecast(job(**SQUARED), 1000, positives=0.5)


def test_plain_values_and_the_plan_hold_the_same_numbers() -> None:
    found = forecast(job(), 3000, positives=0.2, signal=0.8)
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["measures"]["auc"]["high"] == found.measures["auc"].high
    assert plain["guessed"] == []
    assert found.lines[0] in vfl.plan(job(), 3000).outline(found)
    assert re.search("guessed: positives and signal; .*--positives and --signal", str(vfl.plan(job(), 3000)))
    assert found._repr_html_().count("<p") == len(found.lines) + 1


@pytest.mark.parametrize(("n", "epsilon"), [(3000, 1.0), (20_000, 0.5)])
def test_a_run_lies_in_its_forecast(n: int, epsilon: float) -> None:
    """Fixed data and noise; docs/choosing.md has the coverage over twenty problems."""
    rng = np.random.default_rng(7)
    beta = np.array([2.0, -1.5, 1.0, 0, 0, 0.5, 0, 0])

    def drawn(size: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.uniform(-1, 1, (size, 8))
        return X, (rng.random(size) < expit(X @ beta - 1.0)).astype(int)

    (X, y), (fresh, truth) = drawn(n), drawn(50_000)
    best = LogisticRegression(C=np.inf).fit(fresh, truth).decision_function(fresh)
    spec = job(privacy=vfl.Privacy(epsilon=epsilon, noise=vfl.SeededNoise(1)))
    found = forecast(spec, n, positives=float(truth.mean()), signal=float(roc_auc_score(truth, best)))
    result = vfl.train(spec, {**dict(zip(NAMES, X.T, strict=True)), "y": y}, at="inprocess")
    margins = fresh @ result.coef_ + result.intercept_
    outcome = {"auc": roc_auc_score(truth, margins), "loss": log_loss(truth, expit(margins))}
    for name, value in outcome.items():
        assert found.measures[name].low - 0.002 <= value <= found.measures[name].high + 0.002


@pytest.mark.parametrize(("loss", "unit"), [("logistic", "log-odds"), ("squared", "standard deviations of the label")])
@pytest.mark.parametrize(("p", "correlation"), [(4, 0.0), (20, 0.5)])
def test_widths_of_intervals_are_about_those_of_a_run(loss: str, unit: str, p: int, correlation: float) -> None:
    rng, n, names = np.random.default_rng(0), 20_000, [f"x{j}" for j in range(p)]
    X = rng.normal(size=(n, p))
    for j in range(1, p):
        X[:, j] = correlation * X[:, j - 1] + np.sqrt(1.0 - correlation**2) * X[:, j]
    X = np.clip(X, -4.0, 4.0)
    v = X[:, :3] @ [0.5, -0.3, 0.2]
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-v)) if loss == "logistic" else v + rng.normal(size=n)
    bounds = dict.fromkeys(names, (-4.0, 4.0)) | ({} if loss == "logistic" else {"y": (-6.0, 6.0)})
    partition = vfl.FeaturePartition({"a": names}, label=("a", "y"))
    privacy = vfl.Privacy(epsilon=1.0)
    job = vfl.Job(partition=partition, loss=loss, bounds=bounds, privacy=privacy, intervals=True)
    expected = forecast(job, n, signal=0.66 if loss == "logistic" else 0.275)
    assert unit in str(expected)
    (width,) = expected.widths.values()
    rows = vfl.train(job, dict(zip(names, X.T, strict=True)) | {"y": y.astype(float)}).summary().rows[1:]
    shown = [row for row in rows if row.standard_error is not None]
    assert len(shown) >= p // 3
    halves = [(row.high - row.low) / 2 / (1.0 if loss == "logistic" else np.std(y)) for row in shown]
    assert 0.67 < (width.correlated if correlation else width.half) / np.median(halves) < 1.5
    assert width.half < width.correlated
    assert width.over > 1.0
    assert not forecast(replace(job, intervals=None), n).widths
