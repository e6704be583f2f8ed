"""The benchmark of fairness, on synthetic data: its bounds hold, in their order, and its table and figure are made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import vfl
from tests.benchmarks import fairness, problems
from vfl.measures.distance import ERROR
from vfl.planning import plan as make_plan


@pytest.fixture(scope="module")
def case():
    made = problems.synthetic("synthetic", 1.0, loss="logistic", n=3000, p=4)
    partition = vfl.FeaturePartition(
        {p: made.job.partition.columns(p) for p in made.job.partition.parties}, label=("b", "y"), groups={"a": ["sex"]}
    )
    sex = np.where(np.random.default_rng(0).random(3000) < 0.4, "f", "m")
    changed = {
        "columns": {"sex": vfl.Categorical(("f", "m"))},
        "evaluation": vfl.Evaluation(holdout=0.1, fairness=vfl.Fairness(group="sex")),
    }
    job = replace(made.job, partition=partition, **changed)
    return replace(made, job=job, table=made.table.append_column("sex", pa.array(sex)))


def test_a_place_holds_the_private_models(case, tmp_path):
    rng = np.random.default_rng(1)
    whole = fairness.scaled(case)
    for epsilon in (1.0, 10.0):
        found = fairness.place_of("synthetic", case, whole, "sex", ["f", "m"], epsilon, 0.3, case.n, 20, rng)
        assert found.beyond == 0
        assert found.count[0] <= found.shown[0] <= found.shown[1] <= found.count[1]
        assert found.released[0] < found.count[0]
        assert found.released[1] > found.count[1]
        assert found.thesis >= 0.99 * found.chernoff > 0.0
        assert len(list(fairness.said([found]))) == 2
    places = [replace(found, data=data, strength=0.1, epsilon=3.0) for data in fairness.DATA]
    pytest.importorskip("matplotlib")
    fairness.draw(places, tmp_path / "fairness.png")
    assert (tmp_path / "fairness.png").stat().st_size > 10_000


def test_the_other_bounds_are_bounds(case):
    R = np.random.default_rng(2).gamma(2.0, 1.0, 4000)
    for d in (1e-3, 0.1, 0.5, 3.0):
        assert fairness.chernoff(R, d) >= (d >= R).mean()
        assert fairness.chernoff(R, d) <= 1.0
    plan = make_plan(fairness.job_of(case, "sex", 1.0, 0.3), case.n)
    wide = fairness.textbook_distance(plan.problem, 1.0, plan.problem.delta, ERROR)
    assert wide > 2.0 * plan.solver.radius(plan.problem, ERROR)
