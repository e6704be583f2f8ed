"""DP-SVRG: the optimum without noise despite sampling, and its releases."""

from __future__ import annotations

import numpy as np
import pytest

import vfl
from tests.solvers import setting
from vfl.errors import SpecificationError
from vfl.planning import plan as make_plan
from vfl.privacy.geometry import Clip


@pytest.mark.parametrize("sampling", ["poisson", "disjoint"])
@pytest.mark.parametrize("loss", ["squared", "logistic", "smoothed_hinge"])
def test_without_noise_it_reaches_the_optimum(loss: str, sampling: str) -> None:
    solver = vfl.solvers.SVRG(sampling=sampling, batch_size=75, passes=70, step_size=1.0)
    assert setting.distance(setting.job(solver, loss), setting.optimum(loss)) < 1e-6


def test_plain_steps_on_the_same_batches_do_not_reach_it() -> None:
    solver = vfl.solvers.SGD(sampling="poisson", batch_size=75, passes=40, decay="constant", iterate="last")
    assert setting.distance(setting.job(solver, "squared"), setting.optimum("squared")) > 1e-3


def test_an_intercept_is_found_too() -> None:
    first, second = (
        setting.drive(setting.job(solver, "squared", intercept=True))[1].w
        for solver in (vfl.solvers.SVRG(), vfl.SkGD())
    )
    assert abs(first - second).max() < 1e-6


def test_no_release_is_of_zeros() -> None:
    """At the snapshot all differences are 0, so a pass takes a step before its first batch."""
    made, _ = setting.drive(setting.job(vfl.solvers.SVRG(passes=3, batch_size=100, sampling="disjoint"), "squared"))
    assert all(np.abs(np.concatenate(record.released)).max() > 1e-9 for record in made if record.kind == "Backward")


def test_a_pass_releases_a_snapshot_and_its_batches() -> None:
    """Each kind of release has its own Δ and about the same share of the budget."""
    spec = setting.job(vfl.solvers.SVRG(passes=3, batch_size=100, sampling="disjoint", clip=1.0), epsilon=2.0)
    ((snapshot, first), (step, second)) = make_plan(spec, setting.N).releases
    assert first == second == 3
    assert snapshot.sensitivity == Clip(1.0, 4).sensitivity
    assert step.sensitivity == pytest.approx(Clip((1 / 3) ** 0.5, 4).sensitivity)
    assert snapshot.sensitivity / snapshot.sigma == pytest.approx(step.sensitivity / step.sigma)


def test_a_loss_with_a_kink_is_refused() -> None:
    with pytest.raises(SpecificationError, match="bounded second derivative"):
        make_plan(setting.job(vfl.solvers.SVRG(), "hinge"), setting.N)
