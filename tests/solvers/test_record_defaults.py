"""Public rules of the record cap: they follow the noise, stop early where nothing can be learnt."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace

import numpy as np
import pytest

import vfl
from tests.solvers.test_defaults import job, problem
from vfl.planning import plan
from vfl.solvers.rules import record_defaults

RECORD = vfl.SkGD(clip="record")
EPSILONS = (1e-3, 0.01, 0.1, 1.0, 10.0, 50.0)


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("rule", [record_defaults.record_clip, record_defaults.time])
def test_less_noise_never_means_a_smaller_cap_or_less_time(rule, loss):
    if rule is record_defaults.record_clip or loss == "squared":
        along = [rule(problem(loss=loss, epsilon=e)) for e in EPSILONS]
        assert along == sorted(along)
        assert along[0] < along[-1]


def test_rules_read_the_public_problem_alone():
    for name in ("record_clip", "time", "label_share", "signal_to_noise"):
        assert list(inspect.signature(getattr(record_defaults, name)).parameters) == ["problem"]


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_it_is_the_default_where_the_order_is_without_replacement(loss):
    def clip(solver, **options):
        return plan(job(loss, solver=solver, **options), 30_000).solver.clip

    for solver in (
        vfl.SkGD(),
        vfl.solvers.CD(),
        vfl.SkGD(sampling="cyclic"),
        vfl.SkGD(sampling="full"),
        vfl.SkGD(details=vfl.solvers.Details(parallel=2)),
    ):
        assert clip(solver) == "record"
    for solver in (
        vfl.SkGD(sampling="uniform"),
        vfl.SkGD(sampling="nice", details=vfl.solvers.Details(tau=1)),
        vfl.SkGD(clip="coordinate"),
    ):
        assert isinstance(clip(solver), float)
    assert clip(vfl.SkGD(clip=0.5)) == 0.5
    assert clip(vfl.SkGD(), epsilon=None) == math.inf
    assert clip(vfl.SkGD(clip="record"), epsilon=None) == math.inf


def test_squared_loss_without_an_intercept_has_it_unless_noise_is_low():
    def at(signal, bound):
        low = high = None
        for epsilon in np.geomspace(1e-3, 50.0, 80):
            made = plan(job("squared", intercept=False, bound=bound, epsilon=float(epsilon)), 30_000)
            low, high = (made, high) if record_defaults.signal_to_noise(made.problem) < signal else (low, high or made)
        return low.solver.clip, high.solver.clip

    for signal, bound in (
        (record_defaults.OFF_CENTRE_CLEAR, (-1.0, 1.0)),
        (record_defaults.PARALLEL_CLEAR, (0.0, 1.0)),
    ):
        below, above = at(signal, bound)
        assert below == "record"
        assert isinstance(above, float)


@pytest.mark.parametrize("bound", [(-1.0, 1.0), (0.0, 1.0)])
def test_without_an_intercept_less_noise_means_a_cap_and_a_time_no_smaller(bound):
    for rule in (record_defaults.record_clip, record_defaults.time):
        along = [rule(problem(loss="squared", intercept=False, bound=bound, epsilon=float(e))) for e in EPSILONS]
        assert along == sorted(along)
        assert along[0] < along[-1]


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("n", [10, 30_000, 10**8])
def test_every_choice_is_usable_at_the_edges(loss, epsilon, n):
    for p in (1, 1_000):
        made = plan(job(loss, p=p, epsilon=epsilon, solver=RECORD), n)
        assert 0 < made.solver.decided.record_clip < math.inf
        assert 0 < made.solver.step_size <= 1
        assert made.epsilon <= epsilon


def test_steps_vanish_where_nothing_can_be_learnt():
    little = plan(job(p=1_000, epsilon=0.01, solver=RECORD), 1_000).solver
    assert little.step_size < 0.01
    assert little.label_share == 0.9
    clear = plan(job(epsilon=10.0, solver=RECORD), 30_000).solver
    assert clear.step_size == 1.0
    assert clear.label_share == 0.01


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("intercept", [True, False])
def test_where_nothing_can_be_learnt_a_run_says_so_and_is_no_worse_than_the_constant_model(loss, intercept):
    """120 columns of 400 records at ε = 0.3, of which one carries a weak signal."""
    rng = np.random.default_rng(3)
    n, p = 400, 120
    X = rng.uniform(-1, 1, (n, p))
    f = 0.5 * X[:, 0] + rng.normal(size=n)
    y = np.clip(f, -3, 3) if loss == "squared" else (f > 0).astype(int)
    table = dict(zip((f"x{j}" for j in range(p)), X.T, strict=True)) | {"y": y}
    spec = job(loss, p=p, epsilon=0.3, intercept=intercept, label=(-3.0, 3.0))
    made = plan(spec, n)
    assert made.solver.clip == "record"
    assert "so the run stays near the constant model" in made.solver.explain(made.problem)[0]
    assert "so the run stays near the constant model" in str(made)
    objective, values = made.problem, []
    columns = np.column_stack([X, np.ones(n)]) if intercept else X
    for seed in range(4):
        private = replace(spec, privacy=replace(spec.privacy, noise=vfl.SeededNoise(seed)))
        found = vfl.train(private, table, at="inprocess")
        v = columns @ np.append(found.coef_, found.intercept_)[: columns.shape[1]]
        values.append(objective.loss.value(v, np.where(y > 0, 1.0, -1.0) if loss == "logistic" else y).mean())
    constant = objective.loss.value(np.zeros(n), np.where(y > 0, 1.0, -1.0) if loss == "logistic" else y).mean()
    assert np.mean(values) <= 1.06 * constant


def test_a_run_that_learns_says_nothing():
    assert record_defaults.standing_still(problem(epsilon=1.0)) == ""
    assert record_defaults.standing_still(problem(epsilon=None)) == ""


def test_passes_that_are_given_share_the_time():
    whole = plan(job(epsilon=10.0, solver=RECORD), 30_000).solver
    n_passes = whole.outer_rounds * whole.inner_rounds // 9
    twice = plan(job(epsilon=10.0, solver=replace(RECORD, passes=2 * n_passes)), 30_000).solver
    assert twice.step_size == pytest.approx(whole.step_size / 2, rel=0.02)
