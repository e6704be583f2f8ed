"""Counts of groups: their sensitivity, by every pair of neighbours, and what the margins make of any codes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from vfl.base.types import Adjacency
from vfl.errors import PrivacyError
from vfl.privacy.events import Gaussian
from vfl.queries import HELD_GROUPS, HELD_NORMS, HELD_POSITIONS, Groups, Tally
from vfl.queries.statistics import GRID, GroupCells, GroupScores, codes_of, is_near, strides

MARGINS = (-math.inf, -2.0, -0.5, 0.0, 0.3, 2.0, math.inf, math.nan)
LABELS = (-1.0, 1.0)
NORMS = (0.0, 1.0, math.inf, math.nan)
ODD_CODES = (-1.0, 0.5, 1e300, math.nan, math.inf)
STATISTICS: dict[str, Any] = {
    "cells": (GroupCells((3,), None), range(4)),
    "cells near the boundary": (GroupCells((2,), 0.4), range(3)),
    "everything is near": (GroupCells((2,), math.inf), range(3)),
    "two columns": (GroupCells((2, 3), 0.4), range(12)),
    "scores": (GroupScores(3, np.array([-1.0, 0.0, 0.2, 3.0])), range(4)),
}


@pytest.mark.parametrize("case", STATISTICS.values(), ids=STATISTICS)
def test_replacing_one_record_moves_the_counts_by_their_sensitivity_and_no_more(case: Any) -> None:
    """Every record against every other, in each position; the largest move is the sensitivity itself."""
    statistic, codes = case
    others = [np.array([0.1, -4.0, 2.0]), np.array([-1.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0]), np.ones(3)]
    largest = 0.0
    for position in (0, 2, 3):
        sums = []
        for record in itertools.product(MARGINS, LABELS, (*codes, *ODD_CODES), NORMS):
            margins, labels, groups, norms = (
                np.insert(column, position, cell) for column, cell in zip(others, record, strict=True)
            )
            vectors = {HELD_GROUPS: groups, HELD_NORMS: norms, HELD_POSITIONS: np.arange(float(len(groups)))}
            kept = [vectors[name] for name in statistic.needs]
            of_all = statistic(margins, labels, *kept)
            assert of_all.dtype == np.int64
            assert of_all.shape == (statistic.dimension,)
            sums.append(of_all)
        distinct = np.unique(np.array(sums), axis=0).astype(np.float64) * statistic.grid
        squares = ((distinct[:, None, :] - distinct[None, :, :]) ** 2).sum(axis=2)
        largest = max(largest, math.sqrt(float(squares.max())))
    assert largest <= statistic.sensitivity
    assert largest >= statistic.sensitivity * (1 - 1e-6)


def test_one_column_has_the_sensitivity_of_a_histogram() -> None:
    assert GroupCells((5,), 0.3).sensitivity == pytest.approx(math.sqrt(2.0))
    assert GroupCells((5, 2, 2), None).sensitivity == pytest.approx(math.sqrt(6.0))
    with pytest.raises(PrivacyError, match="too small for the sensitivity"):
        Tally(GroupCells((2,), None), Gaussian(Adjacency.REPLACE_ONE, 1.4142, 1.0, 8))


def test_the_counts_are_the_documented_ones() -> None:
    rng = np.random.default_rng(0)
    n = 500
    v, y = rng.normal(size=n), rng.choice([-1.0, 1.0], n)
    first, second, squares = rng.integers(0, 3, n), rng.integers(0, 4, n), rng.uniform(0.5, 2.0, n)
    sizes = (2, 3)  # the last code of each is in no group
    codes = sum(s * c for s, c in zip(strides(sizes), (first, second), strict=True)).astype(float)
    assert [found.tolist() for found in codes_of(codes, sizes)] == [first.tolist(), second.tolist()]
    found = GroupCells(sizes, 0.4)(v, y, codes, squares) * GRID
    expected = []
    for own, size in ((first, 2), (second, 3)):
        for group, label, prediction, near in itertools.product(range(size), (0, 1), (0, 1), (0, 1)):
            close = abs(v) <= 0.4 * np.sqrt(squares)
            expected.append(((own == group) & ((y > 0) == label) & ((v > 0) == prediction) & (close == near)).sum())
    assert found.tolist() == expected
    plain = GroupCells(sizes, None)(v, y, codes) * GRID
    assert plain.tolist() == found.reshape(-1, 2).sum(axis=1).tolist()
    edges = np.array([-0.5, 0.0, 1.0])
    of_scores = GroupScores(2, edges)(v, y, first.astype(float), np.arange(float(n))).reshape(2, 2, 2, 4) * GRID
    for half, group, label in itertools.product((0, 1), (0, 1), (0, 1)):
        chosen = (np.arange(n) % 2 == half) & (first == group) & ((y > 0) == label)
        above = [(v[chosen] > edge).sum() for edge in edges]
        assert of_scores[half, group, label][::-1].cumsum()[:-1][::-1].tolist() == above
    assert of_scores.sum() == (first < 2).sum()


def test_a_record_is_near_unless_no_model_within_the_distance_predicts_otherwise() -> None:
    rng = np.random.default_rng(1)
    x, w, d = rng.normal(size=(2000, 3)), np.array([1.0, -0.5, 0.2]), 0.3
    near = is_near(x @ w, (x**2).sum(axis=1), d)
    assert 0.1 < near.mean() < 0.9
    for _ in range(200):
        step = rng.normal(size=3)
        other = w + d * step / np.linalg.norm(step)
        flipped = (x @ w > 0) != (x @ other > 0)
        assert not flipped[~near].any()
    worst = w - d * x / np.linalg.norm(x, axis=1, keepdims=True) * np.sign(x @ w)[:, None] * (1 + 1e-6)
    assert ((x * worst).sum(axis=1) * (x @ w) <= 0)[near].all()  # and none is called near without reason


def test_groups_of_a_column_are_asked_for_once() -> None:
    Groups({"a": (("sex", 1),), "b": (("age", 3),)}).check()
    for columns in ({"a": (("sex", 1), ("sex", 3))}, {"a": (("sex", 0),)}):
        with pytest.raises(PrivacyError, match="different columns, and strides"):
            Groups(columns).check()
