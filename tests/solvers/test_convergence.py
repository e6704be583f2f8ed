"""Stopping without privacy: at the optimum, for every sampling, not before, and never in a private run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vfl
from coordinator.rounds import Round
from tests.solvers.setting import COLUMNS, drive, job, optimum
from vfl.errors import PrivacyError, SpecificationError
from vfl.launch.train import train
from vfl.planning import plan
from vfl.solvers.iterates.convergence import Convergence

SOLVERS = [
    vfl.SkGD(),
    vfl.SkGD(details=vfl.solvers.Details(message="block")),
    vfl.SkGD(block_size=3),
    vfl.SkGD(sampling="uniform", seed=3),
    vfl.SkGD(sampling="importance", details=vfl.solvers.Details(parallel=2)),
    vfl.SkGD(sampling="nice", details=vfl.solvers.Details(tau=2), block_size=1),
    vfl.SkGD(sampling="full", step_size=3.0),
    vfl.SkGD(step_size=0.2),
    vfl.SkGD(details=vfl.solvers.Details(iterate="average", outer_rounds=10)),
    vfl.SkGD(details=vfl.solvers.Details(iterate="tail")),
    vfl.solvers.CD(sampling="cyclic"),
    vfl.solvers.GCD(),
    vfl.solvers.GCD(step_size=0.5),
    vfl.solvers.GD(step_size=3.0),
]


def given(solver: Any) -> str:
    return f"{solver.name}-" + "-".join(
        str(getattr(solver, f)) for f in solver.__dataclass_fields__ if getattr(solver, f) != getattr(type(solver)(), f)
    )


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("solver", SOLVERS, ids=given)
def test_it_stops_at_the_optimum_and_before_the_last_pass(solver: Any, loss: str) -> None:
    spec = job(solver, loss)
    made, outcome = drive(spec)
    assert abs(outcome.w - optimum(loss)).max() < 1e-7
    assert len(made) < 0.9 * plan(spec, 300).messages


@pytest.mark.parametrize(
    "solver", [vfl.SkGD(), vfl.SkGD(sampling="uniform"), vfl.solvers.GCD(), vfl.solvers.GD()], ids=given
)
def test_a_larger_tolerance_stops_earlier_and_farther_from_the_optimum(solver: Any) -> None:
    far = []
    for tol in (1e-2, 1e-5, 1e-8):
        made, outcome = drive(job(solver.changed(tol=tol)))
        far.append((len(made), -abs(outcome.w - optimum("logistic")).max()))
    assert far == sorted(far)
    assert far[0][0] < far[1][0] < far[2][0]


def test_a_given_number_of_passes_is_made_unless_a_tolerance_is_given_too() -> None:
    (every, _), (some, _) = (
        drive(job(vfl.SkGD(passes=200, details=vfl.solvers.Details(tol=tol)))) for tol in (None, 1e-6)
    )
    assert len(every) == plan(job(vfl.SkGD(passes=200)), 300).messages
    assert len(some) < len(every) / 2


@pytest.mark.parametrize("penalty", [vfl.L1(10.0), vfl.L2(1e6)], ids=repr)
def test_a_model_of_zeros_stands_still(penalty: Any) -> None:
    made, outcome = drive(job(vfl.SkGD(), "squared", penalty=penalty, intercept=True))
    assert abs(outcome.w[: len(COLUMNS)]).max() < 1e-5
    assert len(made) < 100


def test_labels_far_from_0_do_not_make_coordinates_rough() -> None:
    """An intercept of 10⁶ does not set the scale for coordinates near 1."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (200, 2))
    table = {"a": X[:, 0], "b": X[:, 1], "y": 1e6 + X @ [1.0, -1.0]}
    spec = vfl.Job(
        partition=vfl.FeaturePartition({"bank": ["a"], "telco": ["b"]}, label=("bank", "y")),
        loss="squared",
        privacy=None,
        bounds={"a": (-1, 1), "b": (-1, 1)},
    )
    result = train(spec, table, at="inprocess")
    np.testing.assert_allclose(result.coef_, [1.0, -1.0], atol=1e-7)


