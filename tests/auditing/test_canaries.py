"""Simulated data sets differ in the canaries alone, and canaries share as many public batches as possible."""

from __future__ import annotations

import numpy as np
import pytest

import vfl
from tests.auditing.test_audit import job
from tests.auditing.test_solvers import KINDS
from vfl.apps.auditing.bounds import Claim
from vfl.apps.auditing.canaries import candidates, group_size, meeting, tables
from vfl.base.types import Adjacency
from vfl.privacy.events import BoundedRange, Gaussian, PoissonSubsampledGaussian

ONE = Adjacency.REPLACE_ONE


@pytest.mark.parametrize("canary", list(candidates(4)), ids=lambda canary: canary.name)
def test_the_data_sets_differ_in_the_canaries_alone_and_within_the_bounds(canary) -> None:
    spec = job(columns=KINDS, bounds={"a0": (2.0, 3.0)})
    first, second = tables(spec, canary, np.array([1, 4]), 6, None)
    different = {i for i in range(6) if any(first[c][i] != second[c][i] for c in first)}
    assert different <= {1, 4}
    assert all(first[c][1] == first[c][4] for c in first)
    assert all(2.0 <= value <= 3.0 for value in first["a0"])
    assert all(0.0 <= value <= 9.0 for value in first["b0"])
    assert set(first["a2"]) <= {"red", "green", "blue"}


def test_public_rows_stay_except_for_the_canaries() -> None:
    rows = {name: np.linspace(-1, 1, 5).tolist() for name in ("a0", "a1", "a2", "b0")} | {"y": [0, 1, 0, 1, 0]}
    first, second = tables(job(), next(candidates(4)), np.array([0]), 5, rows)
    assert all(first[name][1:] == second[name][1:] == list(rows[name])[1:] for name in rows)


def test_canaries_meet_in_as_many_batches_as_possible() -> None:
    members = [np.array([1, 0, 1, 1, 0, 0.0]), np.array([0, 1, 0, 0, 1, 1.0]), np.array([0, 0, 1, 1, 1, 0.0])]
    assert set(meeting(members, np.arange(6), 2)) == {2, 3}
    assert meeting([], np.arange(3, 6), 2).tolist() == [3, 4]


def test_the_group_is_as_large_as_guesses_need() -> None:
    small = Claim(((Gaussian(ONE, 0.1, 1.0, 1), 1),), 1e-5)
    assert group_size(small, 100) == 28
    assert group_size(small, 5) == 5
    assert group_size(Claim(((PoissonSubsampledGaussian(ONE, 1.0, 1.0, 0.1), 1),), 1e-5), 100) == 1
    selections = Claim(((BoundedRange(ONE, 1.0), 4),), 1e-5)
    assert selections.accuracy(group_size(selections, 100)) <= 0.93


def test_every_candidate_has_a_name_of_its_own() -> None:
    names = [canary.name for canary in candidates(4)]
    assert len(set(names)) == len(names)
    assert isinstance(job(), vfl.Job)
