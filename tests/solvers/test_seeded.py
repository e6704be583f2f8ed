"""Seeded runs keep their results: coefficients are compared with those recorded (`python -m tests.solvers.seeded`)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.solvers.seeded import RECORDED, cases


@pytest.mark.parametrize("messages", ["passed", "encoded"])
@pytest.mark.parametrize("name", cases())
@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_coefficients_are_those_recorded(name: str, messages: str, request: pytest.FixtureRequest) -> None:
    """At rtol 1e-6: the last bits may differ between machines, whose libraries sum in another order.

    A party that shares the arrays of messages with the coordinator computes the same as one in another process.
    """
    if messages == "encoded":
        request.getfixturevalue("encoded")
    np.testing.assert_allclose(cases()[name](), json.loads(RECORDED.read_text())[name], rtol=1e-6, atol=1e-12)
