"""The number of rounds that a plan states is the number that its run makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Round
from vfl.planning import Plan

N = 600
OPTIONS: dict[str, dict[str, Any]] = {
    "classes, held out": {"evaluation": vfl.Evaluation(holdout=0.25)},
    "classes, without intercept": {"intercept": False},
    "numbers, held out": {
        "loss": "squared",
        "bounds": {"*": (-1, 1), "y": (0, 1)},
        "evaluation": vfl.Evaluation(holdout=0.25),
    },
    "a cap per coordinate": {"solver": vfl.SkGD(passes=3, clip="coordinate")},
    "class balance": {
        "privacy": vfl.Privacy(epsilon=2.0),
        "evaluation": vfl.Evaluation(holdout=None, class_balance=0.1),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_run_makes_the_planned_rounds(name: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (N, 4))
    table = {f"x{j}": X[:, j] for j in range(4)} | {"y": (X[:, 0] > 0).astype(int)}
    partition = vfl.FeaturePartition({"a": ["x0", "x1"], "b": ["x2", "x3"]}, label=("a", "y"))
    given = {"bounds": {"*": (-1, 1)}, "privacy": vfl.Privacy(epsilon=2.0), "penalty": vfl.L2(1e-3)} | OPTIONS[name]
    seen: list[object] = []
    vfl.train(vfl.Job(partition=partition, **given), table, at="inprocess", watch=seen.append)
    (plan,) = (event for event in seen if isinstance(event, Plan))
    assert sum(isinstance(event, Round) for event in seen) == plan.messages
