"""The one score of a trial: its sensitivity by exhaustive neighbours, its value, and its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import mean_tweedie_deviance

import vfl
from vfl.base.losses import loss_of
from vfl.errors import SpecificationError
from vfl.planning import plan
from vfl.privacy.events import bare
from vfl.queries.statistics import GRID, Lost, weight

MARGINS = np.array([-1e300, -5.0, -0.3, 0.0, 0.3, 5.0, 1e300, math.nan, math.inf])


def lost(measure):
    loss = loss_of({"loss": "logistic", "accuracy": "logistic", "deviance": "poisson"}.get(measure, "squared"))
    return Lost(loss, 1.0 if measure == "accuracy" else 2.0, measure, weight(1.0, 1.0))


@pytest.mark.parametrize("measure", ["loss", "accuracy", "mae", "mse", "deviance"])
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


@pytest.mark.parametrize(("loss", "power"), [("poisson", 1.0), ("gamma", 2.0), ("tweedie", 1.5)])
def test_deviances_are_scikit_learns_and_clamped_one_by_one(loss, power):
    v, y = np.array([0.2, -0.4, 1.0, -30.0]), np.array([2.0, 1.0, 3.0, 5.0])
    statistic = Lost(loss_of(loss), 2.0, "deviance", weight(1.0, 1.0))
    each = [min(mean_tweedie_deviance([a], [m], power=power), 2.0) for a, m in zip(y, np.exp(v), strict=True)]
    assert each[-1] == statistic.unit == 2.0
    assert statistic(v, y)[0] * GRID * 2.0 == pytest.approx(sum(each), abs=1e-5)


def test_a_loss_without_a_deviance_has_no_sum_of_them():
    with pytest.raises(ValueError, match="squared loss has no deviance"):
        Lost(loss_of("squared"), 2.0, "deviance", weight(1.0, 1.0))(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize(("given", "cap"), [(3.0, 3.0), (None, 20.0)])
def test_the_cap_of_deviances_is_declared_or_follows_from_the_bounds(given, cap):
    counts = job(
        loss="poisson",
        bounds={"x": (-1, 1), "y": (0.0, 20.0)},
        evaluation=vfl.Evaluation(score="deviance", deviance_cap=given),
    )
    (evaluation,) = plan(counts, 1000).evaluations
    assert "noise of the deviance" in evaluation.explain()
    assert f"; clamped at {cap:g}" in evaluation.explain()


def job(**changes):
    partition = vfl.FeaturePartition({"a": ["x"]}, label=("a", "y"))
    options = {
        "privacy": vfl.Privacy(epsilon=1.0, delta=1e-6),
        "evaluation": vfl.Evaluation(holdout=0.2),
        "bounds": {"x": (-1, 1)},
    }
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
        ({"evaluation": {"score": "deviance"}}, "does not fit logistic loss: give 'loss' or 'accuracy'"),
        (
            {"evaluation": {"score": "deviance"}, "loss": "squared", "bounds": {"*": (-1, 1)}},
            "does not fit squared loss: give 'mae' or 'mse'",
        ),
        ({"evaluation": {"score": "loss", "public": True}}, "leave score out"),
        ({"evaluation": {"score": "loss"}, "privacy": None}, "leave score out"),
    ],
)
def test_scores_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(SpecificationError, match=said):
        job(**changes | {"evaluation": vfl.Evaluation(**changes["evaluation"])})
