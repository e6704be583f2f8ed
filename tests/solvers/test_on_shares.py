"""Solvers on shares: the options that differ from those of trust='trusted'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import vfl
from tests.coordinator.shares import job
from vfl.secure.sharing import Sharing
from vfl.solvers.on_shares import BLOCK


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
    trusted = vfl.plan(replace(job(p=8, solver=vfl.SkGD(passes=4)), trust="trusted", secure=None), 1000)
    assert trusted.solver.block_size == 1


@pytest.mark.parametrize("solver", [vfl.SkGD(block_size=2, passes=4), vfl.CD(passes=4)])
def test_given_blocks_stay(solver):
    assert planned(solver=solver).solver.block_size == solver.block_size


def test_blocks_that_the_partition_names_stay():
    given = job(p=8, solver=vfl.SkGD(passes=4))
    blocks = {"q0": [["x0", "x2"], ["x4", "x6"]], "q1": [["x1", "x3", "x5", "x7"]]}
    columns = {q: [name for block in cut for name in block] for q, cut in blocks.items()}
    partition = vfl.FeaturePartition(columns, label=("q1", "y"), blocks=blocks)
    found = vfl.plan(replace(given, partition=partition), 1000)
    assert found.solver.block_size is None
    assert isinstance(found.sharing, Sharing)
