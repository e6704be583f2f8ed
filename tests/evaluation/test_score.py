"""The one score of a trial: its sensitivity by exhaustive neighbours, its value, and its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

import vfl
from vfl.errors import SpecificationError
from vfl.evaluation.statistics import GRID, Lost, weight
from vfl.losses import loss_of
from vfl.planning import plan
from vfl.privacy.events import bare

MARGINS = np.array([-1e300, -5.0, -0.3, 0.0, 0.3, 5.0, 1e300, math.nan, math.inf])


def lost(measure):
    loss = loss_of("logistic" if measure in ("loss", "accuracy") else "squared")
    return Lost(loss, 1.0 if measure == "accuracy" else 2.0, measure, weight(1.0, 1.0))


@pytest.mark.parametrize("measure", ["loss", "accuracy", "mae", "mse"])
def test_one_record_moves_the_sum_by_at_most_its_sensitivity(measure):
    statistic = lost(measure)
    labels = (-1.0, 1.0) if measure in ("loss", "accuracy") else (-1.0, 0.0, 1.0)
    sums = [int(statistic(np.array([v]), np.array([y]))[0]) for v in MARGINS for y in labels]
    widest = (max(sums) - min(sums)) * GRID
    assert widest == pytest.approx(1.0)
    assert statistic.sensitivity == pytest.approx(1.0)
    assert widest <= statistic.sensitivity


def test_values_are_those_of_the_definitions():
    v, y = np.array([2.0, -1.0, 0.5]), np.array([1.0, 1.0, -1.0])
    steps = 1.0 / GRID
    assert lost("accuracy")(v, y)[0] / steps == 2
    expected = np.minimum(np.log1p(np.exp(-y * v)) / 2.0, 1.0).sum()
    assert lost("loss")(v, y)[0] / steps == pytest.approx(expected, abs=1e-5)
    t = np.minimum(abs(v - y) / 2.0, 1.0)
    assert lost("mae")(v, y)[0] / steps == pytest.approx(t.sum(), abs=1e-5)
    assert lost("mse")(v, y)[0] / steps == pytest.approx((t * t).sum(), abs=1e-5)
    assert lost("mse").unit == 4.0


def job(**changes):
    partition = vfl.FeaturePartition({"a": ["x"]}, label=("a", "y"))
    options = {"privacy": vfl.Privacy(epsilon=1.0, delta=1e-6), "holdout": 0.2, "bounds": {"x": (-1, 1)}}
    return vfl.Job(partition=partition, **options | changes)


def test_a_score_takes_the_whole_budget_of_the_measures():
    (event,) = [
        bare(event) for event, _ in plan(job(evaluation=vfl.Evaluation(score="loss")), 1000).releases
        if event.part == "held out"
    ]  # fmt: skip
    whole = vfl.plan(job(), 1000)
    first = next(bare(event) for event, _ in whole.releases if event.part == "held out")
    assert event.sensitivity / event.sigma > first.sensitivity / first.sigma


def test_a_job_without_a_score_has_its_old_digest():
    assert "score" not in str(job().to_dict())
    assert job(evaluation=vfl.Evaluation()).digest == job().digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation": {"score": "auc"}}, "unknown score 'auc'"),
        ({"evaluation": {"score": "mae"}}, "does not fit logistic loss"),
        ({"evaluation": {"score": "loss", "public": True}}, "leave score out"),
        ({"evaluation": {"score": "loss"}, "privacy": None}, "all measures are exact"),
    ],
)
def test_scores_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(SpecificationError, match=said):
        job(**changes | {"evaluation": vfl.Evaluation(**changes["evaluation"])})
