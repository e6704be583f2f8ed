"""DP-SGD: its rate without noise, and subgradients."""

from __future__ import annotations

import numpy as np

import vfl
from tests.solvers import setting


def test_without_noise_it_converges_at_its_rate() -> None:
    """Steps of 1/√t have error O(1/√t) (Nemirovski et al. 2009): 16 times as many passes divide it by 4 at least."""
    w = setting.optimum("squared")
    near, nearer = (
        setting.distance(setting.job(vfl.solvers.SGD(passes=passes, batch_size=30, seed=0), "squared"), w)
        for passes in (12, 192)
    )
    assert nearer < 5e-4
    assert nearer < near / 4


def test_one_batch_is_gradient_descent() -> None:
    options = {"passes": 40, "step_size": 1.0, "iterate": "last"}
    stochastic = vfl.solvers.SGD(batch_size=setting.N, sampling="disjoint", decay="constant", **options)
    first, second = (setting.drive(setting.job(solver))[1].w for solver in (stochastic, vfl.solvers.GD(**options)))
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-12)


def test_subgradients_at_a_kink() -> None:
    spec = setting.job(vfl.solvers.SGD(passes=100, step_size=3.0), "hinge")
    peer = setting.drive(setting.job(vfl.solvers.SCD(passes=100, batch_size=30, overlap=10), "hinge"))[1].w
    assert setting.distance(spec, peer) < 0.02
