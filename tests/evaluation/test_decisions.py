"""Decisions at thresholds: measured on held-out records, chosen by their cost, and kept by the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import confusion_matrix, precision_score

import vfl
from vfl.errors import SpecificationError
from vfl.job.file import decode

if TYPE_CHECKING:
    from pathlib import Path


def held(**options: Any) -> vfl.Evaluation:
    return vfl.Evaluation(**{"holdout": 0.5} | options)


DECISIONS = {
    "one threshold": held(thresholds=[0.3]),
    "several": held(thresholds=[0.1, 0.3, 0.9]),
    "least cost": held(cost={"missed": 8, "false_alarm": 1}),
    "least cost of two": held(cost={"missed": 8, "false_alarm": 1}, thresholds=[0.2, 0.8]),
}


def job(**given: Any) -> vfl.Job:
    partition = vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, ("bank", "y"))
    own = {"bounds": {"*": (-1, 1)}, "solver": vfl.SkGD(passes=5), "evaluation": held()}
    return vfl.Job(partition=partition, **own | given)


def decided(**given: Any) -> tuple[Any, Any, np.ndarray]:
    """Return a result, its data and True for the positive records."""
    rng = np.random.default_rng(9)
    frame = pd.DataFrame(rng.uniform(-1.0, 1.0, (1500, 2)), columns=["a", "b"])
    positive = rng.random(1500) < 1.0 / (1.0 + np.exp(1.0 - 3.0 * frame["a"]))
    own = job(**({"privacy": None} | given))
    data = frame.assign(y=positive.astype(int))
    return vfl.train(own, data, at=vfl.InProcess(num_cpus=1)), data, positive.to_numpy()


@pytest.mark.parametrize("how", DECISIONS)
@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_decisions_are_measured_at_the_threshold_that_the_model_keeps(
    how: str, epsilon: float | None, tmp_path: Path
) -> None:
    privacy = None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-6, noise=vfl.SeededNoise(3))
    result, data, positive = decided(privacy=privacy, evaluation=DECISIONS[how])
    found, split = result.findings["held out"], result.job.split
    apart = np.asarray(split.held_out(len(data)))
    thresholds = {"one threshold": (0.3,), "several": (0.5,), "least cost of two": (0.2, 0.8)}
    assert found.selected == {"least cost": 16, "least cost of two": 2}.get(how, 0)
    if how in thresholds:
        assert any(result.threshold == pytest.approx(t) for t in thresholds[how])
    flagged = np.asarray(result.predict(data)) == 1
    cells = confusion_matrix(positive[apart], flagged[apart]).ravel()
    assert [e.value for e in found.confusion.values()] == pytest.approx(cells, abs=1e-6 if epsilon is None else 60)
    if epsilon is None:
        assert found.measures["precision"].value == pytest.approx(precision_score(positive[apart], flagged[apart]))
        if "cost" in found.measures:
            assert found.measures["cost"].value == pytest.approx((8 * cells[2] + cells[1]) / apart.sum())
    again = vfl.Result.load(result.save(tmp_path / "run"))
    assert again.threshold == result.threshold
    assert again.findings == result.findings
    again.verify()
    exact = vfl.evaluate(again, data[apart])
    assert exact.measures["tpr"].value == pytest.approx(cells[3] / (cells[2] + cells[3]))
    other = vfl.evaluate(again, data[apart], threshold=0.9)
    assert other.measures["tpr"].value < exact.measures["tpr"].value


def test_the_threshold_of_least_cost_beats_the_default_one() -> None:
    """With a missed positive eight times as dear as a false alarm, the best threshold of a calibrated model is 1/9."""
    result, data, positive = decided(evaluation=DECISIONS["least cost"])

    def cost(threshold: float | None) -> float:
        flagged = np.asarray(result.predict(data, threshold=threshold)) == 1
        return float((8 * (positive & ~flagged) + (flagged & ~positive)).mean())

    assert 0.05 < result.threshold < 0.25
    assert cost(None) < 0.6 * cost(0.5)


@pytest.mark.parametrize(
    ("loss", "asked", "why"),
    [
        ("logistic", {"thresholds": [1.0]}, "between 0 and 1"),
        ("logistic", {"thresholds": []}, "1 to 32"),
        ("logistic", {"thresholds": [0.5, 0.5]}, "different"),
        ("logistic", {"thresholds": ["0.5"]}, "finite numbers"),
        ("logistic", {"cost": {"missed": 5}}, "false_alarm"),
        ("logistic", {"cost": {"missed": 5, "false_alarm": 0}}, "positive"),
        ("logistic", {"cost": {"missed": 5, "false_alarm": 1}, "score": "loss"}, "whole budget"),
        ("squared", {"cost": {"missed": 5, "false_alarm": 1}}, "two classes"),
        ("multinomial", {"thresholds": [0.5]}, "two classes"),
    ],
)
def test_thresholds_and_costs_that_cannot_be_are_refused(loss: str, asked: dict[str, Any], why: str) -> None:
    classes = ("x", "y", "z") if loss == "multinomial" else None
    given: dict[str, Any] = {"loss": loss, "classes": classes, "privacy": vfl.Privacy(epsilon=1.0, delta=1e-6)}
    with pytest.raises(SpecificationError, match=why):
        job(evaluation=held(**asked), **given)


def test_a_job_file_keeps_thresholds_and_costs() -> None:
    partition = vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, ("bank", "y"))
    own = vfl.Job(
        partition=partition,
        bounds={"*": (-1, 1)},
        evaluation=DECISIONS["least cost of two"],
        privacy=None,
    )
    assert decode(own.to_dict()) == own
    assert own.to_toml().count("missed = 8.0") == 1


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_decisions_at_every_threshold_that_the_job_names_are_printed(epsilon: float | None) -> None:
    privacy = None if epsilon is None else vfl.Privacy(epsilon=epsilon, delta=1e-6, noise=vfl.SeededNoise(3))
    result, data, positive = decided(privacy=privacy, evaluation=DECISIONS["several"])
    held = np.asarray(result.job.split.held_out(len(data)))
    found, shown = result.findings["held out"].measures, str(result.findings["held out"])
    for t in (0.1, 0.3, 0.9):
        flagged = np.asarray(result.predict(data, threshold=t)) == 1
        tpr = found[f"tpr at {t:g}"]
        assert f"tpr at {t:g}" in shown
        true = (flagged & positive)[held].sum() / positive[held].sum()
        assert tpr.value == pytest.approx(true, abs=1e-9 if epsilon is None else 0.2)
