from __future__ import annotations

import numpy as np
import pytest

from vfl.base.problem import Targets, apart, beside, weighed


@pytest.mark.parametrize("exposure", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_vectors_come_apart_in_their_order(exposure: bool, weights: bool) -> None:
    targets = Targets(exposure, weights)
    whole = np.arange(5.0 * targets.count)
    labels, *others = targets.parts(whole)
    assert [vector is not None for vector in others] == [exposure, weights, False]
    assert np.array_equal(np.concatenate([labels, *(vector for vector in others if vector is not None)]), whole)
    assert np.array_equal(targets.parts(whole.reshape(targets.count, 5)).labels, labels)
    assert targets.measured == Targets(exposure)


def test_weights_multiply_every_value_of_a_record() -> None:
    r, weights = np.array([1.0, -2.0, np.nan, 4.0, 5.0, np.inf]), np.array([0.5, 1.0, 0.0])
    assert weighed(r, weights).tolist() == [0.5, -2.0, 0.0, 2.0, 5.0, 0.0]
    assert weighed(r[:2], weights[:2]).tolist() == [0.5, -2.0]
    assert weighed(r, None) is r
    assert weighed(np.zeros(0), np.zeros(0)).shape == (0,)


def test_a_visit_gets_labels_and_weights() -> None:
    y, s = np.array([1.0, -1.0]), np.array([0.5, 0.0])
    assert apart(beside(y, None), 2)[1] is None
    labels, weights = apart(beside(y, s), 2)
    assert labels.tolist() == y.tolist()
    assert weights is not None
    assert weights.tolist() == s.tolist()
