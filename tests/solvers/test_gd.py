"""DP-GD: the optimum without noise, and its charges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import vfl
from tests.solvers import setting
from vfl.errors import PrivacyError, SpecificationError
from vfl.planning import plan as make_plan


@pytest.mark.parametrize("loss", ["squared", "logistic", "smoothed_hinge"])
def test_without_noise_it_reaches_the_optimum(loss: str) -> None:
    assert setting.distance(setting.job(vfl.solvers.GD(), loss), setting.optimum(loss)) < 1e-6


def test_a_clip_that_binds_no_record_changes_nothing() -> None:
    free, wide = (setting.drive(setting.job(vfl.solvers.GD(clip=clip, passes=30)))[1].w for clip in (math.inf, 2.1))
    np.testing.assert_allclose(free, wide, rtol=0, atol=1e-6)


def test_l1_and_an_unpenalised_intercept_agree_with_coordinate_descent() -> None:
    first, second = (
        setting.drive(setting.job(solver, penalty=vfl.L1(0.02), intercept=True))[1].w
        for solver in (vfl.solvers.GD(passes=1200), vfl.SkGD())
    )
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)


def test_charges_equal_draws_and_fit_the_budget() -> None:
    spec = setting.job(vfl.solvers.GD(passes=7), epsilon=2.0)
    plan = make_plan(spec, setting.N)
    made, outcome = setting.drive(spec)
    assert [event for record in made for event in record.events] == [plan.releases[0][0]] * 7
    assert 1.999 < plan.epsilon <= 2.0
    assert outcome.statement.epsilon <= 2.0
    assert len([record for record in made if record.parties]) == plan.messages


@pytest.mark.parametrize(
    ("solver", "options", "error", "said"),
    [
        (vfl.solvers.GD(), {"loss": "hinge"}, SpecificationError, "bounded second derivative"),
        (vfl.solvers.GD(clip=math.inf), {"epsilon": 1.0}, PrivacyError, "bounds no record's influence"),
        (vfl.solvers.GD(), {"penalty": vfl.penalties.GroupLasso(0.1)}, SpecificationError, "name them"),
    ],
)
def test_refusals(solver: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make_plan(setting.job(solver, **options), setting.N)


def test_blocks_are_refused() -> None:
    blocks = {"bank": [["a0"], ["a1", "a2"]], "telco": [["b0"]]}
    partition = vfl.FeaturePartition({"bank": ["a0", "a1", "a2"], "telco": ["b0"]}, label=("telco", "y"), blocks=blocks)
    spec = vfl.Job(partition=partition, privacy=None, bounds=setting.BOUNDS, solver=vfl.solvers.GD())
    with pytest.raises(SpecificationError, match="has no blocks"):
        make_plan(spec, setting.N)


@pytest.mark.parametrize("bad", [{"passes": 0}, {"clip": -1.0}, {"step_size": math.inf}, {"iterate": "best"}])
def test_bad_options(bad: dict[str, Any]) -> None:
    with pytest.raises(SpecificationError, match="GD: "):
        vfl.solvers.GD(**bad)
