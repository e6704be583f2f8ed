"""Runs that lose parties: each attempt is a separate release with its own charge."""

from __future__ import annotations

from typing import Any

import pytest

import vfl
from tests.neighbours.harness import compare, train_in_memory
from tests.neighbours.losses import Loss
from tests.neighbours.setting import job, turned

WITHIN = 7
"""A seed under which the record is in the first secret batch."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(passes=2),
        vfl.SkGD(passes=4, block_size=1, clip="record", details=vfl.solvers.Details(reserve_passes=2)),
        vfl.SkGD(passes=8, details=vfl.solvers.Details(local_passes=2, reserve_passes=2), block_size=1, clip="record"),
        vfl.solvers.GCD(rounds=3),
        vfl.solvers.SGD(sampling="disjoint", batch_size=4, passes=1),
    ],
)
def test_a_lost_attempt_is_paid_for(solver: Any, moment: str) -> None:
    losses = [Loss("bank", number, moment) for number in range(2, 8)]
    found = compare(job(solver), *turned(), losses=losses)
    assert found.raised == (None, None)
    assert found.complaints == ()


def test_a_lost_attempt_at_a_sampled_step_draws_a_batch_of_its_own() -> None:
    """With a common batch, three attempts would move by a path μ² of 1.75, where one sample allows 0.583."""
    losses = [Loss("bank", number, times=2) for number in range(2, 12)]
    solver = vfl.solvers.SGD(sampling="poisson", batch_size=4, passes=1)
    found = compare(job(solver), *turned(), losses=losses, run=train_in_memory, seed=WITHIN)
    assert found.raised == (None, None)
    assert found.complaints == ()
