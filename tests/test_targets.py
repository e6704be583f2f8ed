from __future__ import annotations

import numpy as np
import pytest

from vfl.targets import Targets


@pytest.mark.parametrize("exposure", [False, True])
def test_vectors_come_apart_in_their_order(exposure: bool) -> None:
    targets = Targets(exposure)
    whole = np.arange(5.0 * targets.count)
    labels, offsets = targets.parts(whole)
    beside = [] if offsets is None else [offsets]
    assert (offsets is not None) == exposure
    assert np.array_equal(np.concatenate([labels, *beside]), whole)
    assert np.array_equal(targets.parts(whole.reshape(targets.count, 5)).labels, labels)
