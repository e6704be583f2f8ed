"""The log-likelihood ratio of each kind of release, against densities of SciPy, and shifts in units of the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from vfl.apps.auditing.bounds import CERTAIN, allowed, log_ratio, moved
from vfl.apps.auditing.rehearsal import Release
from vfl.base.types import Adjacency
from vfl.errors import PrivacyError
from vfl.privacy.events import BoundedRange, Gaussian, Laplace, PoissonSubsampledGaussian

ONE = Adjacency.REPLACE_ONE
S0, S1, U, ABSENT = (np.array(v) for v in ([1.0, 2.0], [1.5, 0.0], [1.2, 0.9], [0.5, 0.5]))


def released(event, value=U, absent=None, *, selection: bool = False, exact=(S0, S1)) -> Release:
    return Release("", "", event, value, exact, exact[0], absent, selection=selection)


def test_a_gaussian_release() -> None:
    event = Gaussian(ONE, 3.0, 1.5, 2)
    expected = norm.logpdf(U, S1, 1.5).sum() - norm.logpdf(U, S0, 1.5).sum()
    assert log_ratio([released(event)] * 2) == pytest.approx(2 * expected)
    assert moved(released(event)) == pytest.approx(math.hypot(0.5, 2.0) / 1.5)
    assert allowed(event) == 2.0


def test_a_sampled_release() -> None:
    event = PoissonSubsampledGaussian(ONE, 3.0, 1.5, 0.3)

    def density(s: np.ndarray) -> float:
        return 0.7 * norm.pdf(U, ABSENT, 1.5).prod() + 0.3 * norm.pdf(U, s, 1.5).prod()

    assert log_ratio([released(event, absent=ABSENT)]) == pytest.approx(math.log(density(S1) / density(S0)))


def test_a_selection() -> None:
    scores = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 0.5])
    one = released(BoundedRange(ONE, 1.0), np.array([2.0]), selection=True, exact=scores)
    first, second = (np.exp(s)[2] / np.exp(s).sum() for s in scores)
    assert log_ratio([one]) == pytest.approx(math.log(second / first))
    assert moved(one) == pytest.approx((1.0 + 1.5) / 2)


def test_a_release_without_noise_tells_all() -> None:
    assert log_ratio([released(None, S1)]) == CERTAIN
    assert log_ratio([released(None, S0)]) == -CERTAIN
    assert moved(released(None)) == math.inf
    assert moved(released(None, exact=(S0, S0))) == 0.0


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(PrivacyError, match="Laplace"):
        allowed(Laplace(ONE, 1.0, 1.0))