@pytest.mark.parametrize(
    "solver",
    [
        vfl.SkGD(details=vfl.solvers.Details(tol=1e-3)),
        vfl.solvers.CD(details=vfl.solvers.Details(tol=0.0)),
        vfl.solvers.GCD(tol=1e-3),
        vfl.solvers.GD(tol=1e-3),
    ],
    ids=given,
)
def test_a_private_run_never_stops_because_of_its_data(solver: Any) -> None:
    with pytest.raises(PrivacyError, match=f"{solver.name}: tol makes the number of steps depend on data"):
        plan(job(solver, epsilon=1.0), 300)
    left_out = plan(job(solver.changed(tol=None), epsilon=1.0), 300).solver
    assert left_out.tol is None


@pytest.mark.parametrize("solver", [vfl.SkGD(passes=3), vfl.solvers.GCD(rounds=3), vfl.solvers.GD(passes=3)], ids=given)
def test_a_private_run_makes_all_its_rounds_on_data_that_need_none(solver: Any) -> None:
    """The zero model fits the labels: without privacy the same job stops at once."""
    counts = []
    for epsilon in (1.0, None):
        spec = job(solver if epsilon else solver.changed(tol=1e-9), "squared", epsilon=epsilon)
        spec = replace(spec, bounds={**spec.bounds, "y": (-6, 6)})
        seen: list[object] = []
        table = dict.fromkeys((*COLUMNS, "y"), np.zeros(300))
        train(spec, table, at="inprocess", watch=seen.append)
        counts.append(sum(isinstance(event, Round) for event in seen))
        assert (counts[-1] == plan(spec, 300).messages) == (epsilon is not None)
    assert counts[1] < counts[0]


@pytest.mark.parametrize("tol", [-1e-3, 1.0, float("nan")])
@pytest.mark.parametrize("kind", [vfl.SkGD, vfl.solvers.CD, vfl.solvers.GCD, vfl.solvers.GD])
def test_invalid_tolerances_are_refused(kind: Any, tol: float) -> None:
    with pytest.raises(SpecificationError, match="tol must be None or a number from 0 to 1"):
        kind().changed(tol=tol)


def test_a_slope_is_not_a_move() -> None:
    with pytest.raises(SpecificationError, match="tol needs rule='GS-r'"):
        vfl.solvers.GCD(rule="GS-s", tol=1e-3)


def test_a_convergence_needs_every_coordinate_since_the_last_move() -> None:
    """Coordinate 0 is still, then 1 moves: 0 has to be tried again. Coordinate 2 is drawn last."""
    w, rest = np.ones(3), Convergence(1e-3, np.ones(3), np.zeros(3))
    still, far = np.array([1e-6]), np.array([0.1])
    at = [slice(j, j + 1) for j in range(3)]
    for j in (0, 1, 2):
        rest.after(w, far, at[j])
    assert not any(rest.after(w, still, at[j]) for j in (0, 1, 0, 1, 0))
    rest.after(w, far, at[1])
    assert not any(rest.after(w, still, at[j]) for j in (2, 1, 2))
    assert rest.after(w, still, at[0])


def test_moves_are_measured_relative_to_the_final_model() -> None:
    """A move that was small beside a large model may be large beside the final one."""
    rest = Convergence(1e-3, np.ones(2), np.zeros(2))
    at = [slice(0, 1), slice(1, 2)]
    large, small = np.array([1e3, 0.0]), np.array([1e-3, 0.0])
    for j in (0, 1):
        rest.after(large, np.array([10.0]), at[j])
    assert not rest.after(large, np.array([0.1]), at[0])
    assert not rest.after(small, np.array([0.1]), at[1])
    assert not rest.after(small, np.array([0.1]), at[0])


def test_a_move_that_is_not_a_number_is_not_a_convergence() -> None:
    rest = Convergence(0.5, np.ones(1), np.zeros(1))
    assert not any(rest.after(np.array([np.nan]), np.array([np.nan])) for _ in range(5))
