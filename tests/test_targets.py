from __future__ import annotations

import numpy as np
import pytest

from vfl.targets import Targets


@pytest.mark.parametrize(("exposure", "weights"), [(False, False), (True, False), (False, True), (True, True)])
def test_vectors_come_apart_in_their_order(exposure: bool, weights: bool) -> None:
    targets = Targets(exposure, weights)
    whole = np.arange(5.0 * targets.count)
    labels, offsets, found = targets.parts(whole)
    beside = [part for part in (offsets, found) if part is not None]
    assert (offsets is not None, found is not None) == (exposure, weights)
    assert np.array_equal(np.concatenate([labels, *beside]), whole)
    assert np.array_equal(targets.parts(whole.reshape(targets.count, 5)).labels, labels)
