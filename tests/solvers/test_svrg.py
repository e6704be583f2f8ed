"""DP-SVRG: the optimum without noise although it samples, and an audit."""

from __future__ import annotations

import pytest

import vfl
from tests.solvers import setting
from vfl.errors import SpecificationError
from vfl.planning import plan as make_plan


@pytest.mark.parametrize("sampling", ["poisson", "disjoint"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "smoothed_hinge"])
def test_without_noise_it_reaches_the_optimum(loss: str, sampling: str) -> None:
    solver = vfl.SVRG(sampling=sampling, batch_size=30, passes=60)
    assert setting.distance(setting.job(solver, loss), setting.optimum(loss)) < 1e-6


def test_plain_steps_on_the_same_batches_do_not() -> None:
    solver = vfl.SGD(sampling="poisson", batch_size=30, passes=60, decay="constant", iterate="last")
    assert setting.distance(setting.job(solver, "squared"), setting.optimum("squared")) > 1e-3


def test_an_intercept_is_found_too() -> None:
    first, second = (
        setting.drive(setting.job(solver, "squared", intercept=True))[1].w for solver in (vfl.SVRG(), vfl.SkGD())
    )
    assert abs(first - second).max() < 1e-6


def test_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two rows of the canary have differences of one sign, so the audit sees the snapshots alone: half of μ²."""
    spec = setting.loud(vfl.SVRG(sampling="disjoint", passes=4, batch_size=4, clip=1e-3, step_size=1e-3))
    bound, claimed = setting.audit(spec)
    assert 2.0 < claimed < 4.0
    assert 0.3 * claimed < bound <= claimed
    setting.halve_the_noise(monkeypatch)
    assert setting.audit(spec)[0] > claimed


def test_a_kink_is_refused() -> None:
    with pytest.raises(SpecificationError, match="bounded second derivative"):
        make_plan(setting.job(vfl.SVRG(), "hinge"), setting.N)
