"""Seeded runs keep their results: coefficients are compared with those recorded (`python -m tests.solvers.seeded`)."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.solvers.seeded import RECORDED, cases


@pytest.mark.parametrize("name", cases())
@pytest.mark.filterwarnings("ignore::vfl.PrivacyWarning")
def test_coefficients_are_those_recorded(name: str) -> None:
    """At rtol 1e-6: the last bits may differ between machines, whose libraries sum in another order."""
    np.testing.assert_allclose(cases()[name](), json.loads(RECORDED.read_text())[name], rtol=1e-6, atol=1e-12)
