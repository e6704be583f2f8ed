"""Solvers on shares: the options that differ from those of trust='trusted'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import vfl
from tests.coordinator.shares import job
from vfl.secure.sharing import Sharing
from vfl.solvers.on_shares import BLOCK, STEPS

pytestmark = pytest.mark.usefixtures("encoded")

NAMED = {"q0": [["x0", "x2"], ["x4", "x6"]], "q1": [["x1", "x3", "x5", "x7"]]}
BLOCKS = vfl.FeaturePartition(
    {q: [name for block in cut for name in block] for q, cut in NAMED.items()}, label=("q1", "y"), blocks=NAMED
)


def planned(p: int = 8, **options: Any) -> vfl.Plan:
    return vfl.plan(job(p=p, **options), 1000)


def test_residuals_are_shared_less_often_than_with_single_columns_by_default():
    by_default, single = (planned(solver=vfl.SkGD(block_size=size, passes=4)) for size in (None, 1))
    assert by_default.solver.block_size == BLOCK
    assert isinstance(by_default.sharing, Sharing)
    # Four columns and the intercept at one party, four at the other.
    assert by_default.sharing.versions == 4 * (2 + 2)
    assert isinstance(single.sharing, Sharing)
    assert single.sharing.versions == 4 * 9
    assert by_default.epsilon == single.epsilon
    trusted = vfl.plan(replace(job(p=8, solver=vfl.SkGD(passes=4)), trust="trusted"), 1000)
    assert trusted.solver.block_size == 1


LONG = vfl.Privacy(epsilon=8.0, noise=vfl.SeededNoise(3))
"""A budget at which 1,000 records of 8 columns take joint steps."""


def test_joint_steps_are_the_default_where_the_public_rule_takes_them():
    found = planned(solver=vfl.SkGD(), privacy=LONG)
    assert found.solver.joint
    assert isinstance(found.sharing, Sharing)
    assert found.sharing.versions == STEPS  # a model per step, for blocks as wide as a party
    assert found.sharing.products is not None
    assert not found.job.shows_columns
    assert "products of columns are opened once" in str(found)
    trusted = replace(found.job, trust="trusted")
    assert not vfl.plan(trusted, 1000).solver.joint
    assert not vfl.plan(replace(found.job, privacy=replace(LONG, epsilon=0.5)), 1000).solver.joint


@pytest.mark.parametrize(
    "changes",
    [
        {"solver": vfl.SkGD(joint=False)},
        {"solver": vfl.SkGD(passes=80)},
        {"solver": vfl.SkGD(block_size=4)},
        {"solver": vfl.SkGD(sampling="cyclic")},
        {"solver": vfl.SkGD(step_size=0.5)},
        {"solver": vfl.solvers.CD()},
    ],
    ids=["refused", "passes", "blocks", "order", "step", "CD"],
)
def test_a_job_that_decides_its_steps_keeps_them(changes):
    found = planned(**{"privacy": LONG} | changes)
    assert not found.solver.joint
    assert found.sharing.products is None
    assert found.sharing.versions > STEPS


def test_joint_steps_that_are_asked_for():
    found = planned(solver=vfl.SkGD(joint=True, passes=50, block_size=4), privacy=LONG)
    assert found.solver.joint
    assert found.solver.block_size == 4
    assert found.sharing.versions == 50
    with pytest.raises(vfl.errors.SpecificationError, match="joint=True needs single columns"):
        planned(solver=vfl.SkGD(joint=True), privacy=LONG, partition=BLOCKS)


@pytest.mark.parametrize("solver", [vfl.SkGD(block_size=2, passes=4), vfl.solvers.CD(passes=4)])
def test_given_blocks_stay(solver):
    assert planned(solver=solver).solver.block_size == solver.block_size


def test_blocks_that_the_partition_names_stay():
    found = planned(solver=vfl.SkGD(passes=4), partition=BLOCKS)
    assert found.solver.block_size is None
    assert isinstance(found.sharing, Sharing)
