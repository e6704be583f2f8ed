"""Problems that are held out: apart from the others, within their declared bounds, and measured at the minimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vfl
from tests.benchmarks import held_out

EVERY = held_out.CHOSEN | held_out.HELD_OUT


def test_no_problem_is_in_both_sets():
    assert len({recipe.seed for recipe in EVERY.values()}) == len(held_out.CHOSEN) + len(held_out.HELD_OUT)
    assert len(held_out.HELD_OUT) == 10


@pytest.mark.parametrize("name", EVERY)
def test_records_keep_their_bounds_and_the_label_varies(name):
    case = held_out.made(name)
    for c, (low, high) in case.job.bounds.items():
        values = np.asarray(case.table[c].to_numpy(), float)
        assert low <= values.min() < values.max() <= high
    assert case.n == EVERY[name].n


@pytest.mark.parametrize("name", ["normal, huber", "normal, poisson", "parallel, squared", "parallel, logistic"])
def test_a_run_without_privacy_has_no_excess(name):
    case = held_out.made(name)
    excess, best = held_out.judged(case)
    exact = vfl.train(replace(case.job, privacy=None, solver=vfl.SkGD()), case.table, at="inprocess")
    assert abs(excess(exact.w)) < 1e-5 * best
    (row,) = held_out.measured(name, [1.0], [1, 2], {"passes": 3})
    assert row["mean"] > 1e-4
    assert row["messages"] < 20
